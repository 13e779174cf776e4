// SPDX-License-Identifier: Apache-2.0
//! The contexts of queue pairs (`qpc`), which [`super::objects`] stores, and the commands that change them. A context
//! has the same offset in the input of all commands and in the stored input.

use super::fields::{Field, field};

/// `2ERR_QP`.
pub(super) const TO_ERROR: u16 = 0x507;
/// `2RST_QP`.
pub(super) const TO_RESET: u16 = 0x50a;

const AT: usize = 0xc0;
const PATH: usize = AT + 0xc0;
const fn at(offset: usize, width: usize) -> Field {
    field(offset, width).within(AT)
}
pub(super) const STATE: Field = at(0x0, 4);
pub(super) const SERVICE: Field = at(0x8, 8);
pub(super) const PATH_STATE: Field = at(0x13, 2);
pub(super) const DOMAIN: Field = at(0x28, 24);
pub(super) const MTU: Field = at(0x40, 8);
pub(super) const LOG_RECEIVES: Field = at(0x49, 4);
pub(super) const LOG_STRIDE: Field = at(0x4d, 3);
pub(super) const NO_SENDS: Field = at(0x50, 1);
pub(super) const LOG_SENDS: Field = at(0x51, 4);
pub(super) const COUNTERS: Field = at(0x60, 8);
pub(super) const USER_INDEX: Field = at(0x88, 24);
pub(super) const LOG_PAGE: Field = at(0xa3, 5);
pub(super) const PEER: Field = at(0xa8, 24);
pub(super) const PARTITION: Field = field(0x10, 16).within(PATH);
/// The peer's LID.
pub(super) const LID: Field = field(0x30, 16).within(PATH);
pub(super) const TIMEOUT: Field = field(0x40, 5).within(PATH);
/// The index of the function's own RoCE address.
pub(super) const SOURCE: Field = field(0x48, 8).within(PATH);
/// The fields from [`SOURCE`] to the flow label.
pub(super) const ROUTE: Field = field(0x48, 56).within(PATH);
/// The byte offset of the peer's GID.
pub(super) const GID: usize = (PATH + 0x80) / 8;
pub(super) const GID_HIGH: Field = field(0x80, 64).within(PATH);
pub(super) const GID_LOW: Field = field(0xc0, 64).within(PATH);
pub(super) const UDP_PORT: Field = field(0x100, 48).within(PATH);
pub(super) const PORT: Field = field(0x128, 8).within(PATH);
/// The peer's hardware address.
pub(super) const MAC: Field = field(0x130, 48).within(PATH);
pub(super) const READS: Field = at(0x388, 3);
pub(super) const RETRIES: Field = at(0x38d, 3);
pub(super) const RECEIVE_RETRIES: Field = at(0x390, 3);
pub(super) const SEND_POSITION: Field = at(0x3c8, 24);
pub(super) const SEND_COMPLETIONS: Field = at(0x3e8, 24);
pub(super) const PEER_READS: Field = at(0x488, 3);
pub(super) const ATOMIC_MODE: Field = at(0x48c, 4);
pub(super) const MAY_READ: Field = at(0x490, 1);
pub(super) const MAY_WRITE: Field = at(0x491, 1);
pub(super) const MAY_CHANGE: Field = at(0x492, 1);
pub(super) const OFFSET: Field = at(0x494, 6);
pub(super) const RECEIVE_TIMER: Field = at(0x4a3, 5);
pub(super) const RECEIVE_POSITION: Field = at(0x4a8, 24);
pub(super) const RECEIVE_COMPLETIONS: Field = at(0x4e8, 24);
pub(super) const RECORD: Field = at(0x500, 64);
pub(super) const KEY: Field = at(0x540, 32);
pub(super) const RECEIVE_KIND: Field = at(0x565, 3);
/// The shared receive queue of a queue pair whose kind is [`SHARED`].
pub(super) const RECEIVES: Field = at(0x568, 24);
/// `MLX5_SRQ_RQ`.
pub(super) const SHARED: u64 = 1;

/// `MLX5_QP_STATE_*`.
pub(super) mod state {
    pub(in super::super) const RESET: u64 = 0;
    pub(in super::super) const INIT: u64 = 1;
    pub(in super::super) const READY_TO_RECEIVE: u64 = 2;
    pub(in super::super) const READY_TO_SEND: u64 = 3;
    pub(in super::super) const DRAINED: u64 = 5;
    pub(in super::super) const ERROR: u64 = 6;
}

/// `MLX5_QP_ST_*`.
pub(super) mod service {
    pub(in super::super) const RELIABLE: u64 = 0;
    pub(in super::super) const DATAGRAM: u64 = 2;
    pub(in super::super) const QP1: u64 = 8;
}

/// A command that changes the state of a queue pair.
#[derive(Debug)]
pub struct Transition {
    /// The command.
    pub opcode: u16,
    /// The state after the command.
    state: u64,
    /// The fields that the command always sets.
    required: &'static [Field],
}

const fn transition(opcode: u16, state: u64, required: &'static [Field]) -> Transition {
    Transition {
        opcode,
        state,
        required,
    }
}

/// All transitions.
pub const TRANSITIONS: &[Transition] = &[
    // RST2INIT
    transition(
        0x502,
        state::INIT,
        &[
            PATH_STATE,
            PARTITION,
            PORT,
            COUNTERS,
            KEY,
            ATOMIC_MODE,
            MAY_READ,
            MAY_WRITE,
            MAY_CHANGE,
        ],
    ),
    transition(0x50e, state::INIT, &[]), // INIT2INIT
    // INIT2RTR
    transition(
        0x503,
        state::READY_TO_RECEIVE,
        &[
            MTU,
            PEER,
            LID,
            ROUTE,
            GID_HIGH,
            GID_LOW,
            UDP_PORT,
            MAC,
            PEER_READS,
            RECEIVE_TIMER,
            RECEIVE_POSITION,
        ],
    ),
    // RTR2RTS
    transition(
        0x504,
        state::READY_TO_SEND,
        &[TIMEOUT, READS, RETRIES, RECEIVE_RETRIES, SEND_POSITION],
    ),
    transition(0x505, state::READY_TO_SEND, &[]), // RTS2RTS
    transition(0x506, state::READY_TO_SEND, &[]), // SQERR2RTS
    transition(0x508, state::DRAINED, &[]),       // RTS2SQD
    transition(0x50c, state::READY_TO_SEND, &[]), // SQD_RTS
    transition(TO_ERROR, state::ERROR, &[]),
    transition(TO_RESET, state::RESET, &[]),
];

/// `opt_param_mask`, and the fields that its bits select.
const MASK: Field = field(0x80, 32);
const OPTIONAL: &[(u32, Field)] = &[
    (1 << 1, MAY_READ),
    (1 << 2, MAY_CHANGE),
    (1 << 2, ATOMIC_MODE),
    (1 << 3, MAY_WRITE),
    (1 << 4, PARTITION),
    (1 << 5, KEY),
    (1 << 6, RECEIVE_TIMER),
    (1 << 10, PATH_STATE),
    (1 << 13, RECEIVE_RETRIES),
    (1 << 14, TIMEOUT),
    (1 << 16, PORT),
    (1 << 25, COUNTERS),
];

impl Transition {
    /// Changes a context according to the command `input`.
    pub fn apply(&self, context: &mut [u8], input: &[u8]) {
        for field in self.required {
            field.copy(context, input);
        }
        let mask = MASK.get32(input);
        for (_, field) in OPTIONAL.iter().filter(|(bit, _)| mask & bit != 0) {
            field.copy(context, input);
        }
        STATE.put(context, self.state);
    }
}
