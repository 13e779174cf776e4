// SPDX-License-Identifier: Apache-2.0
//! Copying between the memories of two functions, in parts of bounded size.

use crate::memory::Memory;

const PART: usize = 64 << 10;

/// Memory that a key stands for.
pub trait Window {
    /// The window's size in bytes.
    fn len(&self) -> u64;

    /// The address of byte `at`, and how many bytes from there on are in one piece. None if it is not there.
    fn locate(&self, memory: &Memory, at: u64) -> Option<(u64, u64)>;

    /// Returns true if the size is zero.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The source of a copy.
#[derive(Clone, Debug)]
pub enum Source<W> {
    /// Bytes of a request.
    Bytes(Vec<u8>),
    /// Memory.
    Windows(Vec<W>),
}

impl<W: Window> Source<W> {
    /// The source's size in bytes.
    pub fn len(&self) -> u64 {
        match self {
            Source::Bytes(bytes) => bytes.len() as u64,
            Source::Windows(windows) => windows.iter().map(Window::len).sum(),
        }
    }

    /// Returns the source's bytes. None if a part is not there. The caller bounds the size.
    pub fn read(&self, memory: &Memory) -> Option<Vec<u8>> {
        let windows = match self {
            Source::Bytes(bytes) => return Some(bytes.clone()),
            Source::Windows(windows) => windows,
        };
        let mut all = Vec::new();
        let mut cursor = Cursor {
            memory,
            windows,
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

/// Which of both memories is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// The source.
    Source,
    /// The target.
    Target,
}

/// A position in windows.
struct Cursor<'a, W> {
    memory: &'a Memory,
    windows: &'a [W],
    done: u64,
}

impl<W: Window> Cursor<'_, W> {
    /// The address of the next byte, and how many there are in one piece. None at the end; an error if it is not there.
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

/// Copies all of `source` to the begin of `target`. The source is not larger than the target.
///
/// # Errors
/// A part of a memory is not mapped. The bytes copied before it stay.
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
    let windows = match source {
        Source::Bytes(bytes) => return write(bytes),
        Source::Windows(windows) => windows,
    };
    let mut part = [0; PART];
    let mut source = Cursor {
        memory: from,
        windows,
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
