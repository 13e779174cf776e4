// SPDX-License-Identifier: Apache-2.0
//! Access to the registers of the physical port (`ACCESS_REG`).

use super::{
    fields::{Field, field, paste},
    function::Function,
    ports::UP,
};

const REGISTER: Field = field(0x50, 16);
const OP_MOD: Field = field(0x30, 16);
const WRITE: u64 = 0;
/// The byte offset of a register in input and output.
const AT: usize = 16;

const PMTU: u64 = 0x5003;
const PTYS: u64 = 0x5004;
const PAOS: u64 = 0x5006;
const PVLC: u64 = 0x500f;

const LOCAL_PORT: Field = field(0x8, 8);
const MAX_MTU: u64 = 9978;
const MTU: Field = field(0x40, 16);
/// 100GBASE-CR4.
const SPEED: u64 = 1 << 20;
const ETHERNET: u64 = 4;
const INFINIBAND: u64 = 1;
/// InfiniBand link width 4X, and speed EDR.
const WIDTH: u64 = 1 << 2;
const EDR: u64 = 32;
const INFINIBAND_MTU: u64 = 4096;
const PAOS_ADMIN: Field = field(0x14, 4);
const PAOS_OPERATIONAL: Field = field(0x1c, 4);
const PAOS_SET_ADMIN: Field = field(0x20, 1);
const DOWN: u64 = 2;

impl Function {
    /// `ACCESS_REG`. A register that the model does not interpret reads as the driver wrote it.
    pub(super) fn access_register(&mut self, input: &[u8], output: &mut [u8]) {
        let (register, is_write) = (REGISTER.get(input), OP_MOD.get(input) == WRITE);
        let value = input.get(AT..).unwrap_or_default();
        let answer: &[(Field, u64)] = match register {
            PTYS if self.place.lid.is_some() => &[
                (LOCAL_PORT, 1),
                (field(0x1d, 3), INFINIBAND),
                (field(0x140, 16), WIDTH),
                (field(0x150, 16), EDR),
            ],
            PMTU if self.place.lid.is_some() => &[
                (LOCAL_PORT, 1),
                (field(0x20, 16), INFINIBAND_MTU),
                (MTU, INFINIBAND_MTU),
                (field(0x60, 16), INFINIBAND_MTU),
            ],
            PTYS => &[
                (LOCAL_PORT, 1),
                (field(0x1d, 3), ETHERNET),
                (field(0x60, 32), SPEED),
                (field(0xc0, 32), SPEED),
                (field(0x120, 32), if self.has_carrier() { SPEED } else { 0 }),
            ],
            PMTU => {
                if is_write {
                    self.ports.mtu = MTU.get(value).min(MAX_MTU);
                }
                &[
                    (LOCAL_PORT, 1),
                    (field(0x20, 16), MAX_MTU),
                    (MTU, self.ports.mtu),
                    (field(0x60, 16), self.ports.mtu),
                ]
            }
            PAOS => {
                if is_write && PAOS_SET_ADMIN.get(value) == 1 && !self.place.is_virtual {
                    let admin = PAOS_ADMIN.get(value);
                    self.change_link(|it| it.ports.admin = admin);
                }
                &[
                    (LOCAL_PORT, 1),
                    (PAOS_ADMIN, self.ports.admin),
                    (PAOS_OPERATIONAL, if self.has_carrier() { UP } else { DOWN }),
                ]
            }
            PVLC => &[(LOCAL_PORT, 1), (field(0x3c, 4), 4)],
            _ => {
                if is_write {
                    self.ports.keep(register, value);
                }
                if let Some(kept) = self.ports.others.get(&register) {
                    paste(output, AT, kept);
                }
                return;
            }
        };
        for (field, value) in answer {
            field.within(AT * 8).put(output, *value);
        }
    }
}
