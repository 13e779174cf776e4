// SPDX-License-Identifier: Apache-2.0
//! Events on a node during a day, while a pod has a function of each NIC.

use crate::node::{Day, Given};
use integration::{lab::NICS, wait};
use nix::sys::signal::Signal;
use std::path::Path;

#[derive(Clone, Copy, Debug)]
pub(super) enum Happening {
    /// The container runtime ends by SIGKILL or SIGTERM, and starts again. The containers continue.
    RuntimeStartsAnew,
    /// Kubelet ends in order or is killed, and starts: its plugins register again.
    KubeletStartsAnew,
    /// The daemon is killed, and starts again.
    DaemonIsKilled,
    /// The daemon reads its configuration and the hardware again (SIGHUP).
    DaemonReloads,
    /// NetworkManager is killed, and starts again.
    NetworkManagerStartsAnew,
    /// A NIC goes down and up: its functions lose their carriers, on the host and in pods.
    NicFlaps,
    /// A NIC is unplugged with its functions and returns with them. A pod has one of the functions. The NIC returns
    /// before or after the removal of the pod.
    NicIsUnplugged,
    /// All processes of a pod are killed, including those of its sandbox; kubelet removes the pod.
    PodIsKilled,
}

impl Happening {
    /// Returns the events of a round, in an order that depends on the round's number.
    pub(super) fn in_the_order_of(round: usize, daemon_is_killed: bool) -> Vec<Self> {
        let of_the_daemon = match daemon_is_killed {
            true => Self::DaemonIsKilled,
            false => Self::DaemonReloads,
        };
        let mut all = vec![
            Self::RuntimeStartsAnew,
            Self::KubeletStartsAnew,
            of_the_daemon,
            Self::NetworkManagerStartsAnew,
            Self::NicFlaps,
            Self::NicIsUnplugged,
            Self::PodIsKilled,
        ];
        // Knuth's generator for MMIX, and the Fisher-Yates shuffle
        let mut state = round as u64;
        for last in (1..all.len()).rev() {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let chosen =
                usize::try_from((state >> 33) % (last as u64 + 1)).expect("a small number");
            all.swap(last, chosen);
        }
        all
    }

    /// Performs the event. Returns the pod that has the functions afterwards: `lives`, or another pod.
    #[track_caller]
    pub(super) fn happens(self, day: &mut Day, lives: Given) -> Given {
        day.report(&format!("{self:?}"));
        let lives = match self {
            Self::RuntimeStartsAnew => {
                let signals = [Signal::SIGKILL, Signal::SIGTERM];
                day.node.runtime.go(signals[day.round % 2]);
                day.node.runtime.come();
                assert!(lives.pod.is_ready(), "{lives:?}");
                lives
            }
            Self::KubeletStartsAnew => {
                let kubelet = &mut day.node.node.kubelet;
                match day.round % 2 {
                    0 => kubelet.kill(),
                    _ => kubelet.stop(),
                }
                kubelet.start();
                lives
            }
            Self::DaemonIsKilled => {
                day.node.node.kill_the_daemon();
                lives
            }
            Self::DaemonReloads => {
                day.node.node.daemon.signal(Signal::SIGHUP);
                lives
            }
            Self::NetworkManagerStartsAnew => {
                day.start_network_manager_anew();
                lives
            }
            Self::NicFlaps => {
                flap(day);
                lives
            }
            Self::NicIsUnplugged => unplug(day, lives),
            Self::PodIsKilled => {
                lives.pod.kill();
                wait::until("the runtime sees it", || {
                    lives.pod.has_ended() && !lives.pod.is_ready()
                });
                day.remove(lives.pod);
                day.settles();
                day.long_lived()
            }
        };
        day.settles();
        day.has_its_own(&lives);
        lives
    }
}

/// The NIC of this round, as an index.
fn nic(day: &Day) -> usize {
    day.round % NICS.len()
}

#[track_caller]
fn flap(day: &Day) {
    let name = NICS[nic(day)];
    let host = &day.node.lab.host;
    host.ip(&format!("link set dev {name} down"));
    day.wait_for_healthy(2);
    host.ip(&format!("link set dev {name} up"));
}

#[track_caller]
fn unplug(day: &mut Day, lives: Given) -> Given {
    let nic = nic(day);
    let netns = lives.pod.netns();
    let unplugged = day.qemu.unplug(nic);
    assert!(!Path::new("/sys/class/net").join(NICS[nic]).exists());
    assert!(!netns.has_link(&format!("rdma{nic}")), "it is in the pod");
    day.wait_for_healthy(2);
    // over the rounds, each NIC is unplugged in both ways
    let comes_back_first = (day.round / NICS.len()) % 2 == 1;
    if comes_back_first {
        day.qemu.plug(&unplugged);
        day.node.lab.furnish(nic);
        day.remove(lives.pod);
    } else {
        day.remove(lives.pod);
        day.qemu.plug(&unplugged);
        day.node.lab.furnish(nic);
    }
    day.settles();
    day.node.before.assert_restored(&day.node.lab.host);
    day.long_lived()
}
