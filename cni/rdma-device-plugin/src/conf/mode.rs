// SPDX-License-Identifier: Apache-2.0
//! k8s-rdma-sriov-dev-plugin's format: `{"mode":"hca"}`, or `{"mode":"sriov"}` with the physical
//! functions' netdevs. Its container gets all of `/dev/infiniband`; ours get the devices'.

use super::{
    Allocate, Conf, Erdma, Ids, Parsed, ResourceConf, SHARED_IDS, Wrong, chain,
    fields::Fields,
    name_at,
    selector::{Parent, Selector, Sort, Text},
};

pub(super) fn read(fields: &Fields<'_>) -> Result<Parsed, Wrong> {
    let sriov = fields.choice("mode", &[("hca", false), ("sriov", true)])?;
    let netdevs = fields.texts("pfNetdevices")?;
    let mut remarks: Vec<String> = fields
        .others(&["mode", "pfNetdevices", chain::FIELD])
        .into_iter()
        .map(|place| format!("{place}: not known, passed over"))
        .collect();
    let resource = |name: &str, ids, devices| -> Result<ResourceConf, Wrong> {
        Ok(ResourceConf {
            name: name_at(name, "mode".to_owned())?,
            place: "mode".to_owned(),
            ids,
            devices,
            umad: false,
            topology: true,
            require: None,
        })
    };
    let resource = if sriov == Some(true) {
        if netdevs.is_empty() {
            return Err(fields.wrong(
                "pfNetdevices",
                "must name the netdevs of the physical functions in mode sriov",
            ));
        }
        remarks.push(
            "pfNetdevices: virtual functions are offered as they are; they are not made here"
                .to_owned(),
        );
        let pf = netdevs.iter().map(|name| Parent {
            text: Text::exactly(name),
            numbers: Vec::new(),
        });
        let selector = Selector {
            place: "pfNetdevices".to_owned(),
            pf: pf.collect(),
            sort: Some(Sort::Virtual),
            ..Selector::default()
        };
        resource("rdma/vhca", Ids::Exclusive, vec![selector])?
    } else {
        if !netdevs.is_empty() {
            remarks.push("pfNetdevices: of no meaning in mode hca, passed over".to_owned());
        }
        let ids = Ids::Shared {
            count: SHARED_IDS,
            allocate: Allocate::All,
        };
        resource("rdma/hca", ids, Vec::new())?
    };
    Ok(Parsed {
        conf: Conf {
            resources: vec![resource],
            cdi: false,
            erdma: Erdma::foreign(),
            chain: chain::of(fields)?,
        },
        remarks,
    })
}
