// SPDX-License-Identifier: Apache-2.0
//! A driver of the eRDMA function, for tests. It writes registers, commands and requests with the layout of
//! `erdma_hw.h`, and reads the function's output. It shares no code with the model.

use hardware::erdma::{Mac, Protocol, device::Device, fabric::Fabric, fabric::Next};
use std::{cell::RefCell, rc::Rc, time::Duration};

pub(crate) mod work;

/// A driver's access to its function and its memory.
pub(crate) trait Bus {
    fn write(&mut self, offset: u64, data: &[u8]);
    fn read(&mut self, offset: u64, data: &mut [u8]);
    fn load(&self, address: u64, into: &mut [u8]);
    fn store(&mut self, address: u64, data: &[u8]);
}

/// The first address of a guest's memory, and the size of the memory.
pub(crate) const MEMORY: u64 = 0x10_0000;
pub(crate) const MEMORY_SIZE: usize = 16 << 20;
/// The depth of the command queue, in slots of 32 bytes.
pub(crate) const COMMAND_SLOTS: u32 = 16;
pub(crate) const EVENT_DEPTH: u32 = 8;

pub(crate) fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}
pub(crate) fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap())
}

/// A request of the command queue.
#[derive(Clone)]
pub(crate) struct Command(pub(crate) [u8; 128]);

impl Command {
    pub(crate) fn new(module: u64, code: u64) -> Command {
        Command([0; 128]).u64(0, module << 24 | code << 16)
    }
    pub(crate) fn bytes(mut self, at: usize, value: &[u8]) -> Command {
        self.0[at..at + value.len()].copy_from_slice(value);
        self
    }
    pub(crate) fn u32(self, at: usize, value: u32) -> Command {
        self.bytes(at, &value.to_le_bytes())
    }
    pub(crate) fn u64(self, at: usize, value: u64) -> Command {
        self.bytes(at, &value.to_le_bytes())
    }
}

/// The driver's state of an event queue.
pub(crate) struct Events {
    pub(crate) address: u64,
    pub(crate) depth: u32,
    pub(crate) read: u32,
}

/// The driver's state of a completion queue.
pub(crate) struct Completions {
    pub(crate) number: u32,
    pub(crate) address: u64,
    pub(crate) depth: u32,
    pub(crate) read: u32,
}

#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub(crate) struct Completed {
    pub(crate) opcode: u8,
    pub(crate) is_receive: bool,
    pub(crate) status: u8,
    pub(crate) index: u32,
    pub(crate) queue_pair: u32,
    /// Immediate data in the form of `wc->ex.imm_data`: bytes in network order.
    pub(crate) immediate: [u8; 4],
    pub(crate) key: u32,
    pub(crate) size: u32,
    pub(crate) info: u32,
}

pub(crate) struct Driver<B> {
    pub(crate) bus: B,
    next_page: u64,
    commands: u64,
    command_completions: u64,
    command_events: Events,
    pub(crate) asynchronous: Events,
    pub(crate) posted: u16,
    pub(crate) completed: u32,
}

impl<B: Bus> Driver<B> {
    /// Starts the function in the order of Linux' driver: reset, queues, init.
    pub(crate) fn start(bus: B) -> Driver<B> {
        let nothing = || Events {
            address: 0,
            depth: EVENT_DEPTH,
            read: 0,
        };
        let mut driver = Driver {
            bus,
            next_page: MEMORY,
            commands: 0,
            command_completions: 0,
            command_events: nothing(),
            asynchronous: nothing(),
            posted: 0,
            completed: 0,
        };
        driver.restart();
        driver
    }

    pub(crate) fn restart(&mut self) {
        self.write32(0x10, 1);
        assert_eq!(self.read32(0x14), 1, "reset done");
        self.next_page = MEMORY;
        let zeroes = vec![0; 1 << 20];
        for at in 0..MEMORY_SIZE as u64 >> 20 {
            self.bus.store(MEMORY + (at << 20), &zeroes);
        }
        self.commands = self.pages(1);
        self.command_completions = self.pages(1);
        self.command_events.address = self.pages(1);
        self.asynchronous.address = self.pages(1);
        (self.command_events.read, self.asynchronous.read) = (0, 0);
        (self.posted, self.completed) = (0, 0);
        for (register, address) in [
            (0x20, self.commands),
            (0x28, self.command_completions),
            (0x38, self.command_events.address),
            (0x40, self.asynchronous.address),
        ] {
            self.write32(register, address as u32);
            self.write32(register + 4, (address >> 32) as u32);
        }
        self.write32(0x30, COMMAND_SLOTS);
        self.write32(0x34, EVENT_DEPTH);
        self.write32(0x48, EVENT_DEPTH);
        self.write32(0x10, 2);
        assert_eq!(self.read32(0x14), 3, "init done");
    }

    pub(crate) fn write32(&mut self, offset: u64, value: u32) {
        self.bus.write(offset, &value.to_le_bytes());
    }
    pub(crate) fn write64(&mut self, offset: u64, value: u64) {
        self.bus.write(offset, &value.to_le_bytes());
    }
    pub(crate) fn read32(&mut self, offset: u64) -> u32 {
        let mut bytes = [0; 4];
        self.bus.read(offset, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    /// Allocates unused, zeroed memory on a page boundary.
    pub(crate) fn pages(&mut self, count: u64) -> u64 {
        let address = self.next_page;
        self.next_page += count << 12;
        assert!(
            self.next_page <= MEMORY + MEMORY_SIZE as u64,
            "the guest has no memory left"
        );
        address
    }

    pub(crate) fn load(&self, address: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.bus.load(address, &mut bytes);
        bytes
    }

    /// Posts a command and does not wait for the answer.
    pub(crate) fn post(&mut self, command: &Command) {
        let slots = 4u16;
        let position = self.posted.wrapping_add(slots);
        let header =
            u64::from_le_bytes(command.0[..8].try_into().unwrap()) | 3 << 52 | u64::from(position);
        let command = command.clone().u64(0, header);
        for (slot, bytes) in (0..).zip(command.0.chunks(32)) {
            let at = (u32::from(self.posted) + slot) % COMMAND_SLOTS;
            self.bus.store(self.commands + u64::from(at) * 32, bytes);
        }
        self.posted = position;
        self.write64(0x200, u64::from(position));
    }

    /// The next entry of the command completion queue: status and answer.
    pub(crate) fn answered(&mut self) -> Option<(u8, [u64; 2])> {
        let at = u64::from(self.completed % COMMAND_SLOTS) * 32;
        let entry = self.load(self.command_completions + at, 32);
        let header = be32(&entry, 0);
        // an entry is valid if its owner bit differs from the lap's bit
        if (header >> 31 == 1) == (self.completed & COMMAND_SLOTS != 0) {
            return None;
        }
        assert_eq!(header >> 8 & 0xff, 2, "the type of the command queue");
        self.completed += 1;
        let word = |at| u64::from(be32(&entry, at));
        Some((
            header as u8,
            [word(8) | word(12) << 32, word(16) | word(20) << 32],
        ))
    }

    /// Executes a command. Returns its status as `Err` if it fails.
    pub(crate) fn command(&mut self, command: Command) -> Result<[u64; 2], u8> {
        self.post(&command);
        match self.answered().expect("the command is completed") {
            (0, answer) => Ok(answer),
            (status, _) => Err(status),
        }
    }

    /// The words of the next event.
    pub(crate) fn event(&self, events: &mut Events) -> Option<[u32; 4]> {
        let at = u64::from(events.read % events.depth) * 16;
        let entry = self.load(events.address + at, 16);
        let first = le32(&entry, 0);
        if (first >> 31 == 1) == (events.read & events.depth != 0) {
            return None;
        }
        events.read += 1;
        Some([
            first & !(1 << 31),
            le32(&entry, 4),
            le32(&entry, 8),
            le32(&entry, 12),
        ])
    }

    /// The type and the object number of the next asynchronous event.
    pub(crate) fn asynchronous(&mut self) -> Option<(u32, u32)> {
        let mut events = Events {
            ..self.asynchronous
        };
        let event = self.event(&mut events)?;
        self.asynchronous.read = events.read;
        Some((event[0] >> 16 & 0xff, event[1]))
    }

    /// Reads the next event of the command queue. Returns false if there is no new event.
    pub(crate) fn command_event(&mut self) -> bool {
        let mut events = Events {
            ..self.command_events
        };
        let event = self.event(&mut events);
        self.command_events.read = events.read;
        event.is_some()
    }
}

/// A function of a fabric in the process of the test.
pub(crate) struct Direct {
    pub(crate) fabric: Rc<RefCell<Fabric>>,
    pub(crate) position: usize,
}

/// Executes all requests that can be executed without a wait.
pub(crate) fn settle(fabric: &Rc<RefCell<Fabric>>) -> Next {
    let mut rounds = 0;
    loop {
        match fabric.borrow_mut().advance(Duration::ZERO, 64) {
            Next::Now => rounds += 1,
            next => return next,
        }
        assert!(rounds < 100_000, "the fabric does not come to rest");
    }
}

/// Executes all requests that can be executed `milliseconds` after the start.
pub(crate) fn at(fabric: &Rc<RefCell<Fabric>>, milliseconds: u64) -> Next {
    loop {
        let next = (fabric.borrow_mut()).advance(Duration::from_millis(milliseconds), 64);
        if next != Next::Now {
            return next;
        }
    }
}

impl Bus for Direct {
    fn write(&mut self, offset: u64, data: &[u8]) {
        self.fabric.borrow_mut().write(self.position, offset, data);
        settle(&self.fabric);
    }
    fn read(&mut self, offset: u64, data: &mut [u8]) {
        self.fabric
            .borrow()
            .device(self.position)
            .read(offset, data);
    }
    fn load(&self, address: u64, into: &mut [u8]) {
        let fabric = self.fabric.borrow();
        fabric
            .device(self.position)
            .memory
            .read(address, into)
            .expect("memory of the guest");
    }
    fn store(&mut self, address: u64, data: &[u8]) {
        let fabric = self.fabric.borrow();
        fabric
            .device(self.position)
            .memory
            .write(address, data)
            .expect("memory of the guest");
    }
}

pub(crate) const MACS: [Mac; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];

pub(crate) type Fabrics = Rc<RefCell<Fabric>>;

/// Starts two functions, each in a guest of its own.
pub(crate) fn two(protocol: Protocol) -> (Fabrics, Driver<Direct>, Driver<Direct>) {
    let fabric = Rc::new(RefCell::new(Fabric::default()));
    let [first, second] = MACS.map(|mac| {
        let mut device = Device::new(mac, protocol);
        device
            .memory
            .map_anonymous(MEMORY, MEMORY_SIZE)
            .expect("memory");
        let position = fabric.borrow_mut().add(device);
        Driver::start(Direct {
            fabric: Rc::clone(&fabric),
            position,
        })
    });
    (fabric, first, second)
}

/// Starts one function in a guest. Its fabric has a second function.
pub(crate) fn one() -> Driver<Direct> {
    two(Protocol::Iwarp).1
}
