// SPDX-License-Identifier: Apache-2.0
//! Plans as data. Each file in `plans/cases` names a base of `plans/bases` and the differences from it
//! (see the crate `cases`):
//!
//! | member | content |
//! |---|---|
//! | `request` | netdev, address, gateway, MTU; `siblings`: netdevs of other NICs that the daemon brought up |
//! | `record` | earlier configuration of the netdev; without a request, the configuration to release |
//! | `observed` | the host's netdevs |
//!
//! The text file of the same name has the changes, each as its `ip` or `sysctl` command, and the differences that stay.
//! `UPDATE_PLANS=1 cargo test -p erdma --test erdma plans` writes all texts again. Read them before you commit them.

use erdma::bring_up::{
    ownership::foreign_config,
    plan::{self, DesiredNic, Siblings},
    put_back::put_back,
    record::Record,
};
use rdma_netns::{Link, Namespace, NetnsId};
use serde::Deserialize;
use std::{collections::BTreeSet, net::Ipv4Addr, path::Path};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    request: Option<Request>,
    record: Option<Record>,
    observed: Vec<Link>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    netdev: String,
    address: String,
    gateway: Option<Ipv4Addr>,
    mtu: u32,
    #[serde(default)]
    siblings: Vec<String>,
}

#[test]
fn plans_are_as_written() {
    let cases = cases::list(env!("CARGO_MANIFEST_DIR"), "tests/erdma/plans/cases");
    assert!(cases.len() >= 20, "{cases:?}");
    cases::assert_as_written(&cases, plan_of);
}

fn plan_of(case: &Path) -> String {
    let case: Case = cases::read_as(case);
    let host = Namespace {
        id: NetnsId {
            device: 4,
            inode: 1,
            cookie: 1,
        },
        links: case.observed,
        unkept_routes: vec![],
        rdma: vec![],
        rules: vec![],
        sub_devices: vec![],
        general_rules: vec![],
        other_number: None,
        tables: BTreeSet::new(),
    };
    match case.request {
        Some(request) => bring_up(&host, &request, case.record),
        None => release(&host, &case.record.expect("a record")),
    }
}

fn bring_up(host: &Namespace, request: &Request, record: Option<Record>) -> String {
    let link = host.link(&request.netdev).expect("the netdev");
    if let Some(foreign) = foreign_config(link, host, record.as_ref()) {
        return format!("# left alone: {foreign}\n");
    }
    let wanted = DesiredNic {
        address: request.address.parse().expect("an address"),
        gateway: request.gateway,
        mtu: request.mtu,
    };
    let siblings = request.siblings.iter();
    let siblings = Siblings {
        links: siblings
            .map(|name| host.link(name).expect("a sibling").index)
            .collect(),
        routes: vec![],
    };
    let given = match plan::give(link, host, &wanted, record.as_ref(), &siblings) {
        Ok(given) => given,
        Err(obstacle) => return format!("# refused: {obstacle}\n"),
    };
    let alone = plan::exclusive_route(link, host, &given, &siblings);
    let remark = alone.map(|it| format!("# nobody else's: {}/{}\n", it.destination, it.prefix));
    let record = match record {
        Some(record) => record.regiven(given),
        None => {
            let address = "0000:00:06.0".to_owned().try_into();
            Record::new("boot", &address.expect("a PCI address"), link, given)
        }
    };
    let ops = plan::missing(link, &record);
    if ops.is_empty() {
        return "# nothing\n".to_owned();
    }
    let ops = ops.iter().map(|op| format!("{op}\n"));
    ops.chain(remark).collect()
}

fn release(host: &Namespace, record: &Record) -> String {
    let link = record.link(host).expect("the netdev");
    let back = put_back(link, host, record);
    let ops = back.ops.iter().map(|op| format!("{op}\n"));
    let left = back.left.iter().map(|left| format!("# left: {left}\n"));
    let text: String = ops.chain(left).collect();
    if text.is_empty() {
        return "# nothing\n".to_owned();
    }
    text
}
