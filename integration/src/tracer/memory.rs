// SPDX-License-Identifier: Apache-2.0
//! Reads a stopped thread's memory and descriptors.

use nix::unistd::Pid;
use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
};

/// Returns `length` bytes at `address`, or fewer if the thread's memory ends before.
pub(super) fn bytes(thread: Pid, address: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    let read = File::open(format!("/proc/{thread}/mem"))
        .and_then(|memory| memory.read_at(&mut bytes, address));
    bytes.truncate(read.unwrap_or_default());
    bytes
}

/// Returns the text at `address`, up to its NUL.
pub(super) fn text(thread: Pid, address: u64) -> String {
    let bytes = bytes(thread, address, 4096);
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

/// Returns the machine word at `address`.
pub(super) fn word(thread: Pid, address: u64) -> u64 {
    let bytes = bytes(thread, address, 8);
    bytes.try_into().map_or(0, u64::from_ne_bytes)
}

/// Returns the target of a descriptor: a path, or `pipe:[4711]`.
pub(super) fn target(thread: Pid, descriptor: u64) -> String {
    let link = fs::read_link(format!("/proc/{thread}/fd/{descriptor}"));
    link.map_or_else(|_| String::new(), |it| it.to_string_lossy().into_owned())
}

/// Returns the threads of a process. Fails if the process does not exist.
pub(super) fn threads(process: Pid) -> io::Result<Vec<Pid>> {
    let tasks = fs::read_dir(format!("/proc/{process}/task"))?;
    let numbers = tasks.filter_map(|it| it.ok()?.file_name().to_str()?.parse().ok());
    Ok(numbers.map(Pid::from_raw).collect())
}

/// Returns the process of a thread.
pub(super) fn process(thread: Pid) -> Pid {
    let status = fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
    let number = line.and_then(|it| it.trim().parse().ok());
    number.map_or(thread, Pid::from_raw)
}
