// SPDX-License-Identifier: Apache-2.0
//! Settings of a netdev below `/proc/sys/net`, by name.
//!
//! A node has a netdev for each pod, and each observation reads the 88 settings of all netdevs. [`Sysctls`] therefore
//! stores these settings without allocations, as numbers in the order of their names. A record of a later version may
//! have further settings.

use serde::{Deserialize, Serialize, Serializer};
use std::{borrow::Cow, collections::BTreeMap};

/// Settings by name.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "BTreeMap<Cow<'static, str>, i32>")]
pub struct Sysctls {
    /// Values by index in [`SYSCTLS`].
    values: [Option<i32>; SYSCTLS.len()],
    /// Settings that are not in [`SYSCTLS`].
    others: BTreeMap<Cow<'static, str>, i32>,
}

/// The settings of a netdev below `/proc/sys/net/ipv{4,6}/conf` that netlink reports, sorted by name, each with its
/// index in netlink's list. The index is `IPV4_DEVCONF_*` (`include/uapi/linux/ip.h`), from 1, or `DEVCONF_*`
/// (`include/uapi/linux/ipv6.h`), from 0. The list omits `mtu`, `mc_forwarding` (read only), `stable_secret` and
/// `ioam6_id_wide`.
const DEVCONF: [(&str, usize); 88] = [
    ("ipv4/accept_local", 23),
    ("ipv4/accept_redirects", 4),
    ("ipv4/accept_source_route", 9),
    ("ipv4/arp_accept", 21),
    ("ipv4/arp_announce", 18),
    ("ipv4/arp_evict_nocarrier", 33),
    ("ipv4/arp_filter", 13),
    ("ipv4/arp_ignore", 19),
    ("ipv4/arp_notify", 22),
    ("ipv4/bc_forwarding", 32),
    ("ipv4/bootp_relay", 10),
    ("ipv4/disable_policy", 16),
    ("ipv4/disable_xfrm", 15),
    ("ipv4/drop_gratuitous_arp", 31),
    ("ipv4/drop_unicast_in_l2_multicast", 30),
    ("ipv4/force_igmp_version", 17),
    ("ipv4/forwarding", 1),
    ("ipv4/igmpv2_unsolicited_report_interval", 27),
    ("ipv4/igmpv3_unsolicited_report_interval", 28),
    ("ipv4/ignore_routes_with_linkdown", 29),
    ("ipv4/log_martians", 11),
    ("ipv4/medium_id", 14),
    ("ipv4/promote_secondaries", 20),
    ("ipv4/proxy_arp", 3),
    ("ipv4/proxy_arp_pvlan", 25),
    ("ipv4/route_localnet", 26),
    ("ipv4/rp_filter", 8),
    ("ipv4/secure_redirects", 5),
    ("ipv4/send_redirects", 6),
    ("ipv4/shared_media", 7),
    ("ipv4/src_valid_mark", 24),
    ("ipv4/tag", 12),
    ("ipv6/accept_dad", 27),
    ("ipv6/accept_ra", 3),
    ("ipv6/accept_ra_defrtr", 17),
    ("ipv6/accept_ra_from_local", 33),
    ("ipv6/accept_ra_min_hop_limit", 38),
    ("ipv6/accept_ra_min_lft", 58),
    ("ipv6/accept_ra_mtu", 35),
    ("ipv6/accept_ra_pinfo", 18),
    ("ipv6/accept_ra_rt_info_max_plen", 21),
    ("ipv6/accept_ra_rt_info_min_plen", 49),
    ("ipv6/accept_ra_rtr_pref", 19),
    ("ipv6/accept_redirects", 4),
    ("ipv6/accept_source_route", 24),
    ("ipv6/accept_untracked_na", 57),
    ("ipv6/addr_gen_mode", 47),
    ("ipv6/autoconf", 5),
    ("ipv6/dad_transmits", 6),
    ("ipv6/disable_ipv6", 26),
    ("ipv6/disable_policy", 48),
    ("ipv6/drop_unicast_in_l2_multicast", 40),
    ("ipv6/drop_unsolicited_na", 41),
    ("ipv6/enhanced_dad", 46),
    ("ipv6/force_forwarding", 59),
    ("ipv6/force_mld_version", 16),
    ("ipv6/force_tllao", 28),
    ("ipv6/forwarding", 0),
    ("ipv6/hop_limit", 1),
    ("ipv6/ignore_routes_with_linkdown", 39),
    ("ipv6/ioam6_enabled", 53),
    ("ipv6/ioam6_id", 54),
    ("ipv6/keep_addr_on_down", 42),
    ("ipv6/max_addresses", 15),
    ("ipv6/max_desync_factor", 14),
    ("ipv6/mldv1_unsolicited_report_interval", 30),
    ("ipv6/mldv2_unsolicited_report_interval", 31),
    ("ipv6/ndisc_evict_nocarrier", 56),
    ("ipv6/ndisc_notify", 29),
    ("ipv6/ndisc_tclass", 50),
    ("ipv6/optimistic_dad", 23),
    ("ipv6/proxy_ndp", 22),
    ("ipv6/ra_defrtr_metric", 52),
    ("ipv6/regen_max_retry", 13),
    ("ipv6/router_probe_interval", 20),
    ("ipv6/router_solicitation_delay", 9),
    ("ipv6/router_solicitation_interval", 8),
    ("ipv6/router_solicitation_max_interval", 43),
    ("ipv6/router_solicitations", 7),
    ("ipv6/rpl_seg_enabled", 51),
    ("ipv6/seg6_enabled", 44),
    ("ipv6/seg6_require_hmac", 45),
    ("ipv6/suppress_frag_ndisc", 32),
    ("ipv6/temp_prefered_lft", 12),
    ("ipv6/temp_valid_lft", 11),
    ("ipv6/use_oif_addrs_only", 37),
    ("ipv6/use_optimistic", 34),
    ("ipv6/use_tempaddr", 10),
];

/// The names of the settings that an observation reads by netlink, sorted. The kernel resets these settings when the
/// netdev moves to another namespace.
pub const SYSCTLS: [&str; DEVCONF.len()] = {
    let mut names = [""; DEVCONF.len()];
    let mut place = 0;
    while place < names.len() {
        names[place] = DEVCONF[place].0;
        place += 1;
    }
    names
};

impl Default for Sysctls {
    fn default() -> Self {
        Self::by_place(|_| None)
    }
}

impl Sysctls {
    /// Collects the settings for which `value` returns a number. `value` gets a setting's name and its index in
    /// netlink's list.
    pub(crate) fn by_place(value: impl Fn((&str, usize)) -> Option<i32>) -> Self {
        Self {
            values: DEVCONF.map(value),
            others: BTreeMap::new(),
        }
    }

    /// Returns the value of `name`.
    pub fn get(&self, name: &str) -> Option<&i32> {
        match place(name) {
            Some(place) => self.values[place].as_ref(),
            None => self.others.get(name),
        }
    }

    /// Returns a mutable reference to the value of `name`.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut i32> {
        match place(name) {
            Some(place) => self.values[place].as_mut(),
            None => self.others.get_mut(name),
        }
    }

    /// Sets `name` to `value`, and returns the earlier value.
    pub fn insert(&mut self, name: Cow<'static, str>, value: i32) -> Option<i32> {
        match place(&name) {
            Some(place) => self.values[place].replace(value),
            None => self.others.insert(name, value),
        }
    }

    /// Returns all settings: first those in [`SYSCTLS`], in their order, then all others.
    pub fn iter(&self) -> impl Iterator<Item = (&str, i32)> {
        let known = SYSCTLS.into_iter().zip(self.values);
        let known = known.filter_map(|(name, value)| Some((name, value?)));
        let others = self.others.iter();
        known.chain(others.map(|(name, value)| (&**name, *value)))
    }
}

/// Returns the index of `name` in [`SYSCTLS`].
fn place(name: &str) -> Option<usize> {
    SYSCTLS.binary_search(&name).ok()
}

impl From<BTreeMap<Cow<'static, str>, i32>> for Sysctls {
    fn from(settings: BTreeMap<Cow<'static, str>, i32>) -> Self {
        settings.into_iter().collect()
    }
}

/// Collects settings. If a name occurs more than once, its last value remains.
impl FromIterator<(Cow<'static, str>, i32)> for Sysctls {
    fn from_iter<T: IntoIterator<Item = (Cow<'static, str>, i32)>>(settings: T) -> Self {
        let mut all = Self::default();
        for (name, value) in settings {
            all.insert(name, value);
        }
        all
    }
}

/// Serializes as a map.
impl Serialize for Sysctls {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_has_a_map_in_any_order() {
        let text = r#"{"ipv6/accept_ra":2,"ipv4/rp_filter":1,"of/tomorrow":-3,"ipv4/tomorrow":0}"#;
        let mut settings: Sysctls = serde_json::from_str(text).expect("settings");
        assert!(SYSCTLS.is_sorted());
        assert_eq!(settings.iter().count(), 4);
        assert_eq!(settings.get("ipv6/accept_ra"), Some(&2));
        assert_eq!(settings.get("ipv6/autoconf"), None);
        assert_eq!(settings.insert("ipv6/autoconf".into(), 1), None);
        assert_eq!(settings.insert("ipv4/rp_filter".into(), 0), Some(1));
        let text = serde_json::to_string(&settings).expect("JSON");
        let known = r#"{"ipv4/rp_filter":0,"ipv6/accept_ra":2,"ipv6/autoconf":1"#;
        let others = r#""ipv4/tomorrow":0,"of/tomorrow":-3}"#;
        assert_eq!(text, format!("{known},{others}"));
        let none = serde_json::to_string(&Sysctls::default()).expect("JSON");
        assert_eq!(none, "{}");
    }
}
