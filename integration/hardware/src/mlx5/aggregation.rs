// SPDX-License-Identifier: Apache-2.0
//! The switch's side of a link aggregation (LACP of IEEE 802.1AX). The functions of a card whose LACPDUs request
//! aggregation form one aggregate.
//!
//! The switch answers each LACPDU. It sends no LACPDUs by itself, and no timeout ends an aggregation.

use super::{Mac, function::Function};

/// The multicast address of the slow protocols, to which LACP belongs (IEEE 802.3, annex 57A).
const SLOW_PROTOCOLS: Mac = [0x01, 0x80, 0xc2, 0, 0, 2];
/// The Ethernet type of the slow protocols, and the subtype and version of LACP.
const LACP: [u8; 4] = [0x88, 0x09, 1, 1];
const TYPE: usize = 12;
/// Offset of the actor's information. The actor's and the partner's information have the same layout: a type, a length,
/// and 15 bytes.
const ACTOR: usize = 16;
const PARTNER: usize = 36;
const COLLECTOR: usize = 56;
const INFORMATION: usize = 15;
/// Bytes of a frame with a LACPDU.
const LENGTH: usize = 124;
/// Bit in the last byte of the information: the port can be aggregated.
const AGGREGATION: u8 = 1 << 2;
/// The state bits of an aggregated port: active, short timeout, aggregation, synchronized, collecting, distributing.
const IN_AGGREGATE: u8 = 0x3f;
const SWITCH: Mac = [0x52, 0x54, 0, 0xbb, 0xff, 0xff];

/// Returns true if a switch does not forward frames to `target`.
pub(super) fn is_reserved(target: Mac) -> bool {
    target[..5] == SLOW_PROTOCOLS[..5] && target[5] < 16
}

impl Function {
    /// The aggregate to which the function belongs, by the hardware address of its card. Returns `None` if the function
    /// is in no aggregate.
    pub(super) fn aggregate_of(&self) -> Option<Mac> {
        self.is_aggregated.then_some(self.place.card)
    }

    /// Receives a frame that is addressed to the switch itself. Returns the switch's LACPDU if the frame is a LACPDU.
    pub(super) fn aggregate(&mut self, frame: &[u8]) -> Option<Vec<u8>> {
        let is_lacp = frame.starts_with(&SLOW_PROTOCOLS) && frame.get(TYPE..TYPE + 4)? == LACP;
        let actor = frame.get(ACTOR..ACTOR + 2 + INFORMATION)?;
        let state = actor[1 + INFORMATION];
        if !is_lacp || frame.len() < LENGTH {
            return None;
        }
        self.is_aggregated = state & AGGREGATION != 0;
        let [.., high, low] = self.place.card;
        let mut answer = vec![0; LENGTH];
        answer[..6].copy_from_slice(&SLOW_PROTOCOLS);
        answer[6..12].copy_from_slice(&SWITCH);
        answer[TYPE..ACTOR].copy_from_slice(&LACP);
        answer[ACTOR..ACTOR + 4].copy_from_slice(&[1, 20, 0xff, 0xff]);
        answer[ACTOR + 4..ACTOR + 10].copy_from_slice(&SWITCH);
        // the key, the port's priority, number and state
        answer[ACTOR + 10..ACTOR + 17].copy_from_slice(&[
            high,
            low,
            0,
            0xff,
            0,
            self.place.port,
            IN_AGGREGATE,
        ]);
        answer[PARTNER..PARTNER + 2].copy_from_slice(&[2, 20]);
        answer[PARTNER + 2..PARTNER + 2 + INFORMATION].copy_from_slice(&actor[2..]);
        answer[COLLECTOR..COLLECTOR + 2].copy_from_slice(&[3, 16]);
        Some(answer)
    }
}
