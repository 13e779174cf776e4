// SPDX-License-Identifier: Apache-2.0
//! Fields of commands, contexts and registers. As in `mlx5_ifc.h`, a field has a width in bits and an offset in
//! bits from the start of its structure; the most significant bit is first.

/// The position of a number in a structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    offset: usize,
    width: usize,
}

/// Creates the field of `width` bits, at most 64, at bit `offset`.
pub const fn field(offset: usize, width: usize) -> Field {
    assert!(width > 0 && width <= 64, "a field has 1 to 64 bits");
    Field { offset, width }
}

impl Field {
    /// Returns the field's position in an outer structure that contains this structure at bit `offset`.
    #[must_use]
    pub const fn within(self, offset: usize) -> Field {
        field(self.offset + offset, self.width)
    }

    /// Reads the field. Bits beyond the end of `from` are zero.
    pub fn get(self, from: &[u8]) -> u64 {
        (self.offset..self.offset + self.width).fold(0, |value, bit| {
            let byte = from.get(bit / 8).copied().unwrap_or(0);
            value << 1 | u64::from(byte >> (7 - bit % 8) & 1)
        })
    }

    /// [`Field::get`] of a field of at most 32 bits.
    pub fn get32(self, from: &[u8]) -> u32 {
        self.get(from) as u32
    }

    /// Writes the lowest bits of `value` into the field. Drops bits beyond the end of `into`.
    pub fn put(self, into: &mut [u8], value: u64) {
        for (place, bit) in (self.offset..self.offset + self.width).rev().enumerate() {
            if let Some(byte) = into.get_mut(bit / 8) {
                let mask = 1 << (7 - bit % 8);
                match value >> place & 1 {
                    0 => *byte &= !mask,
                    _ => *byte |= mask,
                }
            }
        }
    }

    /// Copies the field from `from` to `into`.
    pub fn copy(self, into: &mut [u8], from: &[u8]) {
        self.put(into, self.get(from));
    }
}

/// The big-endian 64-bit numbers from byte `at` on.
pub fn numbers(from: &[u8], at: usize) -> impl Iterator<Item = u64> {
    let rest = from.get(at..).unwrap_or_default();
    (rest.chunks_exact(8)).map(|it| {
        it.iter()
            .fold(0, |value, byte| value << 8 | u64::from(*byte))
    })
}

/// Copies `from` to byte `at` of `into`. Drops bytes beyond the end of `into`.
pub fn paste(into: &mut [u8], at: usize, from: &[u8]) {
    if let Some(rest) = into.get_mut(at..) {
        let len = rest.len().min(from.len());
        rest[..len].copy_from_slice(&from[..len]);
    }
}
