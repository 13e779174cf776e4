// SPDX-License-Identifier: Apache-2.0
//! Section `erdma` of the daemon's own format. `docs/device-plugin-conf.md` describes its fields.

use super::{Device, selectors};
use crate::{
    Erdma,
    erdma::{Origin, Patterns},
};
use ::erdma::{
    conf::{BringUp, DriverMode, NicAddress},
    metadata::{Base, unusable},
};
use conf_reader::{Field, Number, Wrong, optional};
use serde::{Deserialize, Deserializer};
use std::ops::RangeInclusive;

/// Smallest MTU that IPv6 allows (RFC 8200).
const MIN_MTU: u32 = 1280;
const MAX_MTU: u32 = 65_535;
pub(crate) const MTU: RangeInclusive<u32> = MIN_MTU..=MAX_MTU;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Section {
    prefer_driver: Option<DriverMode>,
    reload_driver: Option<bool>,
    #[serde(rename = "exposedLocalERIs")]
    exposed: Patterns,
    #[serde(rename = "configureNICs")]
    configure_nics: Option<bool>,
    #[serde(rename = "jumboFrameMTU")]
    mtu: Option<Number<MIN_MTU, MAX_MTU>>,
    #[serde(deserialize_with = "metadata")]
    metadata: Option<Base>,
    addresses: Option<Vec<NicAddress>>,
    devices: Option<Vec<Device>>,
}

impl Section {
    /// Checks the section. Adds remarks about fields that have no effect.
    pub(super) fn checked(
        self,
        field: &Field<'_>,
        remarks: &mut Vec<String>,
    ) -> Result<Erdma, Wrong> {
        let defaults = Erdma::default();
        let configures = self.configure_nics.unwrap_or(true);
        for name in ["jumboFrameMTU", "addresses"] {
            let field = field.at(name);
            if field.is_there() && !configures {
                let place = field.place();
                remarks.push(format!("{place}: has no effect with configureNICs: false"));
            }
        }
        let list = field.at("addresses");
        let addresses = list.each(self.addresses.unwrap_or_default(), checked)?;
        no_mac_twice(&addresses, &list)?;
        let metadata = self.metadata.map(|base| base.to_string());
        let metadata = metadata.unwrap_or(defaults.metadata);
        let bring_up = BringUp {
            metadata: metadata.clone(),
            mtu: self.mtu.map_or(BringUp::default().mtu, |mtu| mtu.0),
            addresses,
        };
        Ok(Erdma {
            origin: Origin::User,
            devices: match self.devices {
                None => defaults.devices,
                devices => selectors(devices, &field.at("devices"))?,
            },
            prefer_driver: self.prefer_driver,
            reload_driver: self.reload_driver.unwrap_or(defaults.reload_driver),
            exposed: self.exposed.0,
            metadata,
            bring_up: configures.then_some(bring_up),
        })
    }
}

/// Checks that a NIC can use the address and the gateway.
fn checked(nic: NicAddress, field: &Field<'_>) -> Result<NicAddress, Wrong> {
    let (address, gateway) = (nic.address, nic.gateway);
    let Some(why) = unusable(address, gateway) else {
        return Ok(nic);
    };
    let value = match gateway {
        Some(gateway) if unusable(address, None).is_none() => format!("gateway is {gateway}"),
        _ => format!("address is {address}"),
    };
    Err(field.refused(format!(
        "the {value}, {why}; write the address and gateway that the NIC has in its VPC"
    )))
}

/// Checks that the list has each NIC's MAC address only once.
fn no_mac_twice(nics: &[NicAddress], list: &Field<'_>) -> Result<(), Wrong> {
    let is_there = |index: &usize| nics[..*index].iter().any(|it| it.mac == nics[*index].mac);
    match (0..nics.len()).find(is_there) {
        None => Ok(()),
        Some(index) => {
            let mac = list.element(index).at("mac");
            Err(mac.wrong("must appear only once in addresses"))
        }
    }
}

fn metadata<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Base>, D::Error> {
    let expected = "http:// and a host, with an optional port, as http://100.100.100.200";
    optional(deserializer, expected, |text| text.parse().ok())
}
