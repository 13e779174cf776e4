// SPDX-License-Identifier: Apache-2.0
//! Binds the loaded driver to functions that are without a driver.
//!
//! In its probe, the driver searches the initial network namespace for the function's netdev. If the netdev is in
//! another namespace, the driver defers the probe (`erdma_enum_and_get_netdev()`,
//! `drivers/infiniband/hw/erdma/erdma_main.c`). The kernel repeats deferred probes whenever any driver is bound to any
//! device (`driver_deferred_probe_trigger()`, `drivers/base/dd.c`). It does not repeat them when a netdev returns from
//! a pod.
//!
//! Sysfs does not show which netdev belongs to a function, because the netdev's MAC is only in the function's
//! registers. When a netdev without an RDMA device appears, the daemon therefore binds every function with a deferred
//! probe. If the function's netdev is still missing, the driver defers the probe again. While a netdev on the host has
//! the MAC of a pod, the daemon binds no function ([`super::held`]).
//!
//! A function has no deferred probe if an administrator has unbound it, or if its probe failed. The daemon does not
//! bind such a function.

use super::{Problem, State};
use crate::conf::DRIVER;
use rdma_netns::{DeviceAddress, HardwareAddress, Inventory};
use std::{collections::BTreeSet, io};

/// A netdev that the driver may find in its probe: the netdev's function and present MAC.
pub type Candidate = (DeviceAddress, HardwareAddress);

/// Returns the netdevs in this program's namespace that have a function and no RDMA device.
pub fn candidates(inventory: &Inventory) -> BTreeSet<Candidate> {
    let functions = inventory.functions.iter();
    let paired: BTreeSet<_> = functions
        .filter_map(|it| it.netdev_function.as_ref())
        .collect();
    let bare = inventory
        .functions
        .iter()
        .filter(|it| it.hcas.is_empty() && !paired.contains(&it.device.address));
    bare.flat_map(|it| {
        let netdevs = it.netdevs.iter();
        netdevs.map(|netdev| (it.device.address.clone(), netdev.mac.clone()))
    })
    .collect()
}

/// Functions and netdevs of the last attempt to bind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Tried {
    deferred: Vec<DeviceAddress>,
    candidates: BTreeSet<Candidate>,
}

/// Reason why a function is unbound while its netdev is missing.
const WAITS: &str = "the driver's probe waits for the netdev with the function's MAC, and the daemon binds the driver \
                     when this netdev is on the host";

/// Returns a problem about the functions that have no driver. If some of these functions have a deferred probe, the
/// problem is only about them. Returns `None` if all functions have a driver.
pub fn waiting(state: &State) -> Option<Problem> {
    let by_hand = |function: &DeviceAddress| {
        format!("bind it on the node: echo {function} >/sys/bus/pci/drivers/{DRIVER}/bind")
    };
    let first = state.unbound.first()?;
    let deferred = state.deferred();
    let (functions, why) = match (&state.deferred, &*deferred) {
        (None, _) => {
            let why = "the daemon does not know whether its probe is deferred, as \
                       /sys/kernel/debug/devices_deferred cannot be read";
            (&state.unbound, format!("{why}; {}", by_hand(first)))
        }
        (Some(_), []) => {
            let why = "its probe is not deferred: the probe failed (see dmesg), or an administrator unbound the \
                       driver, so the daemon does not bind it";
            (&state.unbound, format!("{why}; {}", by_hand(first)))
        }
        (Some(_), [first, ..]) => {
            let why = match &state.not_writable {
                None => WAITS.to_owned(),
                Some(error) => format!(
                    "the driver's probe waits for the netdev with the function's MAC, and the daemon cannot bind the \
                     driver ({error}): when this netdev is on the host, {}",
                    by_hand(first)
                ),
            };
            (&deferred, why)
        }
    };
    problem(functions, &why)
}

fn problem(unbound: &[DeviceAddress], why: &str) -> Option<Problem> {
    let (function, others) = unbound.split_first()?;
    Some(Problem::Unbound {
        function: function.clone(),
        why: why.to_owned(),
        others: others.to_vec(),
    })
}

/// Functions without the driver, and the daemon's attempts to bind them.
#[derive(Debug, Default)]
pub struct Bindings {
    /// Functions without the driver at the last observation.
    unbound: Vec<DeviceAddress>,
    tried: Tried,
    /// Error of the kernel at the last attempt. The daemon tries again only after a change.
    refused: Option<String>,
    /// Functions that the last attempt bound. Sysfs shows a function as bound already during its probe, and the driver
    /// may still defer the probe.
    bound: Vec<DeviceAddress>,
}

impl Bindings {
    /// Returns true if a function without a driver was not among those of the last observation. A function is also
    /// without a driver for a moment while a program loads or unloads the driver.
    pub fn has_news(&self, state: &State) -> bool {
        let mut unbound = state.unbound.iter();
        unbound.any(|it| !self.unbound.contains(it))
    }

    /// Binds the functions with a deferred probe if a netdev or function has appeared since the last attempt.
    ///
    /// - `hold` keeps pods' netdevs in their namespaces until its returned value is dropped.
    /// - `bind` binds the driver to one function. It returns true if the driver is bound afterwards, and false if the
    ///   driver deferred the probe again.
    ///
    /// # Errors
    /// At least one function is not bound.
    pub fn settle<H>(
        &mut self,
        state: &State,
        candidates: BTreeSet<Candidate>,
        hold: &dyn Fn() -> Result<H, String>,
        bind: &mut dyn FnMut(&DeviceAddress) -> io::Result<bool>,
    ) -> Result<(), Problem> {
        self.unbound.clone_from(&state.unbound);
        for function in std::mem::take(&mut self.bound) {
            if !self.unbound.contains(&function) {
                log::info!("the eRDMA driver is bound to {function}");
            }
        }
        let deferred = state.deferred();
        self.tried.deferred.retain(|it| deferred.contains(it));
        self.tried.candidates.retain(|it| candidates.contains(it));
        let now = Tried {
            deferred,
            candidates,
        };
        let is_due = state.not_writable.is_none()
            && now != self.tried
            && !now.deferred.is_empty()
            && !now.candidates.is_empty();
        if is_due {
            let _held = match hold() {
                Ok(held) => held,
                Err(why) => {
                    let why = format!("the daemon binds it later: {why}");
                    return problem(&now.deferred, &why).map_or(Ok(()), Err);
                }
            };
            self.refused = None;
            for function in &now.deferred {
                match bind(function) {
                    Ok(true) => {
                        self.bound.push(function.clone());
                        self.unbound.retain(|it| it != function);
                    }
                    Ok(false) => {}
                    Err(error) => {
                        let why = format!("{error}; see dmesg for the driver's messages");
                        self.refused.get_or_insert(why);
                    }
                }
            }
            self.tried = now;
        }
        let left = State {
            unbound: self.unbound.clone(),
            ..state.clone()
        };
        let refused = self.refused.as_deref();
        let refused = refused.and_then(|why| problem(&left.deferred(), why));
        refused.or_else(|| waiting(&left)).map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use std::cell::RefCell;

    const FUNCTION: &str = "0000:21:02.0";

    fn address(text: &str) -> DeviceAddress {
        text.to_owned().try_into().expect("an address")
    }

    fn without(functions: &[&str]) -> State {
        State {
            functions: 2,
            unbound: functions.iter().map(|it| address(it)).collect(),
            deferred: Some(functions.iter().map(|it| address(it)).collect()),
            ..State::default()
        }
    }

    fn netdevs(macs: &[(&str, &str)]) -> BTreeSet<Candidate> {
        let of = |(function, mac): &(&str, &str)| (address(function), mac.parse().expect("a MAC"));
        macs.iter().map(of).collect()
    }

    fn inventory(functions: &Value) -> Inventory {
        serde_json::from_value(json!({"functions": functions})).expect("an inventory")
    }

    const OWN: (&str, &str) = ("0000:00:05.0", "52:54:00:ee:00:09");
    const BACK: (&str, &str) = ("0000:21:01.0", "52:54:00:ee:00:01");

    #[test]
    fn netdevs_that_the_driver_could_find() {
        let inventory = inventory(&json!([
            {"address": "0000:00:05.0", "netdevs": [{"name": "eth0", "mac": OWN.1}]},
            {"address": "0000:21:01.0", "netdevs": [{"name": "eth1", "mac": BACK.1}]},
            // an RDMA device without a parent that is paired with a netdev, and an RDMA device with a parent
            {"address": "0000:41:01.0", "netdevs": [{"name": "eth2", "mac": "52:54:00:ee:00:02"}],
                "hcas": [{"name": "erdma_0"}]},
            {"address": "0000:61:01.0", "netdevs": [{"name": "eth3", "mac": "52:54:00:ee:00:03"}]},
            {"address": "0000:61:02.0", "netdevs": [{"name": "eth3", "mac": "52:54:00:ee:00:03"}],
                "netdev_function": "0000:61:01.0", "hcas": [{"name": "erdma_1"}]},
        ]));
        assert_eq!(candidates(&inventory), netdevs(&[OWN, BACK]));
    }

    /// Calls `settle` once. Returns the functions that it tried to bind, and the problem.
    fn settle_once(
        bindings: &mut Bindings,
        state: &State,
        netdevs: &BTreeSet<Candidate>,
        answer: fn() -> io::Result<bool>,
    ) -> (Vec<String>, String) {
        let tried = RefCell::new(vec![]);
        let settled = bindings.settle(state, netdevs.clone(), &|| Ok(()), &mut |function| {
            tried.borrow_mut().push(function.to_string());
            answer()
        });
        let problem = settled.err().map(|it| it.to_string());
        (tried.into_inner(), problem.unwrap_or_default())
    }

    #[test]
    fn a_function_is_bound_when_a_netdev_returns_and_not_at_every_observation() {
        let mut bindings = Bindings::default();
        let (state, deferred): (State, fn() -> _) = (without(&[FUNCTION]), || Ok(false));
        let none = vec![];
        // the first call tries to bind, because there was no earlier attempt
        let (tried, reported) = settle_once(&mut bindings, &state, &netdevs(&[OWN]), deferred);
        assert_eq!(tried, [FUNCTION]);
        assert!(
            reported.contains("not bound to 0000:21:02.0: the driver's probe waits for the netdev"),
            "{reported}"
        );
        let (tried, again) = settle_once(&mut bindings, &state, &netdevs(&[OWN]), deferred);
        assert_eq!((tried, again), (none.clone(), reported));
        let back = netdevs(&[OWN, BACK]);
        let bound = settle_once(&mut bindings, &state, &back, || Ok(true));
        assert_eq!(bound, (vec![FUNCTION.to_owned()], String::new()));

        // the netdev disappears, and then comes back
        assert_eq!(
            settle_once(&mut bindings, &without(&[]), &back, deferred).0,
            none
        );
        assert_eq!(
            settle_once(&mut bindings, &state, &netdevs(&[OWN]), deferred).0,
            [FUNCTION]
        );
        assert_eq!(
            settle_once(&mut bindings, &state, &back, || Ok(true)).0,
            [FUNCTION]
        );
    }

    #[test]
    fn without_any_netdev_nothing_is_tried() {
        let settled = settle_once(
            &mut Bindings::default(),
            &without(&[FUNCTION]),
            &netdevs(&[]),
            || Ok(true),
        );
        assert_eq!(settled.0, Vec::<String>::new());
        assert!(
            settled
                .1
                .contains("the driver's probe waits for the netdev"),
            "{}",
            settled.1
        );
    }

    #[test]
    fn a_refusal_is_reported_until_a_change() {
        let mut bindings = Bindings::default();
        let state = without(&[FUNCTION, "0000:41:02.0"]);
        let failed: fn() -> _ = || Err(io::Error::from_raw_os_error(nix::libc::EIO));
        let (tried, reported) = settle_once(&mut bindings, &state, &netdevs(&[BACK]), failed);
        assert_eq!(tried, [FUNCTION, "0000:41:02.0"]);
        for words in [
            "Input/output error",
            "see dmesg for the driver's messages",
            "the driver is also not bound to 0000:41:02.0",
        ] {
            assert!(reported.contains(words), "{reported}");
        }
        // the problem must not advise to write to the driver's file `bind`, because this write has just failed
        assert!(!reported.contains("echo"), "{reported}");
        let again = settle_once(&mut bindings, &state, &netdevs(&[BACK]), failed);
        assert_eq!(again, (vec![], reported));
    }

    #[test]
    fn nothing_is_bound_while_a_netdev_can_have_the_mac_of_a_pod() {
        let (mut bindings, state) = (Bindings::default(), without(&[FUNCTION]));
        let settle = |bindings: &mut Bindings, held: Result<(), String>| {
            let mut tried = 0;
            let settled = bindings.settle(&state, netdevs(&[BACK]), &|| held.clone(), &mut |_| {
                tried += 1;
                Ok(true)
            });
            (tried, settled.err().map(|it| it.to_string()))
        };
        let (tried, reported) = settle(&mut bindings, Err("eth1 is not restored yet".into()));
        let reported = reported.expect("a problem");
        assert_eq!(tried, 0);
        assert!(reported.contains("eth1 is not restored yet"), "{reported}");
        // a failed attempt does not count: the next call tries again
        assert_eq!(settle(&mut bindings, Ok(())), (1, None));
    }

    #[test]
    fn functions_that_the_kernel_does_not_show_as_deferred_are_left() {
        let by_hand = "echo 0000:21:02.0 >/sys/bus/pci/drivers/erdma/bind";
        let state = without(&[FUNCTION]);
        let unknown = State {
            deferred: None,
            ..state.clone()
        };
        let unbound = State {
            deferred: Some(BTreeSet::new()),
            ..state.clone()
        };
        let read_only = State {
            not_writable: Some("Read-only file system".into()),
            ..state
        };
        for (state, words) in [
            (unknown, "devices_deferred cannot be read"),
            (unbound, "an administrator unbound the driver"),
            (read_only, "Read-only file system"),
        ] {
            let mut bindings = Bindings::default();
            let (tried, reported) =
                settle_once(&mut bindings, &state, &netdevs(&[BACK]), || Ok(true));
            assert_eq!(tried, [] as [&str; 0], "{words}");
            assert!(
                reported.contains(words) && reported.contains(by_hand),
                "{reported}"
            );
            assert!(!reported.contains(WAITS), "{reported}");
        }
    }
}
