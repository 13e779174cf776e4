// SPDX-License-Identifier: Apache-2.0
//! The status of a command that was delivered.

/// `MLX5_CMD_STAT_*`: the reason why a command failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The command is unknown.
    Opcode = 2,
    /// A field has a value that is not allowed.
    Parameter = 3,
    /// The object does not exist.
    Resource = 5,
    /// A limit is reached: the number of objects of the requested kind, of the memory keys' pages, or of a queue pair's
    /// multicast groups.
    Limit = 8,
    /// An index is beyond its table.
    Index = 0xa,
    /// The input is too short.
    InputLength = 0x50,
}
