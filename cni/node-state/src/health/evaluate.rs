// SPDX-License-Identifier: Apache-2.0
//! Decides whether a device is usable.
//!
//! | observation | verdict |
//! |---|---|
//! | `rdma-cni` is moving the device | unknown: the health does not change |
//! | the function exists, its RDMA device does not exist | unhealthy |
//! | a port of its RDMA device is active | healthy |
//! | InfiniBand without an active port | unhealthy; a VF that is down on the host is as healthy as its PF |
//! | Ethernet, its netdev is up and has no carrier | unhealthy |
//! | Ethernet, its netdev has a carrier, and no observed port is active | unhealthy |
//! | its netdev has a carrier, and the daemon cannot observe the ports | healthy |
//! | its netdev is administratively down | healthy, because `rdma-cni` brings it up; but unhealthy if its PF is unhealthy |
//! | eRDMA without a parent, its netdev is in no namespace | unhealthy |
//! | its netdev is in a namespace that the daemon cannot observe | unknown: no change; but unhealthy if its PF is unhealthy |
//! | healthy otherwise, but one of its error counters grows faster than the threshold | unhealthy |
//! | healthy otherwise, but its driver or its PCI link reports an error (`nic_faults`) | unhealthy |
//! | healthy otherwise, but unhealthy according to the fabric watch (`unreachable`) | unhealthy |
//!
//! For a port of a bond, the netdev is the bond. A virtual function (VF) shares the wire and the firmware of its
//! physical function (PF). A VF whose own port is active stays healthy while its PF has no link.

use super::damper::{Fault, Verdict};
use rdma_netns::{HcaPort, LinkType};

/// State of an active port (`IB_PORT_ACTIVE` of `enum ib_port_state`).
pub const ACTIVE: u8 = 4;

/// Observed state of a PCI function or auxiliary device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceState {
    /// Pod that has the device; `None`: the device is on the host.
    pub pod: Option<String>,
    /// True while `rdma-cni` moves the device into a pod or back.
    pub moving: bool,
    /// Name of the RDMA device.
    pub rdma: Option<String>,
    /// Netdevs of the device, without representors of other functions. For a port of a bond: the bond.
    pub netdevs: Vec<Carrier>,
    /// True if the RDMA device has no parent in sysfs, and its netdev is in no namespace. The kernel is then removing
    /// the netdev's function.
    pub netdev_is_gone: bool,
    /// Ports of the RDMA device. Empty: the daemon cannot observe the ports.
    pub ports: Vec<HcaPort>,
}

/// Link state of a netdev.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Carrier {
    /// Name of the netdev in its namespace.
    pub name: String,
    /// True if the netdev is administratively up.
    pub up: bool,
    /// True if the netdev has a carrier.
    pub carrier: bool,
    /// Link type.
    pub link_type: LinkType,
}

/// Returns the verdict on a device. `physical` is the verdict on the device's physical function, if it has one.
pub fn evaluate(state: &DeviceState, physical: Option<&Verdict>) -> Verdict {
    if state.moving {
        return Verdict::Unknown("rdma-cni is moving it".into());
    }
    let Some(rdma) = &state.rdma else {
        return down("it has no RDMA device", true);
    };
    if state.ports.iter().any(|port| port.state == ACTIVE) {
        return Verdict::Up;
    }
    let port = state.ports.first();
    if let Some(port) = port
        && port.link_type == LinkType::Infiniband
    {
        if physical.is_some() && state.pod.is_none() && port.state <= 1 {
            return or_as(physical, Verdict::Up);
        }
        let state = state_name(port.state);
        return down(&format!("port {} of {rdma} is {state}", port.number), false);
    }
    let up = || state.netdevs.iter().filter(|netdev| netdev.up);
    if let Some(netdev) = up().find(|netdev| netdev.carrier) {
        return match port {
            None => Verdict::Up,
            Some(port) => {
                let (number, state) = (port.number, state_name(port.state));
                let reason = format!(
                    "port {number} of {rdma} is {state}, though {} has carrier",
                    netdev.name
                );
                down(&reason, false)
            }
        };
    }
    if let Some(netdev) = up().next() {
        return down(&format!("{} has no carrier", netdev.name), true);
    }
    if state.netdev_is_gone {
        return down("its RDMA device has lost its only netdev", true);
    }
    if state.netdevs.is_empty() {
        let place = state.pod.as_deref().map_or_else(
            || "its netdev is in a network namespace that the daemon does not watch".into(),
            |pod| format!("the daemon cannot observe its netdev in pod {pod}"),
        );
        return or_as(physical, Verdict::Unknown(place));
    }
    or_as(physical, Verdict::Up)
}

/// Returns `verdict`. For a usable device with `errors`, returns a fault with the reason `errors` instead.
pub fn with_errors(verdict: Verdict, errors: Option<&str>) -> Verdict {
    match (verdict, errors) {
        // no polling: a later reading of the error counters or reports shows the end of this fault
        (Verdict::Up, Some(reason)) => down(reason, true),
        (verdict, _) => verdict,
    }
}

/// Returns `own`. If the physical function is down, returns the physical function's fault instead.
fn or_as(physical: Option<&Verdict>, own: Verdict) -> Verdict {
    match physical {
        Some(Verdict::Down(fault)) => {
            let reason = format!("its physical function: {}", fault.reason);
            down(&reason, fault.end_is_reported)
        }
        _ => own,
    }
}

fn down(reason: &str, end_is_reported: bool) -> Verdict {
    Verdict::Down(Fault {
        reason: reason.to_owned(),
        end_is_reported,
    })
}

/// Describes a port's state. The numbers are those of `state_show()` (`drivers/infiniband/core/sysfs.c`).
fn state_name(state: u8) -> &'static str {
    match state {
        1 => "down",
        2 => "initializing: no subnet manager has brought it up",
        3 => "armed: the subnet manager has not activated it",
        ACTIVE => "active",
        5 => "in the state ACTIVE_DEFER: its link is down and may recover",
        _ => "in no known state",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use LinkType::{Ether, Infiniband};

    fn state(netdev: Option<(bool, bool)>, port: Option<u8>, link_type: LinkType) -> DeviceState {
        DeviceState {
            rdma: Some("mlx5_0".into()),
            netdevs: netdev
                .map(|(up, carrier)| Carrier {
                    name: "eth1".into(),
                    up,
                    carrier,
                    link_type,
                })
                .into_iter()
                .collect(),
            ports: port
                .map(|state| HcaPort {
                    number: 1,
                    state,
                    link_type,
                    gids: 0,
                })
                .into_iter()
                .collect(),
            ..DeviceState::default()
        }
    }

    #[track_caller]
    fn is(state: &DeviceState, physical: Option<&Verdict>, expected: &str) {
        let text = match evaluate(state, physical) {
            Verdict::Up => "up".to_owned(),
            Verdict::Down(fault) => format!("down: {}", fault.reason),
            Verdict::Unknown(why) => format!("unknown: {why}"),
        };
        assert_eq!(text, expected, "{state:?}");
    }

    #[test]
    fn an_ethernet_device_is_as_its_wire() {
        for (netdev, port, expected) in [
            (Some((true, true)), Some(4), "up"),
            (Some((true, false)), Some(1), "down: eth1 has no carrier"),
            (Some((true, false)), None, "down: eth1 has no carrier"),
            // a port of a bond without a carrier: the RDMA device belongs to the bond, and its port is active
            (Some((true, false)), Some(4), "up"),
            // a virtual function on the host, which no pod has yet
            (Some((false, false)), Some(1), "up"),
            (
                Some((true, true)),
                Some(1),
                "down: port 1 of mlx5_0 is down, though eth1 has carrier",
            ),
            (Some((true, true)), None, "up"),
            (None, Some(4), "up"),
            (
                None,
                Some(1),
                "unknown: its netdev is in a network namespace that the daemon does not watch",
            ),
        ] {
            is(&state(netdev, port, Ether), None, expected);
        }
    }

    #[test]
    fn a_device_whose_netdev_is_gone_is_down() {
        let gone = DeviceState {
            netdev_is_gone: true,
            ..state(None, Some(1), Ether)
        };
        let expected = "down: its RDMA device has lost its only netdev";
        is(&gone, None, expected);
    }

    #[test]
    fn an_infiniband_device_is_as_its_port() {
        let down = "down: port 1 of mlx5_0 is down";
        let init = "down: port 1 of mlx5_0 is initializing: no subnet manager has brought it up";
        // the state of an InfiniBand port decides, whatever the state of the IPoIB netdev
        for netdev in [None, Some((false, false)), Some((true, true))] {
            is(&state(netdev, Some(4), Infiniband), None, "up");
            is(&state(netdev, Some(1), Infiniband), None, down);
            is(&state(netdev, Some(2), Infiniband), None, init);
        }
    }

    #[test]
    fn a_function_that_is_not_set_up_is_as_its_physical_one() {
        let broken = super::down("eth0 has no carrier", true);
        let inherited = "down: its physical function: eth0 has no carrier";
        for quiet in [
            state(Some((false, false)), Some(1), Ether),
            state(None, None, Ether),
            state(None, Some(1), Infiniband),
        ] {
            is(&quiet, Some(&broken), inherited);
        }
        is(&state(None, Some(1), Infiniband), Some(&Verdict::Up), "up");
        is(
            &state(Some((true, true)), Some(4), Ether),
            Some(&broken),
            "up",
        );
        let in_pod = DeviceState {
            pod: Some("team/train-0".into()),
            ..state(None, Some(1), Infiniband)
        };
        is(
            &in_pod,
            Some(&Verdict::Up),
            "down: port 1 of mlx5_0 is down",
        );
    }

    #[test]
    fn errors_count_where_the_link_is_well() {
        let errors = Some("symbol_error grew");
        let unknown = Verdict::Unknown("rdma-cni is moving it".into());
        let broken = super::down("eth1 has no carrier", true);
        for (link, expected) in [
            (Verdict::Up, super::down("symbol_error grew", true)),
            (unknown.clone(), unknown),
            (broken.clone(), broken),
        ] {
            assert_eq!(with_errors(link.clone(), None), link);
            assert_eq!(with_errors(link, errors), expected);
        }
    }

    #[test]
    fn a_device_without_its_rdma_device_is_down_unless_it_moves() {
        let mut gone = DeviceState {
            rdma: None,
            ..state(Some((true, true)), None, Ether)
        };
        is(&gone, None, "down: it has no RDMA device");
        gone.moving = true;
        is(&gone, None, "unknown: rdma-cni is moving it");
    }
}
