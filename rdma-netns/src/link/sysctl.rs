// SPDX-License-Identifier: Apache-2.0
//! Settings of a netdev below `/proc/sys/net`, by name.
//!
//! A node has a netdev for each pod, and each observation reads the 35 settings of all of them. The settings are
//! therefore stored as numbers in the order of their names, without allocations. A record of a later version may have
//! further settings.

use serde::{Deserialize, Serialize, Serializer};
use std::{borrow::Cow, collections::BTreeMap, ops::Index};

/// Settings by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "BTreeMap<Cow<'static, str>, i32>")]
pub struct Sysctls {
    /// Values by index in [`SYSCTLS`]; 0 for missing settings.
    values: Values,
    /// Bit mask of the present settings, by index.
    present: u128,
    /// Settings that are not in [`SYSCTLS`], in the order of their addition.
    others: Vec<(Cow<'static, str>, i32)>,
}

/// The settings of a netdev below `/proc/sys/net/ipv{4,6}/conf` that netlink reports, in order. A move to another
/// namespace resets them. The list omits `mtu`, `mc_forwarding` (read only), `stable_secret` and `ioam6_id_wide`.
pub const SYSCTLS: [&str; 88] = [
    "ipv4/accept_local",
    "ipv4/accept_redirects",
    "ipv4/accept_source_route",
    "ipv4/arp_accept",
    "ipv4/arp_announce",
    "ipv4/arp_evict_nocarrier",
    "ipv4/arp_filter",
    "ipv4/arp_ignore",
    "ipv4/arp_notify",
    "ipv4/bc_forwarding",
    "ipv4/bootp_relay",
    "ipv4/disable_policy",
    "ipv4/disable_xfrm",
    "ipv4/drop_gratuitous_arp",
    "ipv4/drop_unicast_in_l2_multicast",
    "ipv4/force_igmp_version",
    "ipv4/forwarding",
    "ipv4/igmpv2_unsolicited_report_interval",
    "ipv4/igmpv3_unsolicited_report_interval",
    "ipv4/ignore_routes_with_linkdown",
    "ipv4/log_martians",
    "ipv4/medium_id",
    "ipv4/promote_secondaries",
    "ipv4/proxy_arp",
    "ipv4/proxy_arp_pvlan",
    "ipv4/route_localnet",
    "ipv4/rp_filter",
    "ipv4/secure_redirects",
    "ipv4/send_redirects",
    "ipv4/shared_media",
    "ipv4/src_valid_mark",
    "ipv4/tag",
    "ipv6/accept_dad",
    "ipv6/accept_ra",
    "ipv6/accept_ra_defrtr",
    "ipv6/accept_ra_from_local",
    "ipv6/accept_ra_min_hop_limit",
    "ipv6/accept_ra_min_lft",
    "ipv6/accept_ra_mtu",
    "ipv6/accept_ra_pinfo",
    "ipv6/accept_ra_rt_info_max_plen",
    "ipv6/accept_ra_rt_info_min_plen",
    "ipv6/accept_ra_rtr_pref",
    "ipv6/accept_redirects",
    "ipv6/accept_source_route",
    "ipv6/accept_untracked_na",
    "ipv6/addr_gen_mode",
    "ipv6/autoconf",
    "ipv6/dad_transmits",
    "ipv6/disable_ipv6",
    "ipv6/disable_policy",
    "ipv6/drop_unicast_in_l2_multicast",
    "ipv6/drop_unsolicited_na",
    "ipv6/enhanced_dad",
    "ipv6/force_forwarding",
    "ipv6/force_mld_version",
    "ipv6/force_tllao",
    "ipv6/forwarding",
    "ipv6/hop_limit",
    "ipv6/ignore_routes_with_linkdown",
    "ipv6/ioam6_enabled",
    "ipv6/ioam6_id",
    "ipv6/keep_addr_on_down",
    "ipv6/max_addresses",
    "ipv6/max_desync_factor",
    "ipv6/mldv1_unsolicited_report_interval",
    "ipv6/mldv2_unsolicited_report_interval",
    "ipv6/ndisc_evict_nocarrier",
    "ipv6/ndisc_notify",
    "ipv6/ndisc_tclass",
    "ipv6/optimistic_dad",
    "ipv6/proxy_ndp",
    "ipv6/ra_defrtr_metric",
    "ipv6/regen_max_retry",
    "ipv6/router_probe_interval",
    "ipv6/router_solicitation_delay",
    "ipv6/router_solicitation_interval",
    "ipv6/router_solicitation_max_interval",
    "ipv6/router_solicitations",
    "ipv6/rpl_seg_enabled",
    "ipv6/seg6_enabled",
    "ipv6/seg6_require_hmac",
    "ipv6/suppress_frag_ndisc",
    "ipv6/temp_prefered_lft",
    "ipv6/temp_valid_lft",
    "ipv6/use_oif_addrs_only",
    "ipv6/use_optimistic",
    "ipv6/use_tempaddr",
];

#[derive(Clone, Debug, PartialEq, Eq)]
struct Values([i32; SYSCTLS.len()]);

impl Default for Values {
    fn default() -> Self {
        Self([0; SYSCTLS.len()])
    }
}

impl Sysctls {
    /// Sets the setting at the index `place` of [`SYSCTLS`].
    pub(crate) fn set(&mut self, place: usize, value: i32) {
        self.values.0[place] = value;
        self.present |= 1 << place;
    }

    fn has(&self, place: usize) -> bool {
        self.present & (1 << place) != 0
    }

    /// Returns the value of `name`.
    pub fn get(&self, name: &str) -> Option<&i32> {
        match place(name) {
            Some(place) => self.has(place).then(|| &self.values.0[place]),
            None => {
                let mut others = self.others.iter();
                others.find(|(it, _)| it == name).map(|(_, value)| value)
            }
        }
    }

    /// Returns a mutable reference to the value of `name`.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut i32> {
        match place(name) {
            Some(place) => self.has(place).then(|| &mut self.values.0[place]),
            None => {
                let mut others = self.others.iter_mut();
                others.find(|(it, _)| it == name).map(|(_, value)| value)
            }
        }
    }

    /// Returns true if `name` is present.
    pub fn contains_key(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// Sets `name` to `value`, and returns the earlier value.
    pub fn insert(&mut self, name: Cow<'static, str>, value: i32) -> Option<i32> {
        if let Some(present) = self.get_mut(&name) {
            return Some(std::mem::replace(present, value));
        }
        match place(&name) {
            Some(place) => self.set(place, value),
            None => self.others.push((name, value)),
        }
        None
    }

    /// Returns all settings: first those in [`SYSCTLS`], in their order, then all others.
    pub fn iter(&self) -> impl Iterator<Item = (&str, i32)> {
        let known = { 0..SYSCTLS.len() }.filter(|place| self.has(*place));
        let known = known.map(|place| (SYSCTLS[place], self.values.0[place]));
        let others = self.others.iter();
        known.chain(others.map(|(name, value)| (&**name, *value)))
    }

    /// Returns the names of all settings.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.iter().map(|(name, _)| name)
    }

    /// Keeps the settings whose names are `wanted`.
    pub fn retain(&mut self, wanted: impl Fn(&str) -> bool) {
        let kept = self.iter().filter(|(name, _)| wanted(name));
        *self = kept
            .map(|(name, value)| (Cow::from(name.to_owned()), value))
            .collect();
    }

    /// Removes all settings.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Returns true if no setting is present.
    pub fn is_empty(&self) -> bool {
        self.present == 0 && self.others.is_empty()
    }
}

/// Returns the index of `name` in [`SYSCTLS`].
fn place(name: &str) -> Option<usize> {
    SYSCTLS.binary_search(&name).ok()
}

/// Returns the value of a present name.
impl Index<&str> for Sysctls {
    type Output = i32;

    fn index(&self, name: &str) -> &i32 {
        self.get(name)
            .unwrap_or_else(|| panic!("there is no setting {name}"))
    }
}

impl From<BTreeMap<Cow<'static, str>, i32>> for Sysctls {
    fn from(settings: BTreeMap<Cow<'static, str>, i32>) -> Self {
        settings.into_iter().collect()
    }
}

/// Collects settings; the last of equal names counts.
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
        assert_eq!(settings["ipv6/accept_ra"], 2);
        assert_eq!(settings.get("ipv6/autoconf"), None);
        assert_eq!(settings.insert("ipv6/autoconf".into(), 1), None);
        assert_eq!(settings.insert("ipv4/rp_filter".into(), 0), Some(1));
        settings.retain(|name| name != "ipv6/accept_ra");
        let text = serde_json::to_string(&settings).expect("JSON");
        let expected =
            r#"{"ipv4/rp_filter":0,"ipv6/autoconf":1,"ipv4/tomorrow":0,"of/tomorrow":-3}"#;
        assert_eq!(text, expected);
        let none = serde_json::to_string(&Sysctls::default()).expect("JSON");
        assert_eq!(none, "{}");
    }
}
