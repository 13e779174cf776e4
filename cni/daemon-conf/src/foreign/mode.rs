// SPDX-License-Identifier: Apache-2.0
//! Format of k8s-rdma-sriov-dev-plugin: `{"mode":"hca"}`, or `{"mode":"sriov"}` with the physical functions' netdevs.
//!
//! With k8s-rdma-sriov-dev-plugin, a container gets all of `/dev/infiniband`. With this daemon, a container gets only
//! the character devices of its own devices.
//!
//! ACK's add-on is derived from k8s-rdma-sriov-dev-plugin. This daemon also accepts the add-on's further parameter
//! `customResourceName`.

use super::{exactly, parsed, passed_over_at_top};
use crate::{
    Allocate, Ids, Parsed, ResourceConf, ResourceName, SHARED_IDS,
    selector::{Parent, Selector, Sort},
};
use conf_reader::{Field, Wrong};
use serde::Deserialize;

/// Field that renames the single resource of this format.
const CUSTOM: &str = "customResourceName";

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Mode {
    Hca,
    Sriov,
}

pub(crate) fn read(file: &Field<'_>) -> Result<Parsed, Wrong> {
    let mode: Mode = file.at("mode").read()?;
    let field = file.at("pfNetdevices");
    let netdevs = exactly(&field.read()?);
    let mut remarks = passed_over_at_top(file, &["mode", "pfNetdevices", CUSTOM]);
    let (name, ids, devices) = match mode {
        Mode::Sriov if netdevs.is_empty() => {
            let must = "must name the physical functions' netdevs, because mode is sriov";
            return Err(field.wrong(must));
        }
        Mode::Sriov => {
            remarks.push(
                "pfNetdevices: the daemon offers existing virtual functions, and creates none"
                    .to_owned(),
            );
            let pf = netdevs.into_iter().map(|text| Parent {
                text,
                numbers: Vec::new(),
            });
            let selector = Selector {
                place: field.place().to_owned(),
                pf: pf.collect(),
                sort: Some(Sort::Virtual),
                ..Selector::default()
            };
            ("rdma/vhca", Ids::Exclusive, vec![selector])
        }
        Mode::Hca => {
            if !netdevs.is_empty() {
                remarks.push(
                    "pfNetdevices: ignored, because it has no meaning in mode hca".to_owned(),
                );
            }
            let ids = Ids::Shared {
                count: SHARED_IDS,
                allocate: Allocate::All,
            };
            ("rdma/hca", ids, Vec::new())
        }
    };
    let custom = file.at(CUSTOM);
    let name = match custom.text()? {
        Some(name) => ResourceName::at(&name, &custom)?,
        None => ResourceName::at(name, &file.at("mode"))?,
    };
    let resource = ResourceConf {
        has_default_count: true,
        ..ResourceConf::new(name, "mode", ids, devices)
    };
    parsed(vec![resource], file, remarks)
}
