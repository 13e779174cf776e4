// SPDX-License-Identifier: Apache-2.0
//! `erdma` of the daemon's own format.
//!
//! ```yaml
//! erdma:
//!   preferDriver: default      # or compat, ofed; without it the driver stays in its mode
//!   reloadDriver: true         # the module may be loaded anew for another mode
//!   exposedLocalERIs:          # without it all
//!   - i-bp1 erdma_0/erdma_1
//!   - i-* erdma_*
//!   configureNICs: true        # NICs that nobody configured are brought up
//!   jumboFrameMTU: 8500        # bytes, where the NIC can have so much
//!   metadata: http://100.100.100.200
//!   addresses:                 # of NICs that the metadata service is not asked for
//!   - mac: "00:16:3e:01:02:03"
//!     address: 192.168.3.4/24
//!     gateway: 192.168.3.253
//!   devices:                   # as of a resource
//!   - driver: erdma
//! ```

use super::{
    Erdma, Wrong,
    erdma::Origin,
    fields::Fields,
    own::{none_else, selectors},
};
use ::erdma::{
    conf::{BringUp, DriverMode, NicAddress},
    metadata::{Base, unusable},
};
use ipnetwork::Ipv4Network;
use rdma_netns::HardwareAddress;
use std::net::Ipv4Addr;

const KEYS: [&str; 8] = [
    "preferDriver",
    "reloadDriver",
    "exposedLocalERIs",
    "configureNICs",
    "jumboFrameMTU",
    "metadata",
    "addresses",
    "devices",
];
const ADDRESS_KEYS: [&str; 3] = ["mac", "address", "gateway"];

/// Smallest MTU that IPv6 can live with (RFC 8200), and the largest of a netdev.
pub(crate) const MTU: std::ops::RangeInclusive<u32> = 1280..=65_535;

/// Remarks tell of fields that come to nothing.
pub(super) fn read(fields: &Fields<'_>, remarks: &mut Vec<String>) -> Result<Erdma, Wrong> {
    none_else(fields, &KEYS)?;
    let defaults = Erdma::default();
    let metadata = metadata(fields)?.unwrap_or(defaults.metadata);
    let bring_up = BringUp {
        metadata: metadata.clone(),
        mtu: fields
            .number("jumboFrameMTU", *MTU.start(), *MTU.end())?
            .unwrap_or(BringUp::default().mtu),
        addresses: addresses(fields)?,
    };
    let configures = fields.boolean("configureNICs")?.unwrap_or(true);
    if !configures {
        for key in ["jumboFrameMTU", "addresses"] {
            if fields.get(key).is_some() {
                remarks.push(format!(
                    "{}: of no use with configureNICs: false",
                    fields.place_of(key)
                ));
            }
        }
    }
    let modes = DriverMode::ALL.map(|mode| (mode.word(), mode));
    let exposed = fields.texts("exposedLocalERIs")?;
    let exposed = exposed.iter().map(|text| {
        let wrong = |problem| Wrong::new(fields.place_of("exposedLocalERIs"), problem);
        text.parse().map_err(wrong)
    });
    Ok(Erdma {
        origin: Origin::User,
        devices: selectors(fields)?.unwrap_or(defaults.devices),
        prefer_driver: fields.choice("preferDriver", &modes)?,
        reload_driver: fields
            .boolean("reloadDriver")?
            .unwrap_or(defaults.reload_driver),
        exposed: exposed.collect::<Result<_, _>>()?,
        metadata,
        bring_up: configures.then_some(bring_up),
    })
}

fn metadata(fields: &Fields<'_>) -> Result<Option<String>, Wrong> {
    let Some(text) = fields.text("metadata")? else {
        return Ok(None);
    };
    let base = text.parse::<Base>();
    let wrong = |_| {
        fields.wrong(
            "metadata",
            "must be http:// and a host, with a port if need be, as http://100.100.100.200",
        )
    };
    base.map(|base| Some(base.to_string())).map_err(wrong)
}

fn addresses(fields: &Fields<'_>) -> Result<Vec<NicAddress>, Wrong> {
    let mut found: Vec<NicAddress> = Vec::new();
    for fields in fields.objects("addresses")?.unwrap_or_default() {
        let nic = address(&fields)?;
        if found.iter().any(|other| other.mac == nic.mac) {
            return Err(fields.wrong("mac", "must be there once: a NIC has one address"));
        }
        found.push(nic);
    }
    Ok(found)
}

fn address(fields: &Fields<'_>) -> Result<NicAddress, Wrong> {
    none_else(fields, &ADDRESS_KEYS)?;
    let mac = fields.text("mac")?.and_then(|text| {
        let mac: HardwareAddress = text.parse().ok()?;
        (mac.0.len() == 6).then_some(mac)
    });
    let mac = mac.ok_or_else(|| {
        let expected = "must be a NIC's hardware address, 00:16:3e:01:02:03";
        fields.wrong("mac", expected)
    })?;
    let network = fields.text("address")?.and_then(network);
    let network = network.ok_or_else(|| {
        let expected = "must be an IPv4 address with the length of its network's prefix, as \
                        192.168.3.4/24";
        fields.wrong("address", expected)
    })?;
    let gateway: Option<Ipv4Addr> = match fields.text("gateway")? {
        None => None,
        Some(text) => Some(
            text.parse()
                .map_err(|_| fields.wrong("gateway", "must be an IPv4 address"))?,
        ),
    };
    if let Some(why) = unusable(network, gateway) {
        let gateway = gateway.map_or(String::new(), |it| format!(", gateway {it}"));
        let problem = format!("{network}{gateway}, {why}; write what the NIC has in its VPC");
        return Err(Wrong::new(fields.place(), problem));
    }
    Ok(NicAddress {
        mac,
        address: network,
        gateway,
    })
}

/// The prefix has to be there: without it a NIC would be alone in its network.
fn network(text: &str) -> Option<Ipv4Network> {
    let (address, prefix) = text.split_once('/')?;
    Ipv4Network::new(address.parse().ok()?, prefix.parse().ok()?).ok()
}
