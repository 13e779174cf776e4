// SPDX-License-Identifier: Apache-2.0
//! Configurations. A verb reports a configuration's mistakes in one line. The other verbs accept each configuration
//! that ADD accepts.

use crate::assert_one_line;
use cni_protocol::{Command, Environment, Mistakes, conf};
use daemon_conf::Conf as DeviceConf;
use network_conf::Conf;
use rdma_ipam::{
    address::{Family, cidr, number},
    bounds::{Bounds, Excluded, Offset},
    conf::{Place, Plan, Source, conflicts},
    range::Range,
};
use serde_json::{Map, Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

/// Standard input of `rdma-cni`.
///
/// # Panics
/// A message has several lines; DEL, GC or CHECK refuses a configuration that ADD accepts; the stored configuration
/// differs from the input; a value is out of its range; some rails, but not all, have the same name.
pub fn network(input: &[u8]) {
    let raw = match conf::decode(input) {
        Ok(raw) => raw,
        Err(error) => return assert_one_line(&error),
    };
    read(&raw);
}

/// Annotations of a pod, for an entry that allows `mtu` and `rails`.
///
/// # Panics
/// As in [`network`].
pub fn annotations(input: &[u8]) {
    let mut annotations = Map::new();
    for line in String::from_utf8_lossy(input).lines() {
        let (name, value) = line.split_once('=').unwrap_or((line, ""));
        annotations.insert(name.to_owned(), value.into());
    }
    let conf = json!({
        "cniVersion": "1.1.0", "name": "net", "podAnnotations": ["mtu", "rails"], "smcr": "auto",
        "runtimeConfig": {"io.kubernetes.cri.pod-annotations": annotations},
    });
    read(conf.as_object().expect("an object"));
}

fn read(raw: &Map<String, Value>) {
    let added = Conf::parse(raw.clone());
    for command in [Command::Add, Command::Del, Command::Gc, Command::Check] {
        match Conf::read(raw.clone(), &BTreeMap::new(), &mut Mistakes::of(command)) {
            Err(error) => {
                assert_one_line(&error);
                assert!(
                    added.is_err(),
                    "{command:?} refuses what ADD takes: {error}"
                );
            }
            Ok(conf) => assert_eq!(conf.raw, *raw),
        }
    }
    let conf = match added {
        Ok(conf) => conf,
        Err(error) => return assert_one_line(&error),
    };
    if let Err(error) = conf.smc.requirement() {
        assert_one_line(&error);
    }
    match conf.chosen_by_pod() {
        Err(error) => assert_one_line(&error),
        Ok(None) => {}
        Ok(Some(chosen)) => {
            assert_eq!(chosen.state_dir, conf.state_dir);
            let rails = chosen.rails.iter().flatten();
            assert!(rails.copied().all(|rail| rail < 1000));
            assert!(chosen.mtu.is_none_or(|mtu| (68..=65535).contains(&mtu)));
        }
    }
    assert!(conf.state_dir.is_absolute() && conf.pod_resources_socket.is_absolute());
    let names: Vec<_> = (0..12).filter_map(|rail| conf.pod_name(rail, 12)).collect();
    let distinct: BTreeSet<_> = names.iter().collect();
    // a configuration can have one name for all rails; ADD then fails if the pod gets several rails
    assert!(
        distinct.len() == names.len() || distinct.len() == 1,
        "two rails of one name"
    );
}

/// Standard input of `rdma-ipam`.
///
/// # Panics
/// A message has several lines; DEL, GC or CHECK refuses a configuration that ADD accepts; an address of a range is not
/// in the range's subnet, or not within its bounds.
pub fn ipam(input: &[u8]) {
    if let Ok(text) = str::from_utf8(input) {
        offset(text);
    }
    let raw = match conf::decode(input) {
        Ok(raw) => raw,
        Err(error) => return assert_one_line(&error),
    };
    let variables = [
        ("CNI_COMMAND", "ADD"),
        ("CNI_CONTAINERID", "c"),
        ("CNI_NETNS", "/n"),
        ("CNI_IFNAME", "eth0"),
        ("CNI_PATH", "/p"),
        ("CNI_ARGS", "IP=10.0.0.5"),
    ];
    let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let environment = Environment::parse(variables.into(), None).expect("an environment");
    let added = Place::parse(&raw, &mut Mistakes::of(Command::Add));
    for command in [Command::Del, Command::Gc, Command::Check] {
        if let Err(error) = Place::parse(&raw, &mut Mistakes::of(command)) {
            assert_one_line(&error);
            assert!(
                added.is_err(),
                "{command:?} refuses what ADD takes: {error}"
            );
        }
    }
    if let Err(error) = added {
        assert_one_line(&error);
    }
    if let Err(error) = conflicts(&raw) {
        assert_one_line(&error);
    }
    let plan = match Plan::parse(&raw, &environment) {
        Ok(plan) => plan,
        Err(error) => return assert_one_line(&error),
    };
    let pools = match plan.source {
        Source::Ranges(pools) => pools,
        Source::Parent { families, .. } => return families.iter().for_each(bounds),
    };
    for pool in pools {
        assert!(pool.excluded.iter().all(|(first, last)| first <= last));
        let sizes = pool.ranges().iter().map(|it| it.size());
        assert_eq!(sizes.fold(0, u128::saturating_add), pool.size());
        for offset in [0, pool.size() / 2, pool.size() - 1] {
            let ip = pool.family().address(pool.at(offset));
            let range = pool.range_of(ip).expect("an address of the pool");
            assert!(range.contains(ip) && range.subnet.contains(ip));
        }
    }
}

/// Parses `text` as a bound, and as an element of `exclude`.
fn offset(text: &str) {
    if let Some(offset) = Offset::parse(text) {
        assert_eq!(Offset::parse(&offset.to_string()), Some(offset));
        assert_eq!(
            Excluded::parse(text),
            Some(Excluded::Offsets(offset, offset))
        );
    }
    if let Some(Excluded::Addresses(first, last)) = Excluded::parse(text) {
        assert_eq!(Family::of(first), Family::of(last));
        assert!(first <= last);
    }
}

/// Applies `bounds` to short, usual and long prefixes of their family.
fn bounds(bounds: &Bounds) {
    let prefixes = match bounds.family {
        Family::V4 => ["0.0.0.0/0", "10.77.0.0/24", "255.255.255.252/30"],
        Family::V6 => ["::/0", "2001:db8:1::/64", "ffff:ffff::fffc/126"],
    };
    for prefix in prefixes.map(|it| cidr(it).expect("a prefix")) {
        let whole = Range::of_prefix(prefix).expect("a range");
        let own = bounds.family.address(whole.start + whole.size() / 2);
        let mut range = whole;
        let excluded = match bounds.cut(&mut range, &[own.into()]) {
            Ok(excluded) => excluded,
            Err(error) => {
                assert_one_line(&error);
                continue;
            }
        };
        let place = |it: Option<Offset>| it.and_then(|it| it.in_prefix(prefix));
        assert!(place(bounds.start).is_none_or(|start| start <= range.start));
        assert!(place(bounds.end).is_none_or(|end| range.end <= end));
        let size = range.end - range.start;
        assert!(bounds.per_node.is_none_or(|it| size == u128::from(it) - 1));
        let (first, last) = (number(prefix.network()), number(prefix.broadcast()));
        assert!(first <= range.start && range.start <= range.end && range.end <= last);
        assert!(excluded.iter().all(|(first, last)| first <= last));
        let is_excluded = |it: &(u128, u128)| (it.0..=it.1).contains(&number(own));
        let is_bounded = bounds.start.or(bounds.end).is_some() || bounds.per_node.is_some();
        assert!(!is_bounded || !range.contains(own) || excluded.iter().any(is_excluded));
    }
}

/// The daemon's configuration, JSON or YAML, in its own format or in one of three other formats.
///
/// # Panics
/// A message or a remark has several lines; two resources have the same name.
pub fn device_plugin(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else {
        return;
    };
    let parsed = match DeviceConf::parse(text, Path::new("/etc/config")) {
        Ok(parsed) => parsed,
        Err(error) => return assert_one_line(&error),
    };
    for remark in &parsed.remarks {
        assert_one_line(remark);
    }
    let resources = &parsed.conf.resources;
    let names: BTreeSet<_> = resources.iter().map(|it| it.name.to_string()).collect();
    assert_eq!(names.len(), resources.len());
}
