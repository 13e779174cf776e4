// SPDX-License-Identifier: Apache-2.0
//! The state of a namespace: objects as `iproute2` shows them, sysctls, and SMC-R's settings. Two states can be
//! compared bit by bit.
//!
//! A snapshot is a flat, sorted map of paths to values, so a difference is a list of lines. It omits properties that
//! change by themselves or that must change in a move:
//!
//! - interface indexes, and the index and namespace of a veth's other end: a moved link gets another index if its old
//!   index is taken
//! - `operstate`, carrier and dependent flags (`NO-CARRIER`, `LOWER_UP`, `M-DOWN`, `linkdown`), states of RDMA ports,
//!   and the queueing discipline: the kernel sets all of them again when the link goes up
//! - the burnt-in address, which no program can set, and which igbvf replaces by the present address when the link
//!   goes down
//! - values that a bond and its LACP partner have negotiated
//! - counters, timers, and the remaining part of a lifetime (limited and unlimited lifetimes differ)
//! - IPv6 `tentative`: an address is the same before and after duplicate address detection
//! - the order of IPv6 addresses. The order of IPv4 addresses counts, because the first one is the primary address
//!
//! The kernel adds some addresses and routes a little after a link goes up. [`Snapshot::assert_restored`] waits for
//! them.

use crate::{
    Netns, files,
    netns::{self, parse_list},
    wait,
};
use nix::libc::ENOENT;
use rdma_netns::smc;
use serde_json::{Map, Value, json};
use std::{
    collections::BTreeMap,
    fmt::Write,
    fs::{self, File},
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

/// The state of one namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot(BTreeMap<String, String>);

const FOR_EVER: u64 = u32::MAX as u64;

/// Arguments of `ip` for both families.
const ROUTES: &str = "route show table all";
const RULES: &str = "rule show";

/// Properties of a link that a snapshot omits.
const PASSING_KEYS: [&str; 9] = [
    "ifindex",
    "permaddr",
    "link",
    "link_index",
    "link_netnsid",
    "operstate",
    "qdisc",
    "flags",
    "addr_info",
];

/// Flags of links and routes that change by themselves.
const PASSING_FLAGS: [&str; 6] = [
    "LOWER_UP",
    "NO-CARRIER",
    "M-DOWN",
    "RUNNING",
    "linkdown",
    "dead",
];

/// Time limit for the local route of an IPv6 address. A kernel worker adds the route, with or without DAD
/// (`addrconf_dad_work()`, `net/ipv6/addrconf.c`). The limit is necessary because another program may have removed
/// the route.
const UNROUTED: Duration = Duration::from_secs(1);

impl Snapshot {
    /// Waits until duplicate address detection of the namespace's IPv6 addresses has ended, and at most one second
    /// until the addresses have their routes. Returns the namespace's state.
    #[track_caller]
    pub fn of(netns: &Netns) -> Self {
        let mut ipv6 = [vec![], vec![]];
        let begin = Instant::now();
        wait::until("no IPv6 address is tentative", || {
            let lines = ["address show tentative", "address show up", ROUTES, RULES];
            let [tentative, up, routes, rules] = netns.show_each(6, lines);
            let are_routed = up.iter().all(|link| is_routed(link, &routes));
            ipv6 = [routes, rules];
            let is_checked = |link: &Value| link["addr_info"] == Value::Array(vec![]);
            tentative.iter().all(is_checked) && (are_routed || begin.elapsed() > UNROUTED)
        });
        let ipv4 = netns.show_each(4, [ROUTES, RULES]);
        let mut state = Self(BTreeMap::new());
        for link in netns.show("address show") {
            state.add_link(&link);
        }
        for (family, [routes, rules]) in [("4", ipv4), ("6", ipv6)] {
            for route in routes {
                state.count(
                    &format!("ipv{family} route"),
                    &without_passing(route, &["expires"]),
                );
            }
            for rule in rules {
                state.count(&format!("ipv{family} rule"), &rule);
            }
        }
        state.add_sysctls(netns);
        state.add_rdma(netns);
        state.add_smc(netns);
        state
    }

    /// Waits until `netns` has the state of this snapshot. At the time limit, panics with the differences.
    #[track_caller]
    pub fn assert_restored(&self, netns: &Netns) {
        let difference = self.difference_within(wait::TIMEOUT, netns, &|difference| difference);
        assert!(
            difference.is_empty(),
            "not as before (- before, + now):\n{difference}"
        );
    }

    /// Returns the differences of `netns` from this snapshot, reduced by `counted`. Waits until nothing is left, for at
    /// most `limit`, because the kernel makes some changes late.
    pub fn difference_within(
        &self,
        limit: Duration,
        netns: &Netns,
        counted: &dyn Fn(String) -> String,
    ) -> String {
        let mut difference = String::new();
        wait::within(limit, || {
            difference = counted(self.difference(&Self::of(netns)));
            difference.is_empty()
        });
        difference
    }

    /// Returns the snapshot as text, for a file.
    pub fn to_text(&self) -> String {
        json!(self.0).to_string()
    }

    /// Parses text of [`Self::to_text`], from this boot or an earlier one.
    #[track_caller]
    pub fn of_text(text: &str) -> Self {
        Self(serde_json::from_str(text).expect("a snapshot"))
    }

    /// Returns the lines that differ. Lines with `-` are only in this snapshot, lines with `+` only in `now`.
    pub fn difference(&self, now: &Self) -> String {
        let mut text = String::new();
        let paths: std::collections::BTreeSet<_> = self.0.keys().chain(now.0.keys()).collect();
        for path in paths {
            let (old, new) = (self.0.get(path), now.0.get(path));
            if old == new {
                continue;
            }
            for (sign, value) in [('-', old), ('+', new)] {
                if let Some(value) = value {
                    let _ = writeln!(text, "{sign} {path}: {value}");
                }
            }
        }
        text
    }

    /// Returns the paths of this snapshot that begin with `prefix`, with their values.
    pub fn part(&self, prefix: &str) -> Vec<String> {
        let lines = self.0.iter().filter(|(path, _)| path.starts_with(prefix));
        lines
            .map(|(path, value)| format!("{path}: {value}"))
            .collect()
    }

    fn add_link(&mut self, link: &Value) {
        let path = format!("link {}", text(&link["ifname"]));
        for (key, value) in link.as_object().into_iter().flatten() {
            if !PASSING_KEYS.contains(&key.as_str()) {
                let value = match key.as_str() {
                    "linkinfo" => without_lacp(value.clone()),
                    _ => value.clone(),
                };
                self.0
                    .insert(format!("{path} {key}"), sorted(&value).to_string());
            }
        }
        self.0.insert(
            format!("{path} flags"),
            lasting_flags(&link["flags"]).to_string(),
        );
        for (place, address) in link["addr_info"]
            .as_array()
            .into_iter()
            .flatten()
            .enumerate()
        {
            let key = match text(&address["family"]) {
                "inet" => format!("{path} ipv4 address {place}"),
                _ => format!("{path} ipv6 address {}", text(&address["local"])),
            };
            self.0.insert(key, lasting_address(address).to_string());
        }
    }

    fn count(&mut self, what: &str, item: &Value) {
        let count = self
            .0
            .entry(format!("{what} {}", sorted(item)))
            .or_insert_with(|| "0".into());
        *count = (count.parse::<u32>().expect("a count") + 1).to_string();
    }

    /// Adds every setting of every link, and the settings that new links inherit (`all`, `default`).
    fn add_sysctls(&mut self, netns: &Netns) {
        let mut settings = vec![];
        let read = || {
            for folder in ["ipv4/conf", "ipv6/conf", "ipv4/neigh", "ipv6/neigh"] {
                read_settings(folder, &mut settings);
            }
        };
        netns.inside(read);
        for (key, value) in settings {
            self.0.insert(format!("sysctl {key}"), value);
        }
    }

    fn add_rdma(&mut self, netns: &Netns) {
        if !Path::new("/sys/module/ib_core").exists() {
            return;
        }
        // runs on a thread in the namespace: `ip netns exec` would make mounts that are not needed
        let show = |what: &str| {
            let mut rdma = Command::new("rdma");
            let rdma = rdma.args(["-j", what, "show"]);
            parse_list(&netns.inside(|| netns::check(rdma)))
        };
        for device in show("dev") {
            self.count("rdma device", &without_passing(device, &["ifindex"]));
        }
        for port in show("link") {
            let passing = ["ifindex", "netdev_index", "state", "physical_state"];
            self.count("rdma port", &without_passing(port, &passing));
        }
    }

    /// Adds the settings of SMC-R if its module is loaded. Otherwise the request would make the kernel load the
    /// module.
    fn add_smc(&mut self, netns: &Netns) {
        if !Path::new("/sys/module/smc").exists() {
            return;
        }
        let table = || smc::PnetTable::open()?.entries();
        for entry in netns.inside(table).expect("a pnet table") {
            self.count("pnet entry", &json!(entry));
        }
        let ueids = match smc::UserEids::open() {
            // a kernel before 5.16 lacks this request
            Err(error) if error.errno() == Some(ENOENT) => return,
            ueids => ueids.and_then(|mut it| it.list()),
        };
        for ueid in ueids.expect("user EIDs") {
            self.count("user EID", &ueid.into());
        }
    }
}

/// Reads each setting of each link in `folder` of `/proc/sys/net`, with its key. Omits the settings of a link that
/// ends meanwhile, and a secret that is not set, which cannot be read.
fn read_settings(folder: &str, settings: &mut Vec<(String, String)>) {
    let entries = |path: &str| {
        let found = fs::read_dir(Path::new("/proc/sys/net").join(path));
        let names = found.into_iter().flatten().flatten();
        names.filter_map(|it| it.file_name().into_string().ok())
    };
    for link in entries(folder) {
        let link = format!("{folder}/{link}");
        let Ok(directory) = File::open(Path::new("/proc/sys/net").join(&link)) else {
            continue;
        };
        for name in entries(&link) {
            let text = files::read_short(&directory, &name).unwrap_or_default();
            for line in text.lines().filter(|it| !it.is_empty()) {
                settings.push((format!("{link}/{name}"), line.to_owned()));
            }
        }
    }
}

/// Returns true if each IPv6 address of `link` has a route to itself.
fn is_routed(link: &Value, routes: &[Value]) -> bool {
    let addresses = link["addr_info"].as_array().into_iter().flatten();
    let is_to = |route: &Value, address: &Value| {
        route["type"] == "local" && route["dst"] == address["local"]
    };
    let mut addresses = addresses.filter(|it| it["dadfailed"] != true);
    addresses.all(|it| routes.iter().any(|route| is_to(route, it)))
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("")
}

fn lasting_flags(flags: &Value) -> Value {
    let flags = flags.as_array().cloned().unwrap_or_default();
    let mut flags: Vec<_> = flags
        .into_iter()
        .filter(|flag| !PASSING_FLAGS.contains(&text(flag)))
        .collect();
    flags.sort_by_key(Value::to_string);
    Value::Array(flags)
}

fn lasting_address(address: &Value) -> Value {
    let mut lasting = without_passing(address.clone(), &["tentative"]);
    for key in ["valid_life_time", "preferred_life_time"] {
        if lasting[key]
            .as_u64()
            .is_some_and(|seconds| seconds != FOR_EVER)
        {
            lasting[key] = Value::from("limited");
        }
    }
    sorted(&lasting)
}

fn without_passing(mut item: Value, keys: &[&str]) -> Value {
    if let Some(object) = item.as_object_mut() {
        for key in keys {
            object.remove(*key);
        }
        if let Some(flags) = object.get_mut("flags") {
            *flags = lasting_flags(flags);
        }
    }
    item
}

/// Removes the state that a bond may negotiate with its partner at any time.
fn without_lacp(mut linkinfo: Value) -> Value {
    const AGREED: [&str; 5] = ["ad_", "state", "mii_status", "active_", "link_failure"];
    for part in ["info_slave_data", "info_data"] {
        if let Some(Value::Object(data)) = linkinfo.get_mut(part) {
            data.retain(|key, _| {
                let is_setting = ["ad_select", "ad_actor_sys_prio", "ad_user_port_key"];
                is_setting.contains(&key.as_str()) || !AGREED.iter().any(|it| key.starts_with(it))
            });
        }
    }
    linkinfo
}

/// Sorts the keys of all objects, and removes a bridge's running timers.
fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(object) => {
            let lasting = object.iter().filter(|(key, _)| !key.ends_with("_timer"));
            let ordered: BTreeMap<_, _> = lasting.collect();
            let items = ordered
                .into_iter()
                .map(|(key, value)| (key.clone(), sorted(value)));
            Value::Object(items.collect::<Map<_, _>>())
        }
        Value::Array(items) => Value::Array(items.iter().map(sorted).collect()),
        other => other.clone(),
    }
}
