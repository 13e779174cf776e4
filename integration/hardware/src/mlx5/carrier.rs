// SPDX-License-Identifier: Apache-2.0
//! The carrier of a function, and the states on which it depends.

use super::{
    event_queue::{Event, port_change},
    fields::{Field, field},
    function::Function,
    vport::ADMIN_DOWN,
};

const ADMIN_STATE: Field = field(0x78, 4);
const STATE: Field = field(0x7c, 4);
const STATE_UP: u64 = 1;

impl Function {
    /// Returns true if frames pass: the link is up, and the driver has not switched the port off.
    pub fn has_carrier(&self) -> bool {
        self.link.is_up && self.ports.is_enabled() && self.vport.admin_state != ADMIN_DOWN
    }

    /// Changes a state on which the carrier depends. The driver gets an event if the carrier changes.
    pub fn change_link(&mut self, change: impl FnOnce(&mut Function)) {
        let before = self.has_carrier();
        change(self);
        let subtype = match self.has_carrier() {
            now if now == before => return,
            true => port_change::ACTIVE,
            false => {
                self.is_aggregated = false;
                port_change::DOWN
            }
        };
        // the upper 4 bits of byte 8 are the port's number
        self.report(Event::Port, subtype, &[0, 0, 0, 0, 0, 0, 0, 0, 1 << 4]);
    }

    /// `QUERY_VPORT_STATE`.
    pub(super) fn query_vport_state(&self, output: &mut [u8]) {
        ADMIN_STATE.put(output, self.vport.admin_state);
        let state = if self.has_carrier() { STATE_UP } else { 0 };
        STATE.put(output, state);
    }

    /// `MODIFY_VPORT_STATE`.
    pub(super) fn modify_vport_state(&mut self, input: &[u8]) {
        let admin_state = ADMIN_STATE.get(input);
        self.change_link(|it| it.vport.admin_state = admin_state);
    }
}
