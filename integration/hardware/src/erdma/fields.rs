// SPDX-License-Identifier: Apache-2.0
//! Fields of registers, commands and queue entries. Bytes beyond the end count as zero.

/// Bits `high` to `low` of `value`, as `GENMASK(high, low)` names them.
pub const fn bits(value: u64, high: u32, low: u32) -> u64 {
    (value >> low) & (u64::MAX >> (63 - (high - low)))
}

/// [`bits`] of a number of 32 bits.
pub const fn bits32(value: u32, high: u32, low: u32) -> u32 {
    bits(value as u64, high, low) as u32
}

/// `N` bytes at `at`.
pub fn bytes<const N: usize>(from: &[u8], at: usize) -> [u8; N] {
    let mut value = [0; N];
    if let Some(rest) = from.get(at..) {
        let len = rest.len().min(N);
        value[..len].copy_from_slice(&rest[..len]);
    }
    value
}

/// The little-endian number of 32 bits at `at`.
pub fn le32(from: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes(from, at))
}

/// The little-endian number of 64 bits at `at`.
pub fn le64(from: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes(from, at))
}
