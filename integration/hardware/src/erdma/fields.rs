// SPDX-License-Identifier: Apache-2.0
//! Fields of registers, commands and queue entries. Bytes beyond the end of the slice are read as
//! zero.

/// Bits `high` to `low` of `value`, with the arguments of `GENMASK(high, low)`.
pub const fn bits(value: u64, high: u32, low: u32) -> u64 {
    (value >> low) & (u64::MAX >> (63 - (high - low)))
}

/// [`bits`] of a number of 32 bits.
pub const fn bits32(value: u32, high: u32, low: u32) -> u32 {
    bits(value as u64, high, low) as u32
}

/// Returns the `N` bytes at offset `at`.
pub fn bytes<const N: usize>(from: &[u8], at: usize) -> [u8; N] {
    let mut value = [0; N];
    if let Some(rest) = from.get(at..) {
        let len = rest.len().min(N);
        value[..len].copy_from_slice(&rest[..len]);
    }
    value
}

/// The little-endian 32-bit number at offset `at`.
pub fn le32(from: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes(from, at))
}

/// The little-endian 64-bit number at offset `at`.
pub fn le64(from: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes(from, at))
}
