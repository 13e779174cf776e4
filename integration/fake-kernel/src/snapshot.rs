// SPDX-License-Identifier: Apache-2.0
//! A whole world as text, one line for each object, so that differences are readable.

use crate::world::{HOST, World};
use rdma_netns::{HardwareAddress, LinkType, Namespace};
use std::fmt;

/// The objects of a world at one moment. Omits values that change only with time, and the queue pair numbers in IPoIB
/// hardware addresses.
#[derive(Clone, PartialEq, Eq)]
pub struct Snapshot {
    lines: Vec<String>,
}

impl Snapshot {
    pub(crate) fn of(world: &World) -> Self {
        let mut lines = vec![];
        for device in world.devices() {
            let Ok(text) = serde_json::to_string(&device) else {
                continue;
            };
            lines.push(format!("device {text}"));
        }
        for (function, settings) in &world.vfs {
            let settings: Vec<String> = settings.iter().map(ToString::to_string).collect();
            lines.push(format!("function {function}: {}", settings.join(" ")));
        }
        let netdevs = world.netdevs.iter().filter(|it| it.netns == HOST);
        let settings = netdevs.map(|it| {
            let name = &it.link.name;
            let mut list: Vec<_> = it.settings.iter().collect();
            list.sort_unstable();
            format!("host: settings of {name}: {list:?}")
        });
        let mut settings: Vec<String> = settings.collect();
        settings.sort();
        lines.extend(settings);
        for netns in &world.namespaces {
            let mut paths = world.paths.iter();
            let place = match netns.id {
                HOST => "host".to_owned(),
                id => paths.find(|(_, other)| **other == Some(id)).map_or_else(
                    || "(no path)".into(),
                    |(path, _)| path.display().to_string(),
                ),
            };
            describe(&place, world.namespace(netns.id), &mut lines);
            let mut pnet: Vec<String> = netns.smc.pnet.iter().map(text).collect();
            pnet.sort();
            lines.extend(pnet.iter().map(|entry| format!("{place}: pnet {entry}")));
            if let Some(links) = netns.smc.max_links {
                lines.push(format!("{place}: net.smc.smcr_max_links_per_lgr={links}"));
            }
            if netns.smc.tcp2smc {
                lines.push(format!("{place}: net.smc.tcp2smc=1"));
            }
        }
        let mut ueids: Vec<&String> = world.smc.iter().flat_map(|smc| &smc.ueids).collect();
        ueids.sort();
        lines.extend(ueids.iter().map(|ueid| format!("ueid {ueid}")));
        Self { lines }
    }

    /// Returns the snapshot without the devices' numbers and the order by them, because a move to a pod and back may
    /// change both.
    pub fn without_numbers(&self) -> Self {
        let kept = self.lines.iter();
        let kept = kept.filter(|line| !line.contains(" index ") && !line.contains(" node "));
        let mut lines: Vec<String> = kept.cloned().collect();
        lines.sort();
        Self { lines }
    }

    /// Returns the lines that only one of the two has, with `-` for lines of `self`.
    pub fn differences(&self, other: &Self) -> Vec<String> {
        let only = |one: &Self, other: &Self, sign: char| -> Vec<String> {
            let lines = one.lines.iter().filter(|line| !other.lines.contains(line));
            lines.map(|line| format!("{sign} {line}")).collect()
        };
        let mut lines = only(self, other, '-');
        lines.extend(only(other, self, '+'));
        if lines.is_empty() && self != other {
            lines.push("the same things in another order".to_owned());
        }
        lines
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lines.join("\n"))
    }
}

fn describe(place: &str, namespace: Namespace, lines: &mut Vec<String>) {
    for mut link in namespace.links {
        let mut name = format!("{place}: {}", link.name);
        lines.push(format!("{name} index {}", link.index));
        for (at, address) in link.addresses.iter_mut().enumerate() {
            address.tentative = false;
            lines.push(format!("{name} address {at} {}", text(address)));
        }
        for (at, route) in link.routes.iter().enumerate() {
            lines.push(format!("{name} route {at} {}", text(route)));
        }
        for (key, value) in link.sysctls.iter() {
            lines.push(format!("{name} {key}={value}"));
        }
        link.index = 0;
        // omit the queue pair number in IPoIB hardware addresses, because each new netdev gets another number
        let is_ipoib = link.link_type == LinkType::Infiniband;
        let addresses = [Some(&mut link.mac), link.permanent_mac.as_mut()];
        for HardwareAddress(address) in addresses.into_iter().flatten().filter(|_| is_ipoib) {
            address[1..4].fill(0);
        }
        link.lower = link.lower.map(|_| 0);
        link.addresses.clear();
        link.routes.clear();
        link.sysctls = Default::default();
        name.push(' ');
        lines.push(name + &text(&link));
    }
    for rule in namespace.rules {
        lines.push(format!("{place}: rule {rule}"));
    }
    for mut device in namespace.rdma {
        let name = format!("{place}: rdma {}", device.name);
        for node in &device.char_devices {
            lines.push(format!("{name} node {}", node.name));
        }
        for port in &mut device.ports {
            // omit the index of the port's netdev, which has its own line
            port.netdev = port.netdev.map(|_| 0);
        }
        lines.push(format!("{name} index {}", device.index));
        device.index = 0;
        device.char_devices.clear();
        lines.push(format!("{name} {}", text(&device)));
    }
}

fn text(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}
