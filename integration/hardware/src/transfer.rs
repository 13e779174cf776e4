// SPDX-License-Identifier: Apache-2.0
//! Copies data between the memories of two functions, in parts of bounded size.

use crate::memory::Memory;

const PART: usize = 64 << 10;

/// Memory to which a key refers.
pub trait Window {
    /// The window's size in bytes.
    fn len(&self) -> u64;

    /// The address of byte `at`, and the number of contiguous bytes from this address on. Returns `None` if the byte is
    /// not in memory.
    fn locate(&self, memory: &Memory, at: u64) -> Option<(u64, u64)>;

    /// Returns true if the size is zero.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The source of a copy: bytes of a request, and then memory.
#[derive(Clone, Debug)]
pub struct Source<W> {
    bytes: Vec<u8>,
    windows: Vec<W>,
}

impl<W: Window> Source<W> {
    /// Makes a source from bytes of a request and from memory.
    pub fn new(bytes: Vec<u8>, windows: Vec<W>) -> Self {
        Source { bytes, windows }
    }

    /// The source's size in bytes.
    pub fn len(&self) -> u64 {
        self.bytes.len() as u64 + self.windows.iter().map(Window::len).sum::<u64>()
    }

    /// Returns the source's bytes, or `None` if a part is not in memory. The caller limits the size.
    pub fn read(&self, memory: &Memory) -> Option<Vec<u8>> {
        let mut all = self.bytes.clone();
        let mut cursor = Cursor {
            memory,
            windows: &self.windows,
            done: 0,
        };
        while let Some((address, len)) = cursor.piece().ok()? {
            let begin = all.len();
            all.resize(begin + usize::try_from(len).ok()?, 0);
            memory.read(address, &mut all[begin..]).ok()?;
            cursor.done += len;
        }
        Some(all)
    }

    /// Returns true if the size is zero.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The unmapped memory of a failed copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// The source.
    Source,
    /// The target.
    Target,
}

/// A position in a list of windows.
struct Cursor<'a, W> {
    memory: &'a Memory,
    windows: &'a [W],
    done: u64,
}

impl<W: Window> Cursor<'_, W> {
    /// The address of the next byte, and the number of contiguous bytes from it on. Returns `None` at the end, and an
    /// error if the byte is not in memory.
    fn piece(&mut self) -> Result<Option<(u64, u64)>, ()> {
        while let Some((window, rest)) = self.windows.split_first() {
            if self.done >= window.len() {
                (self.windows, self.done) = (rest, 0);
                continue;
            }
            return window.locate(self.memory, self.done).map(Some).ok_or(());
        }
        Ok(None)
    }
}

/// Copies all of `source` to the start of `target`. The source must not be larger than the target.
///
/// # Errors
/// A part of a memory is not mapped. Bytes before it may have been copied.
pub fn copy<W: Window>(
    from: &Memory,
    source: &Source<W>,
    to: &Memory,
    target: &[W],
) -> Result<(), Missing> {
    let mut target = Cursor {
        memory: to,
        windows: target,
        done: 0,
    };
    let mut write = |mut bytes: &[u8]| {
        while !bytes.is_empty() {
            let piece = target.piece().ok().flatten();
            let (address, len) = piece.ok_or(Missing::Target)?;
            let (now, rest) =
                bytes.split_at(bytes.len().min(usize::try_from(len).unwrap_or(usize::MAX)));
            to.write(address, now).map_err(|_| Missing::Target)?;
            target.done += now.len() as u64;
            bytes = rest;
        }
        Ok(())
    };
    write(&source.bytes)?;
    let mut part = [0; PART];
    let mut source = Cursor {
        memory: from,
        windows: &source.windows,
        done: 0,
    };
    while let Some((address, len)) = source.piece().map_err(|()| Missing::Source)? {
        let part = &mut part[..usize::try_from(len).unwrap_or(PART).min(PART)];
        from.read(address, part).map_err(|_| Missing::Source)?;
        write(part)?;
        source.done += part.len() as u64;
    }
    Ok(())
}
