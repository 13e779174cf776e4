// SPDX-License-Identifier: Apache-2.0
//! Finds the desired addresses of NICs: in the configuration, in answers of the metadata service, or in the NIC's last
//! configuration by the daemon.

use super::{
    super::metadata::{InvalidBase, Metadata, MetadataError, Pace, unusable},
    State,
    plan::DesiredNic,
};
use crate::conf::{self, NicAddress};
use rdma_netns::HardwareAddress;
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

#[derive(Debug)]
pub(super) struct Sources {
    conf: conf::BringUp,
    metadata: Metadata,
    pace: Pace,
    /// MAC address of the instance's primary NIC. `None`: the service has not answered yet. The inner value is `None`
    /// if the service does not report the address.
    primary: Option<Option<HardwareAddress>>,
    /// Answers of the service since this process started.
    known: BTreeMap<HardwareAddress, NicAddress>,
    /// Failed requests, by MAC address of the NIC.
    unanswered: BTreeMap<HardwareAddress, Unanswered>,
}

/// A request that failed. The daemon repeats it.
#[derive(Clone, Debug)]
struct Unanswered {
    reason: String,
    /// Time until the next request.
    wait: Duration,
    due: Instant,
}

impl Sources {
    /// Returns the sources for `conf`. Sends no request.
    pub(super) fn new(conf: conf::BringUp, pace: Pace) -> Result<Self, InvalidBase> {
        let metadata = Metadata::with_pace(conf.metadata.parse()?, pace);
        Ok(Self {
            conf,
            metadata,
            pace,
            primary: None,
            known: BTreeMap::new(),
            unanswered: BTreeMap::new(),
        })
    }

    /// Returns the desired address of the NIC with the MAC address `mac`: from the configuration, otherwise from the
    /// service, otherwise `last`. If there is no usable address, or the NIC is the primary NIC, the error is the NIC's
    /// state.
    ///
    /// If the service fails as a whole, sets `silent` to the reason. While `silent` is set, sends no request: the
    /// caller's other NICs must not wait for the service, too.
    pub(super) async fn wanted(
        &mut self,
        mac: &HardwareAddress,
        last: Option<DesiredNic>,
        silent: &mut Option<String>,
    ) -> Result<DesiredNic, State> {
        let mtu = self.conf.mtu;
        let of = |it: &NicAddress| DesiredNic {
            address: it.address,
            gateway: it.gateway,
            mtu,
        };
        if let Some(by_hand) = self.conf.addresses.iter().find(|it| it.mac == *mac) {
            return match unusable(by_hand.address, by_hand.gateway) {
                None => Ok(of(by_hand)),
                Some(why) => Err(State::failed(wrong(by_hand, &why))),
            };
        }
        if let Some(known) = self.known.get(mac) {
            return Ok(of(known));
        }
        let unanswered = match self.ask(mac, silent).await {
            Ok(Some(known)) => return Ok(of(&known)),
            Ok(None) => {
                let reason = format!(
                    "according to the metadata service, {mac} is the instance's primary NIC, which the \
                     instance's own set-up configures"
                );
                return Err(State::left_alone(reason));
            }
            Err(unanswered) => unanswered,
        };
        match last {
            Some(last) => {
                log::debug!("{mac}: keeping the last address: {}", unanswered.reason);
                Ok(DesiredNic { mtu, ..last })
            }
            None => Err(State::waiting(unanswered.reason, unanswered.wait)),
        }
    }

    /// Requests the address of the NIC `mac` from the service. Returns the last error until the next request for this
    /// NIC is due ([`Unanswered::due`]), so that calls of `settle` repeat a failed request at growing intervals.
    /// Returns `None` if the NIC is the primary NIC.
    async fn ask(
        &mut self,
        mac: &HardwareAddress,
        silent: &mut Option<String>,
    ) -> Result<Option<NicAddress>, Unanswered> {
        let before = self.unanswered.get(mac);
        if let Some(unanswered) = before.filter(|it| Instant::now() < it.due) {
            return Err(unanswered.clone());
        }
        let wait = before.map_or(self.pace.again, |it| (it.wait * 2).min(self.pace.longest));
        let reason = match silent {
            Some(reason) => reason.clone(),
            None => match self.query_metadata(mac).await {
                Ok(known) => {
                    self.unanswered.remove(mac);
                    let kept = known.iter().map(|it| (mac.clone(), it.clone()));
                    self.known.extend(kept);
                    return Ok(known);
                }
                Err(error @ MetadataError::Unknown { .. }) => {
                    format!("{error}: the cloud knows no NIC with {mac}")
                }
                Err(error) => {
                    let reason = error.to_string();
                    if error.is_of_the_service() {
                        *silent = Some(reason.clone());
                    }
                    reason
                }
            },
        };
        let unanswered = Unanswered {
            reason,
            wait,
            due: Instant::now() + wait,
        };
        self.unanswered.insert(mac.clone(), unanswered.clone());
        Err(unanswered)
    }

    async fn query_metadata(
        &mut self,
        mac: &HardwareAddress,
    ) -> Result<Option<NicAddress>, MetadataError> {
        let primary = match &self.primary {
            Some(primary) => primary,
            None => &*self.primary.insert(self.metadata.primary().await?),
        };
        if primary.as_ref() == Some(mac) {
            return Ok(None);
        }
        self.metadata.nic(mac).await.map(Some)
    }
}

fn wrong(by_hand: &NicAddress, why: &str) -> String {
    let NicAddress {
        mac,
        address,
        gateway,
    } = by_hand;
    let gateway = gateway.map_or(String::new(), |gateway| format!(", gateway {gateway}"));
    format!("the configuration gives {mac} the address {address}{gateway}, {why}")
}
