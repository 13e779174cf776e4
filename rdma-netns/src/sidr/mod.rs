// SPDX-License-Identifier: Apache-2.0
//! RDMA echo that needs no program on the peer.
//!
//! The connection manager in the peer's kernel answers a service id resolution request (SIDR REQ, InfiniBand
//! specification, volume 1, chapter 12), even if no program provides the service (`cm_sidr_req_handler()`,
//! `drivers/infiniband/core/cm.c`). Request and answer use QP1 of the two RDMA devices. Like the pods' traffic, they
//! use the GID tables, the UDP port 4791 (RoCE v2), the VLAN and the traffic class. The echo needs only
//! `/dev/infiniband/rdma_cm`.
//!
//! The kernel repeats a request after 4 seconds, up to 15 times. With a shorter timeout, [`ask`] sends one packet.

mod abi;

use abi::{
    Addresses, Bind, Connect, CreateId, Event, GetEvent, Header, Query, ResolveAddress,
    ResolveRoute, SetOption, SocketAddress, command, event,
};
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};
use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::{fd::AsFd, unix::fs::OpenOptionsExt},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use zerocopy::{FromZeros, Immutable, IntoBytes};

/// Requested service: UDP port 9 ("discard"). The peer needs no program that provides the service.
const SERVICE: u16 = 9;

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Source address, which selects the RDMA device. `None`: the kernel selects address and device by its route.
    pub source: Option<IpAddr>,
    /// Address of the peer's rail.
    pub destination: IpAddr,
    /// Traffic class of the packets (for RoCE v2 over IPv4: the TOS byte). `None`: the device's default traffic class.
    pub traffic_class: Option<u8>,
    /// Time limit of each step: resolving the neighbour, resolving the route, and receiving the answer.
    pub timeout: Duration,
}

/// RDMA device, port and address of this machine in an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Local {
    /// Index of the RDMA device (`RDMA_NLDEV_ATTR_DEV_INDEX`).
    pub device: u32,
    /// Port of the device, from 1.
    pub port: u8,
    /// Source address of the request.
    pub address: Option<IpAddr>,
}

/// Answer of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// RDMA device, port and address of this machine.
    pub local: Local,
    /// Time from the request to its answer, without address and route resolution.
    pub time: Duration,
}

/// Reason why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The connection manager's device cannot be opened.
    #[error("cannot open {path:?}: {source}{}", hint(source))]
    Open {
        /// Path of the device.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// No RDMA device has the source address, or the route leads through a netdev without an RDMA device.
    #[error("no RDMA device leads to {0} from here")]
    NoDevice(IpAddr),
    /// The kernel has no route to the address.
    #[error("no route leads to {0}")]
    NoRoute(IpAddr),
    /// The next hop (the peer or a gateway) does not respond to ARP or neighbour discovery.
    #[error("the next hop to {0} does not answer ARP or neighbour discovery")]
    Unresolved(IpAddr),
    /// On InfiniBand, the subnet administrator has no path to the address.
    #[error("no path leads to {0}")]
    NoPath(IpAddr),
    /// This machine sent the request, but no answer arrived in time.
    #[error("no answer from {}", .destination)]
    Silent {
        /// RDMA device, port and address of this machine.
        local: Local,
        /// The peer's address.
        destination: IpAddr,
    },
    /// The RDMA device uses iWARP. iWARP has no such request, because its connections are TCP connections.
    #[error(
        "{0} speaks iWARP, which has no RDMA echo: its connections are TCP's, so use ping(8) or rping"
    )]
    Iwarp(String),
    /// The driver has no QP 1. A connection manager sends requests by QP 1.
    #[error(
        "the RDMA device's driver has no QP 1, which sends the requests: use ping(8) and perftest"
    )]
    NoQp1,
    /// The driver has removed the RDMA device since the request began.
    #[error("the driver has just removed the RDMA device: ping again when the device is back")]
    Removed,
    /// The kernel refused a step.
    #[error("cannot {step}: {source}")]
    Step {
        /// The step that the kernel refused.
        step: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => ": load the module rdma_ucm",
        io::ErrorKind::PermissionDenied => ": run this as root",
        _ => "",
    }
}

/// Sends one request to the peer, through the connection manager at `manager` (`/dev/infiniband/rdma_cm`), in the
/// network namespace of the calling thread. `iwarp` returns the name of the RDMA device with the given index, if it is
/// an iWARP device.
///
/// # Errors
/// See [`AskError`]. The kernel keeps no state of the request, even after an error.
pub fn ask(
    manager: &Path,
    request: &Request,
    iwarp: impl FnOnce(u32) -> Option<String>,
) -> Result<Answer, AskError> {
    // the kernel destroys the id when the file is closed
    let channel = Channel::open(manager)?;
    let id = channel.create()?;
    if let Some(class) = request.traffic_class {
        channel.set_traffic_class(id, class)?;
    }
    channel.resolve_address(id, request)?;
    let local = channel.local(id)?;
    if let Some(device) = iwarp(local.device) {
        return Err(AskError::Iwarp(device));
    }
    channel.resolve_route(id, request)?;
    let begin = Instant::now();
    let answered = channel.send(id, request)?;
    let time = begin.elapsed();
    match answered {
        true => Ok(Answer { local, time }),
        false => Err(AskError::Silent {
            local,
            destination: request.destination,
        }),
    }
}

/// Returns the index of the RDMA device that has `address` as a GID, in the network namespace of the calling thread.
/// Queries the connection manager at `manager`. Returns `None` if no RDMA device has the address.
///
/// # Errors
/// [`AskError::Open`] or [`AskError::Step`].
pub fn device_of(manager: &Path, address: IpAddr) -> Result<Option<u32>, AskError> {
    let channel = Channel::open(manager)?;
    let id = channel.create()?;
    match channel.bind(id, address) {
        Ok(()) => channel.local(id).map(|it| Some(it.device)),
        Err(error) => match errno_of(&error) {
            Errno::ENODEV | Errno::EADDRNOTAVAIL => Ok(None),
            _ => Err(refused("bind to an address")(error)),
        },
    }
}

/// An open channel to the connection manager.
struct Channel(File);

impl Channel {
    fn open(path: &Path) -> Result<Self, AskError> {
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        options.custom_flags(nix::libc::O_NONBLOCK | nix::libc::O_CLOEXEC);
        let opened = options.open(path).map_err(|source| AskError::Open {
            path: path.to_owned(),
            source,
        });
        opened.map(Self)
    }

    /// Executes one command. The kernel writes up to `output` bytes to the memory whose address `input` contains.
    fn execute<T>(&self, command: u32, input: &T, output: usize) -> io::Result<()>
    where
        T: Immutable + IntoBytes,
    {
        let header = Header {
            command,
            input: size_of::<T>() as u16,
            output: output as u16,
        };
        let message = [header.as_bytes(), input.as_bytes()].concat();
        (&self.0).write_all(&message)
    }

    fn create(&self) -> Result<u32, AskError> {
        let mut id = 0_u32;
        let input = CreateId {
            // an id with the uid 0 gets no events (`ucma_event_handler()`, `drivers/infiniband/core/ucma.c`)
            uid: 1,
            response: &raw mut id as u64,
            port_space: abi::PORT_SPACE,
            queue_pair: abi::UNRELIABLE_DATAGRAM,
            reserved: [0; 5],
        };
        self.execute(command::CREATE_ID, &input, size_of_val(&id))
            .map_err(refused("create a connection manager's id"))?;
        Ok(id)
    }

    fn set_traffic_class(&self, id: u32, class: u8) -> Result<(), AskError> {
        let input = SetOption {
            value: &raw const class as u64,
            id,
            level: abi::OPTION_ID,
            name: abi::OPTION_TOS,
            length: 1,
        };
        self.execute(command::SET_OPTION, &input, 0)
            .map_err(refused("set the traffic class"))
    }

    fn bind(&self, id: u32, address: IpAddr) -> io::Result<()> {
        let (address, size) = SocketAddress::new(address, 0);
        let input = Bind {
            id,
            size,
            reserved: 0,
            address,
        };
        self.execute(command::BIND, &input, 0)
    }

    fn resolve_address(&self, id: u32, request: &Request) -> Result<(), AskError> {
        let destination = request.destination;
        // the kernel binds the id to the unspecified address, whose family must be that of the destination
        let any = match destination {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let (source, source_size) = SocketAddress::new(request.source.unwrap_or(any), 0);
        let (to, destination_size) = SocketAddress::new(destination, SERVICE);
        let input = ResolveAddress {
            id,
            timeout_ms: milliseconds(request.timeout),
            source_size,
            destination_size,
            reserved: 0,
            source,
            destination: to,
        };
        let unresolved = |errno: Errno| match errno {
            Errno::ENODEV | Errno::EADDRNOTAVAIL => AskError::NoDevice(destination),
            Errno::ENETUNREACH => AskError::NoRoute(destination),
            Errno::ETIMEDOUT | Errno::EHOSTUNREACH => AskError::Unresolved(destination),
            errno => refused("resolve the address")(errno.into()),
        };
        self.execute(command::RESOLVE_ADDR, &input, 0)
            .map_err(|error| unresolved(errno_of(&error)))?;
        match self.wait(request.timeout + Duration::from_secs(1))? {
            Some((event::ADDR_RESOLVED, _)) => Ok(()),
            Some((event::ADDR_ERROR, status)) => Err(unresolved(Errno::from_raw(-status))),
            None => Err(AskError::Unresolved(destination)),
            Some(other) => Err(unexpected("resolve the address", other)),
        }
    }

    fn local(&self, id: u32) -> Result<Local, AskError> {
        let mut addresses = Addresses::new_zeroed();
        let input = Query {
            response: &raw mut addresses as u64,
            id,
            option: abi::QUERY_ADDRESS,
        };
        self.execute(command::QUERY, &input, size_of::<Addresses>())
            .map_err(refused("query the RDMA device"))?;
        Ok(Local {
            device: addresses.device,
            port: addresses.port,
            address: addresses.source.address(),
        })
    }

    fn resolve_route(&self, id: u32, request: &Request) -> Result<(), AskError> {
        let input = ResolveRoute {
            id,
            timeout_ms: milliseconds(request.timeout),
        };
        self.execute(command::RESOLVE_ROUTE, &input, 0)
            .map_err(refused("resolve the route"))?;
        match self.wait(request.timeout + Duration::from_secs(1))? {
            Some((event::ROUTE_RESOLVED, _)) => Ok(()),
            Some((event::ROUTE_ERROR, _)) | None => Err(AskError::NoPath(request.destination)),
            Some(other) => Err(unexpected("resolve the route", other)),
        }
    }

    /// Sends the request. Returns true if the peer answered.
    fn send(&self, id: u32, request: &Request) -> Result<bool, AskError> {
        let mut input = Connect::new_zeroed();
        (input.id, input.valid) = (id, 1);
        if let Err(error) = self.execute(command::CONNECT, &input, 0) {
            // the kernel reports the removal of the device before it refuses the request
            // (`cma_send_device_removal_put()`, `drivers/infiniband/core/cma.c`)
            self.wait(Duration::ZERO)?;
            return Err(match errno_of(&error) {
                // the connection manager does not use any port of the device (`cm_init_av_by_path()`, `cm.c`)
                Errno::EINVAL => AskError::NoQp1,
                _ => refused("send the request")(error),
            });
        }
        match self.wait(request.timeout)? {
            // a status above 0 is the peer's answer (`enum ib_cm_sidr_status`), a status below 0 is an error of this
            // machine's kernel
            Some((event::UNREACHABLE, status)) => Ok(status > 0),
            Some((event::ESTABLISHED, _)) => Ok(true),
            None => Ok(false),
            Some(other) => Err(unexpected("send the request", other)),
        }
    }

    /// Returns the next event and its status. Returns `None` if no event arrives within `timeout`.
    fn wait(&self, timeout: Duration) -> Result<Option<(u32, i32)>, AskError> {
        let until = Instant::now() + timeout;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let left = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            let mut ready = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
            match poll(&mut ready, left) {
                Ok(0) => return Ok(None),
                Ok(_) => break,
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(refused("wait for an event")(errno.into())),
            }
        }
        let mut event = Event::new_zeroed();
        let input = GetEvent {
            response: &raw mut event as u64,
        };
        self.execute(command::GET_EVENT, &input, size_of::<Event>())
            .map_err(refused("read an event"))?;
        match event.event {
            event::DEVICE_REMOVAL => Err(AskError::Removed),
            number => Ok(Some((number, event.status as i32))),
        }
    }
}

fn milliseconds(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

fn refused(step: &'static str) -> impl Fn(io::Error) -> AskError {
    move |source| AskError::Step { step, source }
}

fn errno_of(error: &io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or_default())
}

fn unexpected(step: &'static str, (event, status): (u32, i32)) -> AskError {
    let source = match status {
        ..0 => Errno::from_raw(-status).into(),
        _ => io::Error::other(format!("event {event} with status {status}")),
    };
    AskError::Step { step, source }
}
