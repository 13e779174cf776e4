// SPDX-License-Identifier: Apache-2.0
//! A netlink socket. It sends a request, and reads answers until the kernel has reported the outcome.

use super::{HEADER, NetlinkError, ext_ack, messages};
use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR, NLMSG_NOOP,
    NLMSG_OVERRUN, NetlinkBuffer, NetlinkSerializable,
};
use netlink_sys::SocketAddr;
use nix::{
    libc,
    sys::{
        socket::{setsockopt, sockopt},
        time::{TimeVal, TimeValLike},
    },
};
use std::{
    io,
    ops::Range,
    os::fd::{AsFd, BorrowedFd},
};

/// Number of tries of a dump during which objects change, and of an exchange whose buffer is too small.
const DUMP_ATTEMPTS: usize = 10;

/// Seconds to wait for each datagram of an answer. The kernel executes a request before the send returns, so an answer
/// that is missing then never arrives. The limit turns a defect of the kernel into an error. Without it, this program
/// would wait for ever.
const ANSWER_SECONDS: i64 = 30;

/// Buffer size in bytes. It suffices for the largest datagram of most dumps (32 KiB, `netlink_dump()` in
/// `net/netlink/af_netlink.c`). The answer about a physical function with many virtual functions is longer.
const DATAGRAM: usize = 32 << 10;

/// Initial capacity in bytes for an answer. Most answers fit without a reallocation, even if one more [`DATAGRAM`]
/// follows.
const ANSWER: usize = 2 * DATAGRAM;

/// A netlink socket. Its requests apply to the namespace of the thread that opened the socket, even if another thread
/// uses it later. The move of an RDMA device is an exception: the kernel checks the namespace of the sending thread.
#[derive(Debug)]
pub struct Socket {
    socket: netlink_sys::Socket,
    sequence: u32,
    /// Buffer size in bytes for one datagram: [`DATAGRAM`], or the length of the longest datagram so far if it is
    /// larger.
    room: usize,
}

/// The received messages of an answer, in one buffer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answers {
    datagrams: Vec<u8>,
    /// Positions of the messages' bodies in the buffer.
    bodies: Vec<Range<usize>>,
}

/// End of an exchange whose request the kernel did not refuse.
enum Ending {
    Complete,
    /// Objects changed during the dump, or a part of the dump was lost.
    Interrupted,
    /// A datagram was longer than the buffer. The buffer has been enlarged.
    Cut,
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Socket {
    /// Opens a socket of `protocol` (`netlink_sys::protocols`) in the calling thread's network namespace.
    ///
    /// # Errors
    /// EPROTONOSUPPORT: this kernel has no such subsystem.
    pub fn open(protocol: isize) -> io::Result<Self> {
        let socket = netlink_sys::Socket::new(protocol)?;
        socket.set_ext_ack(true)?;
        socket.set_cap_ack(true)?;
        socket.set_netlink_get_strict_chk(true)?;
        setsockopt(
            &socket,
            sockopt::ReceiveTimeout,
            &TimeVal::seconds(ANSWER_SECONDS),
        )?;
        Ok(Self {
            socket,
            sequence: 0,
            room: DATAGRAM,
        })
    }

    /// Sends a request for one object or one change. Adds `flags` to `NLM_F_REQUEST|NLM_F_ACK`.
    pub fn request<M>(&mut self, message: &M, flags: u16) -> Result<Answers, NetlinkError>
    where
        M: NetlinkSerializable,
    {
        match self.whole(frame(message, flags | NLM_F_ACK))? {
            (answers, Ending::Complete) => Ok(answers),
            _ => Err(io::Error::from_raw_os_error(libc::ENOBUFS).into()),
        }
    }

    /// Dumps all objects. Repeats the dump if objects changed during the dump.
    pub fn dump(&mut self, message: &impl NetlinkSerializable) -> Result<Answers, NetlinkError> {
        for _ in 0..DUMP_ATTEMPTS {
            if let (answers, Ending::Complete) = self.whole(frame(message, NLM_F_DUMP))? {
                return Ok(answers);
            }
            log::debug!("netlink dump interrupted");
        }
        Err(io::Error::from_raw_os_error(libc::EINTR).into())
    }

    /// Dumps all objects once. Objects that changed during the dump may be missing.
    pub fn dump_once<M>(&mut self, message: &M) -> Result<Answers, NetlinkError>
    where
        M: NetlinkSerializable,
    {
        let (answers, _) = self.whole(frame(message, NLM_F_DUMP))?;
        Ok(answers)
    }

    /// Dumps all objects, and returns the values that `keep` makes from the messages' bodies. Holds one datagram of the
    /// dump at a time. Repeats the dump if objects changed during the dump. Consumes the socket, because only its end
    /// ends a dump that exceeds the limit.
    ///
    /// # Errors
    /// The kernel refuses the dump, the dump has more than `limit` bytes, or objects changed during each attempt.
    pub fn dump_and_keep<T>(
        mut self,
        message: &impl NetlinkSerializable,
        limit: usize,
        mut keep: impl FnMut(&[u8]) -> Option<T>,
    ) -> Result<Vec<T>, NetlinkError> {
        let mut request = frame(message, NLM_F_DUMP);
        let mut answers = Answers::default();
        for _ in 0..DUMP_ATTEMPTS {
            let mut received = 0;
            let mut kept = Vec::new();
            let ending = self.exchange(&mut request, &mut answers, |datagram| {
                received += datagram.datagrams.len();
                if received > limit {
                    let text = format!("the kernel's answer has more than {limit} bytes");
                    return Err(io::Error::other(text));
                }
                kept.extend(datagram.bodies().filter_map(&mut keep));
                datagram.clear();
                Ok(())
            })?;
            if let Ending::Complete = ending {
                return Ok(kept);
            }
            answers.clear();
            log::debug!("netlink dump interrupted");
        }
        Err(io::Error::from_raw_os_error(libc::EINTR).into())
    }

    /// Sends a request and receives its answer. Repeats the exchange if the buffer was too small. Only queries have
    /// long answers, so a change is never repeated.
    fn whole(&mut self, mut request: Vec<u8>) -> Result<(Answers, Ending), NetlinkError> {
        let mut answers = Answers::default();
        for _ in 0..DUMP_ATTEMPTS {
            match self.exchange(&mut request, &mut answers, |_| Ok(()))? {
                Ending::Cut => answers.clear(),
                ending => return Ok((answers, ending)),
            }
        }
        Err(io::Error::from_raw_os_error(libc::ENOBUFS).into())
    }

    /// Sends a request, and adds its answer to `answers`. Calls `added` after each datagram.
    fn exchange(
        &mut self,
        request: &mut [u8],
        answers: &mut Answers,
        mut added: impl FnMut(&mut Answers) -> io::Result<()>,
    ) -> Result<Ending, NetlinkError> {
        answers.datagrams.reserve(ANSWER);
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkBuffer::new(&mut *request);
        header.set_sequence_number(self.sequence);
        let is_dump = header.flags() & NLM_F_DUMP == NLM_F_DUMP;
        let kernel = SocketAddr::new(0, 0);
        retry(|| self.socket.send_to(request, &kernel, 0))?;
        let mut ending = Ending::Complete;
        loop {
            let received = answers.datagrams.len();
            match self.receive(&mut answers.datagrams) {
                Ok(Received::Whole) => {}
                Ok(Received::Cut) => return self.drain().map(|()| Ending::Cut),
                Ok(Received::Others) => continue,
                // the kernel dropped a message: the end of a dump still arrives, but the answer to another request
                // never arrives
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                    if !is_dump {
                        return Err(error.into());
                    }
                    ending = Ending::Interrupted;
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(io::Error::from_raw_os_error(libc::ETIMEDOUT).into());
                }
                Err(error) => return Err(error.into()),
            }
            let read = answers.read(received, self.sequence)?;
            added(answers)?;
            if read.is_interrupted {
                ending = Ending::Interrupted;
            }
            if read.is_end {
                return Ok(ending);
            }
        }
    }

    /// Discards the rest of an answer before the next exchange. The rest is pending, or the kernel generates it as this
    /// function reads.
    fn drain(&mut self) -> Result<(), NetlinkError> {
        loop {
            let mut rest = &mut [0_u8; 0][..];
            match retry(|| self.socket.recv(&mut rest, libc::MSG_DONTWAIT)) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Adds one datagram to `datagrams`. Does not query the datagram's length first, because the query would double the
    /// number of system calls.
    fn receive(&mut self, datagrams: &mut Vec<u8>) -> io::Result<Received> {
        let before = datagrams.len();
        datagrams.reserve(self.room);
        let (length, sender) = retry(|| self.socket.recv_from(datagrams, libc::MSG_TRUNC))?;
        if sender.port_number() != 0 {
            datagrams.truncate(before);
            return Ok(Received::Others);
        }
        if length > datagrams.len() - before {
            self.room = length;
            return Ok(Received::Cut);
        }
        Ok(Received::Whole)
    }
}

/// Part of a datagram that was added to an answer.
enum Received {
    /// The whole datagram was added.
    Whole,
    /// Only the beginning was added. The buffer is large enough for the next attempt.
    Cut,
    /// Nothing was added, because the sender was not the kernel.
    Others,
}

/// Progress of an exchange after a datagram.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Read {
    /// True if the kernel has reported the outcome.
    pub(crate) is_end: bool,
    is_interrupted: bool,
}

impl Answers {
    /// Returns the bodies of the messages in order, without their headers.
    pub fn bodies(&self) -> impl Iterator<Item = &[u8]> {
        self.bodies.iter().map(|it| &self.datagrams[it.clone()])
    }

    /// Adds the messages of `datagram` that answer the request `sequence`.
    ///
    /// # Errors
    /// The kernel refused the request.
    pub(crate) fn add(&mut self, datagram: &[u8], sequence: u32) -> Result<Read, NetlinkError> {
        let received = self.datagrams.len();
        self.datagrams.extend_from_slice(datagram);
        self.read(received, sequence)
    }

    /// Reads the messages of the datagram that begins at `start`.
    fn read(&mut self, mut start: usize, sequence: u32) -> Result<Read, NetlinkError> {
        let mut read = Read::default();
        for message in messages(&self.datagrams[start..]) {
            let length = message.length() as usize;
            let body = start + HEADER..start + length;
            start += length.next_multiple_of(4);
            if message.sequence_number() != sequence {
                continue; // an answer of an abandoned exchange
            }
            read.is_interrupted |= message.flags() & NLM_F_DUMP_INTR != 0;
            match message.message_type() {
                NLMSG_ERROR => ext_ack::acknowledgement(message.flags(), message.payload())?,
                NLMSG_DONE => ext_ack::end_of_dump(message.flags(), message.payload())?,
                NLMSG_NOOP => continue,
                NLMSG_OVERRUN => {
                    read.is_interrupted = true;
                    continue;
                }
                _ => {
                    self.bodies.push(body);
                    continue;
                }
            }
            read.is_end = true;
            break;
        }
        Ok(read)
    }

    fn clear(&mut self) {
        self.datagrams.clear();
        self.bodies.clear();
    }
}

/// Calls `call` again as long as a signal interrupts it.
fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            outcome => return outcome,
        }
    }
}

/// Builds a request without a sequence number, which the caller sets later. Adds `flags` to `NLM_F_REQUEST`.
fn frame<M: NetlinkSerializable>(message: &M, flags: u16) -> Vec<u8> {
    let length = HEADER + message.buffer_len();
    let mut datagram = vec![0; length];
    message.serialize(&mut datagram[HEADER..]);
    let mut header = NetlinkBuffer::new(&mut datagram[..]);
    header.set_length(length as u32);
    header.set_message_type(message.message_type());
    header.set_flags(flags | NLM_F_REQUEST);
    datagram
}
