// SPDX-License-Identifier: Apache-2.0
//! A driver according to the header: it posts commands, and reads events. It shares no code with the model.

use hardware::mlx5::fabric::{Card, Fabric, LinkLayer};

pub(crate) const MACS: [[u8; 6]; 2] = [[0x52, 0x54, 0, 0xbb, 0, 1], [0x52, 0x54, 0, 0xbb, 0, 2]];
pub(crate) const MEMORY: u64 = 0x10_0000;
pub(crate) const MEMORY_SIZE: usize = 0x10_0000;
/// Addresses: the command queue, the mailboxes of the input and of the output, and the pages of event queues.
pub(crate) const QUEUE: u64 = MEMORY;
pub(crate) const INPUT: u64 = MEMORY + 0x1000;
pub(crate) const OUTPUT: u64 = MEMORY + 0x4_0000;
pub(crate) const EVENTS: u64 = MEMORY + 0x8_0000;
const MAILBOX: u64 = 1024;
const TOKEN: u8 = 0x5a;

/// The answer to a command: the delivery status and the output.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) delivery: u8,
    pub(crate) output: Vec<u8>,
}

impl Answer {
    /// `MLX5_CMD_STAT_*`.
    pub(crate) fn status(&self) -> u8 {
        assert_eq!(self.delivery, 0, "the command was not delivered");
        self.output[0]
    }

    /// The number of `width` bytes at offset `at`.
    pub(crate) fn number(&self, at: usize, width: usize) -> u64 {
        number(&self.output[at..at + width])
    }
}

pub(crate) fn number(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0, |value, byte| value << 8 | u64::from(*byte))
}

/// A command of `len` bytes.
pub(crate) fn command(opcode: u16, modifier: u16, len: usize) -> Vec<u8> {
    let mut command = vec![0; len];
    command[..2].copy_from_slice(&opcode.to_be_bytes());
    command[6..8].copy_from_slice(&modifier.to_be_bytes());
    command
}

/// Writes bytes into a command at offset `at`.
pub(crate) fn with(mut command: Vec<u8>, at: usize, bytes: &[u8]) -> Vec<u8> {
    command[at..at + bytes.len()].copy_from_slice(bytes);
    command
}

/// A guest with the functions of cards.
pub(crate) struct Driver {
    pub(crate) fabric: Fabric,
    /// The position of the function that the driver uses.
    pub(crate) position: usize,
}

impl Driver {
    /// A card after power-on, with the address of the command queue set.
    pub(crate) fn new() -> Driver {
        Driver::with(LinkLayer::Ethernet)
    }

    /// A card whose ports have this link layer.
    pub(crate) fn with(layer: LinkLayer) -> Driver {
        let card = Card {
            macs: MACS.to_vec(),
            is_virtual: false,
        };
        Driver::of(layer, &[card])
    }

    /// A guest with these cards.
    pub(crate) fn of(layer: LinkLayer, cards: &[Card]) -> Driver {
        let mut fabric = Fabric::new(layer, cards);
        for position in 0..fabric.functions().len() {
            let memory = &mut fabric.function_mut(position).memory;
            memory.map_anonymous(MEMORY, MEMORY_SIZE).expect("memory");
        }
        let mut driver = Driver {
            fabric,
            position: 0,
        };
        driver.set_queue();
        driver
    }

    pub(crate) fn set_queue(&mut self) {
        self.write(0x10, &((QUEUE >> 32) as u32).to_be_bytes());
        self.write(0x14, &(QUEUE as u32).to_be_bytes());
    }

    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) {
        self.fabric.write(self.position, offset, data);
    }

    pub(crate) fn read(&mut self, offset: u64) -> u32 {
        let mut data = [0; 4];
        self.fabric
            .function_mut(self.position)
            .read(offset, &mut data);
        u32::from_be_bytes(data)
    }

    pub(crate) fn store(&mut self, address: u64, bytes: &[u8]) {
        let memory = &self.fabric.functions()[self.position].memory;
        memory.write(address, bytes).expect("memory of the guest");
    }

    pub(crate) fn load(&self, address: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let memory = &self.fabric.functions()[self.position].memory;
        memory
            .read(address, &mut bytes)
            .expect("memory of the guest");
        bytes
    }

    /// Writes a chain of mailboxes.
    pub(crate) fn chain(&mut self, first: u64, data: &[u8], len: usize) {
        for block in 0..len.div_ceil(512) as u64 {
            let at = first + block * MAILBOX;
            let mut mailbox = [0; 576];
            let rest = data.get(block as usize * 512..).unwrap_or_default();
            let part = &rest[..rest.len().min(512)];
            mailbox[..part.len()].copy_from_slice(part);
            mailbox[560..568].copy_from_slice(&(at + MAILBOX).to_be_bytes());
            mailbox[568..572].copy_from_slice(&(block as u32).to_be_bytes());
            mailbox[573] = TOKEN;
            self.store(at, &mailbox);
        }
    }

    /// An entry of the command queue.
    pub(crate) fn entry(input: &[u8], output_length: usize) -> [u8; 64] {
        let mut entry = [0; 64];
        entry[0] = 7;
        entry[4..8].copy_from_slice(&(input.len() as u32).to_be_bytes());
        entry[8..16].copy_from_slice(&INPUT.to_be_bytes());
        let inline = input.len().min(16);
        entry[16..16 + inline].copy_from_slice(&input[..inline]);
        entry[48..56].copy_from_slice(&OUTPUT.to_be_bytes());
        entry[56..60].copy_from_slice(&(output_length as u32).to_be_bytes());
        entry[60] = TOKEN;
        entry[63] = 1;
        entry
    }

    /// Executes a command in slot 0.
    pub(crate) fn execute(&mut self, input: &[u8], output_length: usize) -> Answer {
        let rest = input.get(16..).unwrap_or_default().to_vec();
        self.chain(INPUT, &rest, rest.len());
        self.chain(OUTPUT, &[], output_length.saturating_sub(16));
        self.post(&Driver::entry(input, output_length), output_length)
    }

    /// Posts an entry in slot 0, and reads the answer.
    pub(crate) fn post(&mut self, entry: &[u8; 64], output_length: usize) -> Answer {
        self.store(QUEUE, entry);
        self.write(0x18, &1u32.to_be_bytes());
        let entry = self.load(QUEUE, 64);
        assert_eq!(entry[63] & 1, 0, "the entry belongs to the driver again");
        assert_eq!(entry.iter().fold(0, |all, byte| all ^ byte), 0xff);
        let mut output = entry[32..48].to_vec();
        for block in 0..output_length.saturating_sub(16).div_ceil(512) as u64 {
            output.extend(self.load(OUTPUT + block * MAILBOX, 512));
        }
        output.truncate(output_length.max(16));
        Answer {
            delivery: entry[63] >> 1,
            output,
        }
    }

    /// Creates an event queue of 16 entries for the events of `mask`, in page `page`. Returns its number.
    pub(crate) fn event_queue(&mut self, page: u64, mask: u64) -> u32 {
        let input = with(command(0x301, 0, 0x118), 0x1c, &[4]);
        let input = with(input, 0x58, &mask.to_be_bytes());
        let address = EVENTS + page * 0x1000;
        self.store(address, &[0xff; 1024]);
        for entry in 0..16 {
            self.store(address + entry * 64 + 63, &[1]);
        }
        let input = with(input, 0x110, &address.to_be_bytes());
        let answer = self.execute(&input, 16);
        assert_eq!(answer.status(), 0, "CREATE_EQ");
        answer.number(11, 1) as u32
    }

    /// The entry `index` of the first lap: type, subtype and data. Returns `None` if the function has not
    /// written the entry.
    pub(crate) fn event(&self, page: u64, index: u64) -> Option<(u8, u8, Vec<u8>)> {
        let entry = self.load(EVENTS + page * 0x1000 + index * 64, 64);
        (entry[63] & 1 == 0).then(|| (entry[1], entry[3], entry[32..60].to_vec()))
    }
}
