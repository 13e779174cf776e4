// SPDX-License-Identifier: Apache-2.0
//! The RDMA devices of the whole node that SMC uses (`SMC_NETLINK_GET_DEV_SMCR`, `net/smc/smc_ib.c`). A port's pnet id
//! in SMC can differ from the port's pnet id in the pnet table.

use super::eids::FAMILY;
use crate::{
    netlink::{
        Answers, NetlinkError, attribute, attributes,
        generic::{attributes_of, dump_if_known, dump_of_known},
        text, until_nul,
    },
    rdma::name,
};
use serde::Serialize;

/// `SMC_NETLINK_GET_DEV_SMCR`
const GET_DEV_SMCR: u8 = 6;

/// `SMC_GEN_DEV_SMCR`
const DEV_SMCR: u16 = 6;

/// `SMC_NLA_DEV_*`: attributes of the first port, of the second port, and of the name.
const PORT: u16 = 8;
const PORT2: u16 = 9;
const IB_NAME: u16 = 10;

/// `SMC_NLA_DEV_*` of a port
const PORT_PNET_USR: u16 = 1;
const PORT_PNETID: u16 = 2;
const PORT_STATE: u16 = 4;
const PORT_VALID: u16 = 5;

/// A port of an RDMA device, as SMC sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SmcPort {
    /// The RDMA device.
    pub device: String,
    /// Number of the port, from 1.
    pub port: u8,
    /// Pnet id of the port. `None`: the port has no pnet id.
    pub pnet_id: Option<String>,
    /// True if the pnet id comes from the pnet table, false if it comes from the hardware.
    pub by_user: bool,
    /// True if the port is active.
    pub active: bool,
}

/// Returns all ports, in any namespace. Returns none if the kernel does not report them (before Linux 5.11).
pub fn ports() -> Result<Vec<SmcPort>, NetlinkError> {
    let answers = dump_if_known(FAMILY, GET_DEV_SMCR)?;
    Ok(answers.bodies().flat_map(parse).collect())
}

/// Returns the RDMA devices that SMC uses, in any namespace. Most kernels use only InfiniBand and RoCE devices
/// (`smc_ib_add_dev()`). Returns `None` if the kernel does not report them (before Linux 5.11).
pub fn used_devices() -> Result<Option<Vec<String>>, NetlinkError> {
    let answers = dump_of_known(FAMILY, GET_DEV_SMCR)?;
    let names = |answers: Answers| {
        let devices = answers.bodies().filter_map(device);
        devices.map(|(name, _)| name).collect()
    };
    Ok(answers.map(names))
}

/// Returns the device's name and the device's attributes from an answer.
fn device(body: &[u8]) -> Option<(String, &[u8])> {
    let device = attribute(attributes_of(body), DEV_SMCR)?;
    let name = name::text(until_nul(attribute(device, IB_NAME)?));
    Some((name, device))
}

pub(super) fn parse(body: &[u8]) -> Vec<SmcPort> {
    let Some((name, device)) = device(body) else {
        return vec![];
    };
    let ports = attributes(device).filter_map(|(kind, port)| match kind {
        PORT => parse_port(&name, 1, port),
        PORT2 => parse_port(&name, 2, port),
        _ => None,
    });
    ports.collect()
}

/// Parses a port. Returns `None` if the device does not have the port.
fn parse_port(device: &str, port: u8, bytes: &[u8]) -> Option<SmcPort> {
    let flag = |wanted| attribute(bytes, wanted).is_some_and(|value| value.first() == Some(&1));
    let id = text(attribute(bytes, PORT_PNETID)?)?.trim_end();
    flag(PORT_VALID).then(|| SmcPort {
        device: device.to_owned(),
        port,
        pnet_id: (!id.is_empty()).then(|| id.to_owned()),
        by_user: flag(PORT_PNET_USR),
        active: flag(PORT_STATE),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Recorded from Linux 6.12: rxe0 has the pnet id N0.
    const ANSWER: &str = "060100004c000680050002000100000009000a007278653000000000340008800500\
        010001000000070002004e3000000800030003000000050005000100000005000400\
        010000000800060001000000";

    #[test]
    fn a_device_is_read() {
        let expected = SmcPort {
            device: "rxe0".to_owned(),
            port: 1,
            pnet_id: Some("N0".to_owned()),
            by_user: true,
            active: true,
        };
        let bytes = super::super::recorded(ANSWER);
        assert_eq!(parse(&bytes), [expected]);
        assert_eq!(
            device(&bytes).map(|(name, _)| name),
            Some("rxe0".to_owned())
        );
        for end in 0..bytes.len() {
            assert!(parse(&bytes[..end]).len() <= 1);
        }
    }
}
