// SPDX-License-Identifier: Apache-2.0
//! The command queue (`struct mlx5_cmd_layout`): 32 entries in the memory of the guest. Chains of mailboxes
//! (`struct mlx5_cmd_prot_block`) contain the input and the output beyond 16 bytes.

use super::{
    fields::{Field, field},
    function::Function,
};
use crate::memory::{Memory, Unmapped};

/// Number of entries of the queue, as the initialization segment states it.
pub const SLOTS: u32 = 32;
/// Bytes of an entry.
const ENTRY: usize = 64;
/// Bytes of input, and of output, in the entry itself.
const INLINE: usize = 16;
/// Bytes of data in a mailbox.
const BLOCK: usize = 512;
/// Bytes of a mailbox.
const MAILBOX: usize = 576;
/// The longest input and output: a context, and the page addresses of the largest queue.
pub const MAX_LENGTH: usize = 1 << 20;

const TYPE: Field = field(0, 8);
const INPUT_LENGTH: Field = field(0x20, 32);
const INPUT_MAILBOX: Field = field(0x40, 64);
const INPUT: usize = 16;
const OUTPUT: usize = 32;
const OUTPUT_MAILBOX: Field = field(0x180, 64);
const OUTPUT_LENGTH: Field = field(0x1c0, 32);
const TOKEN: usize = 60;
const SIGNATURE: usize = 61;
/// The offset of the status byte. Bit 0 is the owner; the bits above are the delivery status.
const OWNER: usize = 63;
const BY_HARDWARE: u8 = 1;
/// The type of an entry for the PCI function.
const TYPE_PCI: u64 = 7;

const NEXT: Field = field(560 * 8, 64);
const BLOCK_NUMBER: Field = field(568 * 8, 32);
const BLOCK_TOKEN: usize = 573;
const CONTROL_SIGNATURE: usize = 574;
const BLOCK_SIGNATURE: usize = 575;

/// `MLX5_CMD_DELIVERY_STAT_*`: the reason why a command was not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The token of a mailbox differs from the token of the entry.
    Token = 2,
    /// The number of a mailbox differs from its position in the chain.
    BlockNumber = 3,
    /// The memory of the output's chain is not mapped or not aligned.
    OutputPointer = 4,
    /// The memory of the input's chain is not mapped or not aligned.
    InputPointer = 5,
    /// The input is too short or too long.
    InputLength = 7,
    /// The output is too short or too long.
    OutputLength = 8,
    /// The entry is not of the type for a PCI function.
    Descriptor = 0x10,
}

/// The inverted exclusive-or of all bytes.
fn signature(bytes: &[u8]) -> u8 {
    !bytes.iter().fold(0, |all, byte| all ^ byte)
}

/// Reads the input beyond its first 16 bytes from mailboxes.
fn gather(memory: &Memory, first: u64, token: u8, input: &mut [u8]) -> Result<(), Delivery> {
    let mut address = first;
    for (number, part) in (0..).zip(input.chunks_mut(BLOCK)) {
        let mailbox = mailbox(memory, address).map_err(|Unmapped| Delivery::InputPointer)?;
        if mailbox[BLOCK_TOKEN] != token {
            return Err(Delivery::Token);
        }
        if BLOCK_NUMBER.get(&mailbox) != number {
            return Err(Delivery::BlockNumber);
        }
        part.copy_from_slice(&mailbox[..part.len()]);
        address = NEXT.get(&mailbox);
    }
    Ok(())
}

fn mailbox(memory: &Memory, address: u64) -> Result<[u8; MAILBOX], Unmapped> {
    let mut mailbox = [0; MAILBOX];
    match address.is_multiple_of(BLOCK as u64) {
        true => memory.read(address, &mut mailbox).map(|()| mailbox),
        false => Err(Unmapped),
    }
}

/// The addresses and the contents of the mailboxes of an output.
fn chain(memory: &Memory, first: u64, len: usize) -> Result<Vec<(u64, [u8; MAILBOX])>, Delivery> {
    let mut address = first;
    let blocks = (0..len.div_ceil(BLOCK)).map(|_| {
        let mailbox = mailbox(memory, address).map_err(|Unmapped| Delivery::OutputPointer)?;
        let at = std::mem::replace(&mut address, NEXT.get(&mailbox));
        Ok((at, mailbox))
    });
    blocks.collect()
}

/// Writes the output beyond its first 16 bytes into mailboxes.
fn scatter(memory: &Memory, chain: Vec<(u64, [u8; MAILBOX])>, token: u8, output: &[u8]) {
    for ((address, mut mailbox), part) in chain.into_iter().zip(output.chunks(BLOCK)) {
        mailbox[..part.len()].copy_from_slice(part);
        mailbox[BLOCK_TOKEN] = token;
        mailbox[CONTROL_SIGNATURE] = signature(&mailbox[BLOCK..CONTROL_SIGNATURE]);
        mailbox[BLOCK_SIGNATURE] = signature(&mailbox[..BLOCK_SIGNATURE]);
        if memory.write(address, &mailbox).is_err() {
            log::warn!("the mailbox at {address:#x} is not in memory any more");
        }
    }
}

impl Function {
    /// Handles the command doorbell: executes the entries whose bits are set in `slots`.
    pub(super) fn commands_posted(&mut self, slots: u32) {
        for slot in (0..SLOTS).filter(|slot| slots >> slot & 1 == 1) {
            let base = self.registers.command_queue();
            let address = base.wrapping_add(u64::from(slot) * ENTRY as u64);
            let mut entry = [0; ENTRY];
            if self.memory.read(address, &mut entry).is_err() {
                log::warn!(
                    "{}: slot {slot} of the commands is not in memory",
                    self.name
                );
                continue;
            }
            if entry[OWNER] & BY_HARDWARE == 0 {
                log::warn!("{}: slot {slot} of the commands is not posted", self.name);
                continue;
            }
            let queues: Vec<u32> = self.events.keys().copied().collect();
            let delivered = self.deliver(&mut entry);
            if let Err(delivery) = delivered {
                log::warn!("{}: a command is not delivered: {delivery:?}", self.name);
            }
            entry[OWNER] = delivered.map_or_else(|it| (it as u8) << 1, |()| 0);
            entry[SIGNATURE] = 0;
            entry[SIGNATURE] = signature(&entry);
            self.finish(address, &entry);
            self.command_event(slot, &queues);
        }
    }

    /// Writes the entry back. Writes the owner bit last, because the driver polls it.
    fn finish(&self, address: u64, entry: &[u8; ENTRY]) {
        let written = self.memory.publish_by_end(address, entry);
        if written.is_err() {
            log::warn!("{}: the command queue is not in memory any more", self.name);
        }
    }

    /// Executes the command of an entry.
    fn deliver(&mut self, entry: &mut [u8; ENTRY]) -> Result<(), Delivery> {
        if TYPE.get(entry) != TYPE_PCI {
            return Err(Delivery::Descriptor);
        }
        let input_length = INPUT_LENGTH.get(entry) as usize;
        let output_length = OUTPUT_LENGTH.get(entry) as usize;
        if !(8..=MAX_LENGTH).contains(&input_length) {
            return Err(Delivery::InputLength);
        }
        if !(8..=MAX_LENGTH).contains(&output_length) {
            return Err(Delivery::OutputLength);
        }
        let token = entry[TOKEN];
        let mut input = vec![0; input_length.max(INLINE)];
        input[..INLINE].copy_from_slice(&entry[INPUT..INPUT + INLINE]);
        gather(
            &self.memory,
            INPUT_MAILBOX.get(entry),
            token,
            &mut input[INLINE..],
        )?;
        let beyond = output_length.saturating_sub(INLINE);
        let chain = chain(&self.memory, OUTPUT_MAILBOX.get(entry), beyond)?;
        let mut output = vec![0; output_length.max(INLINE)];
        self.execute(&input, &mut output);
        entry[OUTPUT..OUTPUT + INLINE].copy_from_slice(&output[..INLINE]);
        scatter(&self.memory, chain, token, &output[INLINE..]);
        Ok(())
    }
}
