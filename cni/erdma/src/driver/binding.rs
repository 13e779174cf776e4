// SPDX-License-Identifier: Apache-2.0
//! Functions that the loaded driver is not bound to. The driver looks for the netdev of a function when it probes, in the
//! initial network namespace, and defers the probe while there is none (`erdma_enum_and_get_netdev()`,
//! `drivers/infiniband/hw/erdma/erdma_main.c`). The kernel repeats deferred probes when some driver is bound to some device
//! (`driver_deferred_probe_trigger()`, `drivers/base/dd.c`), and a netdev that returns from a pod binds none.
//!
//! sysfs does not tell which netdev is a function's, as its MAC is in the function's registers. So every unbound function
//! is bound when a netdev without an RDMA device appears. The probe of a function whose netdev is absent is deferred again.

use super::{Problem, State};
use crate::conf::DRIVER;
use rdma_netns::{DeviceAddress, HardwareAddress, Inventory};
use std::{collections::BTreeSet, io};

/// A netdev that the driver could find: its function, and its present MAC.
pub type Candidate = (DeviceAddress, HardwareAddress);

/// The netdevs in this program's namespace that have hardware and no RDMA device, without those of functions that are
/// `held` by a pod: the pod's MAC can be on a netdev that is being restored, and would become the node GUID.
pub fn candidates(inventory: &Inventory, held: &BTreeSet<DeviceAddress>) -> BTreeSet<Candidate> {
    let functions = inventory.functions.iter();
    let paired: BTreeSet<_> = functions
        .filter_map(|it| it.netdev_function.as_ref())
        .collect();
    let bare = inventory.functions.iter().filter(|it| {
        let address = &it.device.address;
        it.hcas.is_empty() && !paired.contains(address) && !held.contains(address)
    });
    bare.flat_map(|it| {
        let netdevs = it.netdevs.iter();
        netdevs.map(|netdev| (it.device.address.clone(), netdev.mac.clone()))
    })
    .collect()
}

/// What was seen at one look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Seen {
    unbound: Vec<DeviceAddress>,
    candidates: BTreeSet<Candidate>,
}

impl Seen {
    /// The functions to bind now, if `before` is what was seen last: all, where a netdev or a function is new.
    fn due(&self, before: &Self) -> &[DeviceAddress] {
        let mut unbound = self.unbound.iter();
        let is_new = !self.candidates.is_subset(&before.candidates)
            || unbound.any(|it| !before.unbound.contains(it));
        match is_new && !self.candidates.is_empty() {
            true => &self.unbound,
            false => &[],
        }
    }
}

/// A function without its netdev.
const WAITS: &str = "its probe waits for a netdev of its MAC in the node's network namespace, and the daemon binds it when \
                     the netdev is back from its pod";

/// The problem of functions that the daemon did not try to bind; none: the driver is bound to all.
pub fn waiting(state: &State) -> Option<Problem> {
    problem(&state.unbound, WAITS)
}

fn problem(unbound: &[DeviceAddress], why: &str) -> Option<Problem> {
    let (function, others) = unbound.split_first()?;
    Some(Problem::Unbound {
        function: function.clone(),
        why: why.to_owned(),
        others: others.to_vec(),
    })
}

/// The functions without the driver, from one look to the next.
#[derive(Debug, Default)]
pub struct Bindings {
    seen: Seen,
    /// What the kernel refused, in words; not tried again before something is new.
    refused: Option<String>,
    /// What was bound at the last look. A probe in progress looks the same, and can be deferred still.
    bound: Vec<DeviceAddress>,
}

impl Bindings {
    /// Whether a function of `state` had the driver at the last look. While the driver is being loaded or unloaded that
    /// passes by itself.
    pub fn has_news(&self, state: &State) -> bool {
        let mut unbound = state.unbound.iter();
        unbound.any(|it| !self.seen.unbound.contains(it))
    }

    /// Binds what is due of `state.unbound`. `bind` binds the driver to one function, and returns whether it is bound
    /// then: the driver may have deferred the probe again.
    ///
    /// # Errors
    /// Some function is not bound.
    pub fn settle(
        &mut self,
        state: &State,
        candidates: BTreeSet<Candidate>,
        bind: &mut dyn FnMut(&DeviceAddress) -> io::Result<bool>,
    ) -> Result<(), Problem> {
        let unbound = state.unbound.clone();
        for function in std::mem::take(&mut self.bound) {
            if !unbound.contains(&function) {
                log::info!("the eRDMA driver is bound to {function}");
            }
        }
        let before = std::mem::replace(
            &mut self.seen,
            Seen {
                unbound,
                candidates,
            },
        );
        let due = self.seen.due(&before).to_vec();
        if !due.is_empty() {
            self.refused = None;
        }
        for function in &due {
            match bind(function) {
                Ok(true) => {
                    self.bound.push(function.clone());
                    self.seen.unbound.retain(|it| it != function);
                }
                Ok(false) => {}
                Err(error) => {
                    let why = format!(
                        "{error}. On the node, echo {function} >/sys/bus/pci/drivers/{DRIVER}/bind does it"
                    );
                    self.refused.get_or_insert(why);
                }
            }
        }
        let why = self.refused.as_deref().unwrap_or(WAITS);
        problem(&self.seen.unbound, why).map_or(Ok(()), Err)
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
            // a pair without a parent, and one with
            {"address": "0000:41:01.0", "netdevs": [{"name": "eth2", "mac": "52:54:00:ee:00:02"}],
                "hcas": [{"name": "erdma_0"}]},
            {"address": "0000:61:01.0", "netdevs": [{"name": "eth3", "mac": "52:54:00:ee:00:03"}]},
            {"address": "0000:61:02.0", "netdevs": [{"name": "eth3", "mac": "52:54:00:ee:00:03"}],
                "netdev_function": "0000:61:01.0", "hcas": [{"name": "erdma_1"}]},
        ]));
        let held = BTreeSet::new();
        assert_eq!(candidates(&inventory, &held), netdevs(&[OWN, BACK]));
        // `rdma-cni` removes the pod's record when it has restored the netdev
        let held = BTreeSet::from([address(BACK.0)]);
        assert_eq!(candidates(&inventory, &held), netdevs(&[OWN]));
    }

    /// One look; which functions were tried, and the problem in words.
    fn look(
        bindings: &mut Bindings,
        state: &State,
        netdevs: &BTreeSet<Candidate>,
        answer: fn() -> io::Result<bool>,
    ) -> (Vec<String>, String) {
        let tried = RefCell::new(vec![]);
        let settled = bindings.settle(state, netdevs.clone(), &mut |function| {
            tried.borrow_mut().push(function.to_string());
            answer()
        });
        let problem = settled.err().map(|it| it.to_string());
        (tried.into_inner(), problem.unwrap_or_default())
    }

    #[test]
    fn a_function_is_bound_when_a_netdev_returns_and_not_at_every_look() {
        let mut bindings = Bindings::default();
        let (state, deferred): (State, fn() -> _) = (without(&[FUNCTION]), || Ok(false));
        let none = vec![];
        // at the start, as nothing is known of what was tried before
        let (tried, told) = look(&mut bindings, &state, &netdevs(&[OWN]), deferred);
        assert_eq!(tried, [FUNCTION]);
        assert!(
            told.contains("not bound to 0000:21:02.0: its probe waits for a netdev"),
            "{told}"
        );
        let (tried, again) = look(&mut bindings, &state, &netdevs(&[OWN]), deferred);
        assert_eq!((tried, again), (none.clone(), told));
        let back = netdevs(&[OWN, BACK]);
        let bound = look(&mut bindings, &state, &back, || Ok(true));
        assert_eq!(bound, (vec![FUNCTION.to_owned()], String::new()));

        // it goes, and comes again
        assert_eq!(look(&mut bindings, &without(&[]), &back, deferred).0, none);
        assert_eq!(
            look(&mut bindings, &state, &netdevs(&[OWN]), deferred).0,
            [FUNCTION]
        );
        assert_eq!(
            look(&mut bindings, &state, &back, || Ok(true)).0,
            [FUNCTION]
        );
    }

    #[test]
    fn without_any_netdev_nothing_is_tried() {
        let look = look(
            &mut Bindings::default(),
            &without(&[FUNCTION]),
            &netdevs(&[]),
            || Ok(true),
        );
        assert_eq!(look.0, Vec::<String>::new());
        assert!(
            look.1.contains("its probe waits for a netdev"),
            "{}",
            look.1
        );
    }

    #[test]
    fn a_refusal_is_told_with_the_command_until_something_is_new() {
        let mut bindings = Bindings::default();
        let state = without(&[FUNCTION, "0000:41:02.0"]);
        let read_only: fn() -> _ = || Err(io::ErrorKind::ReadOnlyFilesystem.into());
        let (tried, told) = look(&mut bindings, &state, &netdevs(&[BACK]), read_only);
        assert_eq!(tried, [FUNCTION, "0000:41:02.0"]);
        for words in [
            "read-only filesystem",
            "echo 0000:21:02.0 >/sys/bus/pci/drivers/erdma/bind",
            "the same goes for 0000:41:02.0",
        ] {
            assert!(told.contains(words), "{told}");
        }
        let again = look(&mut bindings, &state, &netdevs(&[BACK]), read_only);
        assert_eq!(again, (vec![], told));
    }
}
