// SPDX-License-Identifier: Apache-2.0
//! Memory regions: translation tables of all levels, keys and rights.

use crate::driver::{
    Bus, Command, Completed, Completions, Direct, Driver, MEMORY, MEMORY_SIZE, two, work::*,
};
use hardware::erdma::Protocol;

/// Two connected functions. The near function accesses regions of the far function.
struct Connected {
    near: Driver<Direct>,
    far: Driver<Direct>,
    near_queue: Completions,
    pair: Pair,
    other: Pair,
    here: (u64, u32),
}

fn connected() -> Connected {
    let (_, mut near, mut far) = two(Protocol::Iwarp);
    let (near_queue, far_queue) = (near.completion_queue(1, 6), far.completion_queue(1, 6));
    let (pair, other) = (near.pair(1, 6, &near_queue), far.pair(1, 6, &far_queue));
    near.connect(&pair, other.cookie);
    far.connect(&other, pair.cookie);
    let here = near.region(1, ALL, 1);
    Connected {
        near,
        far,
        near_queue,
        pair,
        other,
        here,
    }
}

impl Connected {
    fn request(&mut self, request: &Request) -> Completed {
        self.near.post_send(&mut self.pair, request);
        self.near.poll(&mut self.near_queue).expect("a completion")
    }

    /// Writes `text` to the address and key `to` of the far function. Returns the status of the request.
    fn write(&mut self, to: (u64, u32), text: &[u8]) -> u8 {
        self.near.bus.store(self.here.0, text);
        let from = (self.here.0, text.len() as u32, self.here.1);
        self.request(&write(to, &[from])).status
    }

    /// Stores these 64-bit numbers in pages of the far guest, and returns their address.
    fn table(&mut self, entries: &[u64]) -> u64 {
        let pages = (entries.len() as u64 * 8).div_ceil(4096).max(1);
        let address = self.far.pages(pages);
        let bytes: Vec<u8> = entries.iter().flat_map(|it| it.to_le_bytes()).collect();
        self.far.bus.store(address, &bytes);
        address
    }
}

/// The command for a region whose page addresses are in a table.
fn with_table(index: u32, start: u64, size: u64, level: u32, count: u64, table: u64) -> Command {
    let is_large = level > 1;
    let mut command = Command::new(0, 8)
        .u32(8, 1 << 31 | u32::from(is_large) << 28 | index)
        .u32(12, DOMAIN << 12 | ALL << 1)
        .u64(16, start)
        .u32(24, size as u32)
        .u32(28, 12 << 27 | level << 20 | (count & 0xf_ffff) as u32)
        .u64(32, table);
    if is_large {
        command = command
            .u32(40, (size >> 32) as u32)
            .u32(44, (count >> 20) as u32);
    }
    command
}

/// A virtual address of the guest's program, which differs from the address of its memory.
const VIRTUAL: u64 = 0x7f12_3456_7000;

#[test]
fn pages_that_the_command_has() {
    let mut it = connected();
    let pages: Vec<u64> = (0..4).map(|_| it.far.pages(2)).collect();
    let start = VIRTUAL + 0x123;
    let command = Driver::<Direct>::region_command(9, ALL, start, 3 * 4096, &pages);
    it.far.command(command).expect("a region");
    // across the boundary of the first two pages, which are not adjacent
    assert_eq!(it.write((start + 4096 - 0x123 - 3, 9 << 8), b"abcdef"), 0);
    assert_eq!(it.far.load(pages[0] + 4093, 3), b"abc");
    assert_eq!(it.far.load(pages[1], 3), b"def");
    assert_eq!(it.write((start + 3 * 4096 - 2, 9 << 8), b"yz"), 0);
    assert_eq!(it.far.load(pages[3] + 0x123 - 2, 2), b"yz");
    assert_eq!(it.far.load(pages[3] + 0x123, 2), [0, 0]);
}

#[test]
fn a_table_of_one_level() {
    let mut it = connected();
    // more than a page of page addresses: the array is contiguous
    let page = it.far.pages(1);
    let mut entries = vec![page; 600];
    let last = it.far.pages(1);
    entries[599] = last;
    let table = it.table(&entries);
    it.far
        .command(with_table(9, VIRTUAL, 600 << 12, 1, 600, table))
        .expect("a region");
    assert_eq!(it.write((VIRTUAL + (599 << 12) + 5, 9 << 8), b"here"), 0);
    assert_eq!(it.far.load(last + 5, 4), b"here");
    assert_eq!(it.write((VIRTUAL + (599 << 12) - 2, 9 << 8), b"both"), 0);
    assert_eq!(
        (it.far.load(page + 4094, 2), it.far.load(last, 2)),
        (b"bo".to_vec(), b"th".to_vec())
    );
}

#[test]
fn a_table_of_two_levels() {
    let mut it = connected();
    let page = it.far.pages(1);
    let targets: Vec<u64> = (0..3).map(|_| it.far.pages(1)).collect();
    // 512 entries fill one page of the table
    let mut lower = [vec![page; 512], vec![page; 512], vec![page; 176]];
    (lower[0][511], lower[1][0], lower[2][175]) = (targets[0], targets[1], targets[2]);
    let lower: Vec<u64> = lower.iter().map(|entries| it.table(entries)).collect();
    let top = it.table(&lower);
    it.far
        .command(with_table(9, VIRTUAL, 1200 << 12, 2, 1200, top))
        .expect("a region");
    assert_eq!(it.write((VIRTUAL + (512 << 12) - 2, 9 << 8), b"over"), 0);
    assert_eq!(it.far.load(targets[0] + 4094, 2), b"ov");
    assert_eq!(it.far.load(targets[1], 2), b"er");
    assert_eq!(it.write((VIRTUAL + (1200 << 12) - 4, 9 << 8), b"last"), 0);
    assert_eq!(it.far.load(targets[2] + 4092, 4), b"last");
}

#[test]
fn a_table_of_three_levels_with_more_than_four_gigabytes() {
    let mut it = connected();
    let (page, target) = (it.far.pages(1), it.far.pages(1));
    // 2^20 + 1 pages: all entries name the same page, except for the last one, which is entry 0 of the bottom array
    // under entry 4 of the top array
    let bottom = it.table(&[page; 512]);
    let middle = it.table(&[bottom; 512]);
    let last_bottom = it.table(&[target]);
    let last_middle = it.table(&[last_bottom]);
    let top = it.table(&[middle, middle, middle, middle, last_middle]);
    let count = (1 << 20) + 1;
    it.far
        .command(with_table(9, VIRTUAL, count << 12, 3, count, top))
        .expect("a region");
    assert_eq!(it.write((VIRTUAL + (1 << 32) - 1, 9 << 8), b"ab"), 0);
    assert_eq!(it.far.load(page + 4095, 1), b"a");
    assert_eq!(it.far.load(target, 1), b"b");
    assert_eq!(
        it.write((VIRTUAL + (count << 12) - 1, 9 << 8), b"ab"),
        4,
        "over the end"
    );
}

#[test]
fn larger_pages() {
    let mut it = connected();
    // 2 MiB, the page size that ib_umem_find_best_pgsz selects
    let page = MEMORY + MEMORY_SIZE as u64 - (2 << 20);
    let start = VIRTUAL & !0x1f_ffff | 0x12_3456;
    let command = Driver::<Direct>::region_command(9, ALL, start, 8192, &[page]);
    it.far
        .command(command.u32(28, 21 << 27 | 1))
        .expect("a region");
    assert_eq!(it.write((start + 8192 - 4, 9 << 8), b"last"), 0);
    assert_eq!(it.far.load(page + 0x12_3456 + 8188, 4), b"last");
}

#[test]
fn keys_are_checked() {
    let mut it = connected();
    let (there, key) = it.far.region(9, ALL, 2);
    let end = there + 8192;
    assert_eq!(it.write((end - 4, key), b"fits"), 0);
    for (to, status, why) in [
        ((there, key | 1), 3, "another key of the same region"),
        ((there, 10 << 8), 3, "no region"),
        ((there, 0xffff_ff00), 3, "the key of all memory, from afar"),
        ((end - 3, key), 4, "one byte beyond"),
        ((there - 1, key), 4, "one byte before"),
        ((end, key), 4, "after the end"),
        ((u64::MAX - 1, key), 7, "around the end of all addresses"),
    ] {
        let mut it = connected();
        assert_eq!(it.far.region(9, ALL, 2), (there, key));
        assert_eq!(it.write(to, b"text"), status, "{why}");
        assert_eq!(it.far.load(there, 8192), [0; 8192], "{why}");
        assert!(
            it.near.asynchronous().is_some(),
            "the queue pair is in error: {why}"
        );
    }
}

#[test]
fn rights_and_domains_are_checked() {
    type Make = fn(&mut Connected, (u64, u32)) -> Request;
    let write_there: Make = |it, to| write(to, &[(it.here.0, 8, it.here.1)]);
    let read_there: Make = |it, from| read((it.here.0, 8, it.here.1), from);
    let add_there: Make = |it, to| atomic(FAA, to, it.here, 1, 0);
    for (make, right) in [(write_there, RW), (read_there, RR), (add_there, RA)] {
        for (rights, domain, status) in [
            (right, DOMAIN, 0),
            (ALL & !right, DOMAIN, 5),
            (ALL, DOMAIN + 1, 6),
        ] {
            let mut it = connected();
            let page = it.far.pages(1);
            let command = Driver::<Direct>::region_command(9, rights, page, 4096, &[page]);
            let command = command.u32(12, domain << 12 | rights << 1);
            it.far.command(command).expect("a region");
            let request = make(&mut it, (page, 9 << 8));
            assert_eq!(it.request(&request).status, status, "{rights:#x} {domain}");
        }
    }
    // keys of the requester itself
    let own: Make = |_, from| write((0, 0), &[(from.0, 8, from.1)]);
    let own_read: Make = |it, into| read((into.0, 8, into.1), (it.here.0, 8));
    let own_add: Make = |it, into| atomic(FAA, (it.here.0, 8), into, 1, 0);
    for (make, right) in [(own, LR), (own_read, LW), (own_add, LW)] {
        for (key, rights, domain, status) in [
            (9 << 8, ALL & !right, DOMAIN, 12),
            (9 << 8, ALL, DOMAIN + 1, 13),
            (9 << 8 | 1, ALL, DOMAIN, 10),
        ] {
            let mut it = connected();
            let far = it.far.region(8, ALL, 1);
            it.here = far;
            let page = it.near.pages(1);
            let command = Driver::<Direct>::region_command(9, rights, page, 4096, &[page]);
            it.near
                .command(command.u32(12, domain << 12 | rights << 1))
                .expect("a region");
            let mut request = make(&mut it, (page, key));
            if request.opcode != WRITE {
                request = request.segment(32, (far.0, 8, far.1));
            } else {
                request = remote(request, far);
            }
            assert_eq!(
                it.request(&request).status,
                status,
                "{key:#x} {rights:#x} {domain}"
            );
        }
    }
}

#[test]
fn a_region_that_was_deregistered_is_gone() {
    let mut it = connected();
    let (there, key) = it.far.region(9, ALL, 1);
    assert_eq!(it.write((there, key), b"text"), 0);
    it.far
        .command(Command::new(0, 9).u32(8, 9))
        .expect("DEREG_MR");
    assert_eq!(it.write((there, key), b"text"), 3);
}

#[test]
fn tables_and_pages_that_are_not_in_memory_are_an_error_of_the_request() {
    let beyond = MEMORY + MEMORY_SIZE as u64;
    for (level, table) in [
        (1, beyond),
        (2, beyond),
        (3, u64::MAX - 7),
        (1, u64::MAX),
        (1, MEMORY - 8),
    ] {
        let mut it = connected();
        it.far
            .command(with_table(9, VIRTUAL, 5 << 12, level, 5, table))
            .expect("a region");
        assert_eq!(
            it.write((VIRTUAL, 9 << 8), b"text"),
            4,
            "level {level} at {table:#x}"
        );
    }
    for page in [beyond, u64::MAX, !0xfff] {
        let mut it = connected();
        let command = Driver::<Direct>::region_command(9, ALL, VIRTUAL + 0xffe, 2, &[page]);
        it.far.command(command).expect("a region");
        assert_eq!(it.write((VIRTUAL + 0xffe, 9 << 8), b"ab"), 4, "{page:#x}");
    }
}

#[test]
fn regions_that_cannot_be_are_refused() {
    let mut it = connected();
    let page = it.far.pages(1);
    let good = || Driver::<Direct>::region_command(9, ALL, page, 4096, &[page]);
    for (command, why) in [
        (
            good().u32(12, DOMAIN << 12 | 3 << 6),
            "a type that there is not",
        ),
        (good().u32(28, 11 << 27 | 1), "pages of 2 KiB"),
        (good().u32(28, 1), "pages of 1 byte"),
        (good().u32(28, 12 << 27 | 5), "five pages in the command"),
        (good().u32(24, 4097), "larger than its pages"),
        (
            good().u64(16, page + 1),
            "its offset and its size are larger than its pages",
        ),
        (
            with_table(9, VIRTUAL, 1 << 39, 3, 1 << 27, page),
            "larger than the function allows",
        ),
    ] {
        assert_eq!(it.far.command(command), Err(1), "{why}");
    }
    assert_eq!(it.far.command(good()), Ok([0, 0]));
}

/// Creates a region that requests can register, with at most `count` pages and a table in memory. Returns the table's
/// address.
fn fast(driver: &mut Driver<Direct>, index: u32, count: u32) -> u64 {
    let table = driver.pages(1);
    let command = Command::new(0, 8)
        .u32(8, index)
        .u32(12, DOMAIN << 12 | 1 << 6 | (LR | LW | RR | RW) << 1)
        .u32(28, 12 << 27 | 1 << 20 | count)
        .u64(32, table);
    assert_eq!(driver.command(command), Ok([0, 0]));
    table
}

fn register(address: u64, len: u32, key: u32, rights: u32, count: u32) -> Request {
    let request = Request::new(REG_MR)
        .u64(8, address)
        .u32(16, len)
        .u32(20, key);
    request.u32(24, rights << 1 | count << 12).put(31, &[0])
}

#[test]
fn requests_register_and_invalidate_memory() {
    let mut it = connected();
    let table = fast(&mut it.far, 9, 16);
    let pages: Vec<u64> = (0..6).map(|_| it.far.pages(1)).collect();
    let text = it.near.pages(1);
    it.near.bus.store(text, b"registered");
    let mut far_queue = Completions {
        number: 1,
        address: 0,
        depth: 64,
        read: 0,
    };
    far_queue.address = MEMORY + 4 * 4096;
    let poll = |it: &mut Connected, queue: &mut Completions| {
        it.far.poll(queue).expect("a completion").status
    };
    assert_eq!(
        it.write((VIRTUAL, 9 << 8), b"text"),
        3,
        "not yet registered"
    );
    // page addresses in the request, with another key
    let mut it = connected();
    let table_again = fast(&mut it.far, 9, 16);
    assert_eq!(table_again, table);
    for _ in 0..6 {
        it.far.pages(1);
    }
    let key = 9 << 8 | 0x42;
    let mut request = register(VIRTUAL + 0x10, 8192, key, ALL, 4);
    for (i, page) in pages[..4].iter().enumerate() {
        request = request.u64(32 + 8 * i, *page);
    }
    it.far.post_send(&mut it.other, &request);
    assert_eq!(poll(&mut it, &mut far_queue), 0);
    assert_eq!(it.write((VIRTUAL + 0x10 + 4096, key), b"registered"), 0);
    assert_eq!(it.far.load(pages[1] + 0x10, 10), b"registered");
    // page addresses in the table
    it.far
        .post_send(&mut it.other, &Request::new(LOCAL_INV).u32(20, key));
    assert_eq!(poll(&mut it, &mut far_queue), 0);
    let bytes: Vec<u8> = pages.iter().flat_map(|it| it.to_le_bytes()).collect();
    it.far.bus.store(table, &bytes);
    let request = register(VIRTUAL, 6 << 12, key + 1, ALL, 6);
    let attributes = ALL << 1 | 6 << 12 | 1 << 6;
    it.far
        .post_send(&mut it.other, &request.u32(24, attributes));
    assert_eq!(poll(&mut it, &mut far_queue), 0);
    assert_eq!(it.write((VIRTUAL + (5 << 12), key + 1), b"sixth"), 0);
    assert_eq!(it.far.load(pages[5], 5), b"sixth");
    assert_eq!(it.write((VIRTUAL, key), b"x"), 3, "the key before");
}

#[test]
fn bad_registrations_are_refused() {
    for (request, status, why) in [
        (register(VIRTUAL, 4096, 8 << 8, ALL, 1), 10, "no region"),
        (
            register(VIRTUAL, 4096, 1 << 8, ALL, 1),
            10,
            "a region of a command",
        ),
        (
            register(VIRTUAL, 4097, 9 << 8, ALL, 1),
            11,
            "larger than its pages",
        ),
        (
            register(VIRTUAL, 4096, 9 << 8, ALL, 5),
            8,
            "five pages in the request",
        ),
        (
            register(VIRTUAL, 4096, 9 << 8, ALL, 17).u32(24, 17 << 12 | 1 << 6),
            8,
            "more pages than the region has",
        ),
        (
            Request::new(LOCAL_INV).u32(20, 9 << 8 | 1),
            10,
            "another key",
        ),
        (
            Request::new(LOCAL_INV).u32(20, 1 << 8),
            10,
            "a region of a command",
        ),
    ] {
        let mut it = connected();
        fast(&mut it.near, 9, 16);
        assert_eq!(it.request(&request).status, status, "{why}");
    }
}

#[test]
fn the_key_of_all_memory_and_regions_of_all_memory() {
    let mut it = connected();
    let far = it.far.region(9, ALL, 1);
    let page = it.near.pages(1);
    it.near.bus.store(page, b"by the driver");
    assert_eq!(
        it.request(&write(far, &[(page, 13, 0xffff_ff00)])).status,
        0
    );
    assert_eq!(it.far.load(far.0, 13), b"by the driver");
    // get_dma_mr
    let all = Command::new(0, 8)
        .u32(8, 7)
        .u32(12, DOMAIN << 12 | 2 << 6 | ALL << 1);
    it.far.command(all).expect("a region");
    assert_eq!(it.write((far.0 + 100, 7 << 8), b"text"), 0);
    assert_eq!(it.far.load(far.0 + 100, 4), b"text");
    assert_eq!(
        it.write((MEMORY + MEMORY_SIZE as u64 - 2, 7 << 8), b"text"),
        4,
        "beyond the memory"
    );
}
