// SPDX-License-Identifier: Apache-2.0
//! Payload: blocks that both ends can compute. Each end compares every received byte, and reports the position of the
//! first difference. The comparison is only a `memcmp`, because an emulated processor compares up to a GiB.

use std::{
    io::{self, Read, Write},
    net::TcpStream,
    thread,
};

const BLOCK: usize = 64 << 10;

/// Distance in bytes at which a block repeats its number. The numbers show lost, duplicated and reordered bytes.
const STAMPS: usize = 4 << 10;

/// Exchange on one connection: the same number of bytes in each direction.
pub(super) struct Exchange {
    seed: u64,
    pub(super) bytes: u64,
    is_client: bool,
}

/// The blocks of one direction.
struct Blocks {
    block: Vec<u8>,
    left: u64,
    number: u64,
}

impl Blocks {
    fn new(seed: u64, bytes: u64) -> Self {
        let mut state = seed;
        // splitmix64
        let word = |_| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            (z ^ (z >> 31)).to_le_bytes()
        };
        Self {
            block: (0..BLOCK / 8).flat_map(word).collect(),
            left: bytes,
            number: 0,
        }
    }

    /// Returns the next block, or `None` after the last block.
    fn next(&mut self) -> Option<&[u8]> {
        let length = usize::try_from(self.left).map_or(BLOCK, |left| left.min(BLOCK));
        for at in (0..BLOCK).step_by(STAMPS) {
            self.block[at..at + 8].copy_from_slice(&self.number.to_le_bytes());
        }
        self.number += 1;
        self.left -= length as u64;
        (length > 0).then(|| &self.block[..length])
    }
}

impl Exchange {
    /// Sends the server the parameters of the exchange.
    pub(super) fn ask(mut stream: &TcpStream, seed: u64, bytes: u64) -> io::Result<Self> {
        stream.write_all(&seed.to_le_bytes())?;
        stream.write_all(&bytes.to_le_bytes())?;
        Ok(Self {
            seed,
            bytes,
            is_client: true,
        })
    }

    /// Reads the client's parameters.
    pub(super) fn requested(stream: &TcpStream) -> io::Result<Self> {
        Ok(Self {
            seed: number(stream)?,
            bytes: number(stream)?,
            is_client: false,
        })
    }

    /// Sends and receives at the same time. Then each end sends the number of bytes that it has compared, and fails if
    /// the other end's number differs.
    pub(super) fn run(self, stream: &TcpStream) -> io::Result<Self> {
        let seeds = [!self.seed, self.seed];
        let outgoing = Blocks::new(seeds[usize::from(self.is_client)], self.bytes);
        let incoming = Blocks::new(seeds[usize::from(!self.is_client)], self.bytes);
        thread::scope(|scope| {
            let sending = scope.spawn(|| send(stream, outgoing));
            compare(stream, incoming)?;
            sending
                .join()
                .unwrap_or_else(|_| Err(io::Error::other("the sending thread panicked")))
        })?;
        (&*stream).write_all(&self.bytes.to_le_bytes())?;
        match number(stream)? {
            bytes if bytes == self.bytes => Ok(self),
            bytes => Err(io::Error::other(format!(
                "the peer says {bytes} bytes were right"
            ))),
        }
    }
}

fn send(mut stream: &TcpStream, mut blocks: Blocks) -> io::Result<()> {
    while let Some(block) = blocks.next() {
        stream.write_all(block)?;
    }
    Ok(())
}

fn compare(mut stream: &TcpStream, mut blocks: Blocks) -> io::Result<()> {
    let mut received = vec![0; BLOCK];
    let mut before = 0_u64;
    while let Some(expected) = blocks.next() {
        let received = &mut received[..expected.len()];
        stream.read_exact(received)?;
        if *received != *expected {
            let at = received
                .iter()
                .zip(expected)
                .position(|(one, other)| one != other);
            let at = before + at.unwrap_or_default() as u64;
            return Err(io::Error::other(format!("byte {at} is not what was sent")));
        }
        before += expected.len() as u64;
    }
    Ok(())
}

fn number(mut stream: &TcpStream) -> io::Result<u64> {
    let mut bytes = [0; 8];
    stream.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}
