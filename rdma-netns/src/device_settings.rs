// SPDX-License-Identifier: Apache-2.0
//! Settings of a netdev that an administrator can change, and that a [`Link`](crate::Link) does not contain. A move of
//! the netdev resets the settings below `/proc/sys/net`, and keeps all others.

use serde::{Deserialize, Serialize};

/// Settings of a netdev of the host by key:
///
/// - an attribute by its path in the netdev's sysfs directory: `gro_flush_timeout`, `queues/rx-0/rps_cpus`;
/// - a setting below `/proc/sys/net` that netlink does not report, without the netdev's name:
///   `sysctl/ipv6/neigh/locktime`;
/// - a driver setting, `ethtool/coalesce`: the writable 32-bit words of ethtool's structure, in hexadecimal;
/// - `ethtool/rules`: flow rules, each as 32-bit words in hexadecimal, separated by spaces; or [`UNREADABLE`];
/// - `tcx/ingress`, `tcx/egress`: the ids of attached programs, in decimal, separated by spaces;
/// - settings of the netdev's kind, in hexadecimal: `kind/1`, an attribute of `IFLA_INFO_DATA`, and
///   `kind/proto_down_reason`.
///
/// All settings are one text. Each line has key, space, value. The record stores the text unchanged, because a NIC has
/// hundreds of settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DeviceSettings(String);

/// Value of a setting that the driver supports, but that a read did not return. Plans do not restore a setting that was
/// recorded with this value.
pub const UNREADABLE: &str = "?";

/// Key of a driver's flow rules.
pub const FLOW_RULES: &str = "ethtool/rules";

impl DeviceSettings {
    /// Adds a setting. Ignores a setting that has its default value.
    pub fn set(&mut self, key: &str, value: &str) {
        if !is_default(key, value) {
            self.0.extend([key, " ", value, "\n"]);
        }
    }

    /// Returns the settings in the order of their addition. Settings with default values are missing.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.lines().filter_map(|line| line.split_once(' '))
    }

    /// Returns true if the setting `key` is `value`. `key` and `value` are a pair that [`Self::lacking`] returned.
    pub fn has(&self, key: &str, value: &str) -> bool {
        self.get(key).or(default_of(key)) == Some(value)
    }

    fn get(&self, key: &str) -> Option<&str> {
        self.iter()
            .find(|(it, _)| *it == key)
            .map(|(_, value)| value)
    }

    /// Returns the keys and values to set so that `present` becomes equal to these settings. Skips a key in three
    /// cases:
    ///
    /// - The key has no default, and `self` or `present` lacks it: the driver does not support the setting.
    /// - The value in `self` is [`UNREADABLE`].
    /// - The value in `self` is the default, and the value in `present` is [`UNREADABLE`].
    pub fn lacking<'a>(&'a self, present: &'a Self) -> Vec<(&'a str, &'a str)> {
        if self == present {
            return vec![];
        }
        let added = present.iter().filter(|(key, _)| self.get(key).is_none());
        let added = added.filter_map(|(key, _)| Some((key, default_of(key)?)));
        let all = self.iter().chain(added);
        let lacking = all.filter(|(key, value)| {
            let now = present.get(key).or(default_of(key));
            let is_known = now != Some(UNREADABLE) || default_of(key) != Some(value);
            *value != UNREADABLE && is_known && now.is_some_and(|now| now != *value)
        });
        lacking.collect()
    }
}

/// Returns a setting's default value. Returns `None` if the setting has no general default. The defaults of byte queue
/// limits are from `DQL_MAX_LIMIT` (`include/linux/dynamic_queue_limits.h`) and `dql_init()`.
fn default_of(key: &str) -> Option<&'static str> {
    if key.starts_with("tcx/") || key == FLOW_RULES {
        return Some("");
    }
    match key.strip_prefix("queues/")?.rsplit('/').next()? {
        "limit_max" => Some("1879048192"),
        "hold_time" => Some("1000"),
        _ => Some("0"),
    }
}

fn is_default(key: &str, value: &str) -> bool {
    match default_of(key) {
        // the length of a mask of CPUs depends on the machine's number of CPUs
        Some("0") => value.bytes().all(|it| matches!(it, b'0' | b',')),
        default => default == Some(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(list: &[(&str, &str)]) -> DeviceSettings {
        let mut settings = DeviceSettings::default();
        for (key, value) in list {
            settings.set(key, value);
        }
        settings
    }

    #[test]
    fn only_changed_settings_are_set() {
        let before = settings(&[
            ("gro_flush_timeout", "0"),
            ("threaded", "0"),
            ("queues/rx-0/rps_cpus", "00000000,00000000"),
            ("queues/tx-0/xps_cpus", "3"),
            ("queues/tx-0/byte_queue_limits/limit_max", "1879048192"),
            ("tcx/ingress", "12"),
        ]);
        let present = settings(&[
            ("gro_flush_timeout", "20"),
            ("queues/rx-0/rps_cpus", "00000000,00000001"),
            ("queues/tx-0/byte_queue_limits/limit_max", "1"),
            ("tcx/egress", "13"),
            ("ethtool/coalesce", "00000001"),
        ]);
        assert_eq!(
            before.lacking(&present),
            [
                ("gro_flush_timeout", "0"),
                ("queues/tx-0/xps_cpus", "3"),
                ("tcx/ingress", "12"),
                ("queues/rx-0/rps_cpus", "0"),
                ("queues/tx-0/byte_queue_limits/limit_max", "1879048192"),
                ("tcx/egress", ""),
            ]
        );
        assert_eq!(before.lacking(&before.clone()), []);
    }
}
