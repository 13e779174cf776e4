// SPDX-License-Identifier: Apache-2.0
//! Commands and events of `/dev/infiniband/rdma_cm` (`include/uapi/rdma/rdma_user_cm.h`).

use std::{mem::offset_of, net::IpAddr};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// `RDMA_USER_CM_CMD_*`
pub(super) mod command {
    pub(in super::super) const CREATE_ID: u32 = 0;
    pub(in super::super) const RESOLVE_ROUTE: u32 = 4;
    pub(in super::super) const CONNECT: u32 = 6;
    pub(in super::super) const GET_EVENT: u32 = 12;
    pub(in super::super) const SET_OPTION: u32 = 14;
    pub(in super::super) const QUERY: u32 = 19;
    pub(in super::super) const BIND: u32 = 20;
    pub(in super::super) const RESOLVE_ADDR: u32 = 21;
}

/// `enum rdma_cm_event_type` (`include/rdma/rdma_cm.h`)
pub(super) mod event {
    pub(in super::super) const ADDR_RESOLVED: u32 = 0;
    pub(in super::super) const ADDR_ERROR: u32 = 1;
    pub(in super::super) const ROUTE_RESOLVED: u32 = 2;
    pub(in super::super) const ROUTE_ERROR: u32 = 3;
    pub(in super::super) const UNREACHABLE: u32 = 7;
    pub(in super::super) const ESTABLISHED: u32 = 9;
    pub(in super::super) const DEVICE_REMOVAL: u32 = 11;
}

/// `RDMA_PS_UDP`
pub(super) const PORT_SPACE: u16 = 0x111;
/// Type of a queue pair for unreliable datagrams: `IB_QPT_UD` (`include/rdma/ib_verbs.h`).
pub(super) const UNRELIABLE_DATAGRAM: u8 = 4;
/// `RDMA_OPTION_ID`
pub(super) const OPTION_ID: u32 = 0;
/// `RDMA_OPTION_ID_TOS`
pub(super) const OPTION_TOS: u32 = 0;
/// `RDMA_USER_CM_QUERY_ADDR`
pub(super) const QUERY_ADDRESS: u32 = 0;

/// `sizeof(struct __kernel_sockaddr_storage)`
const SOCKET_ADDRESS: usize = 128;

// the sizes and offsets of `PLACES` in tests/headers.rs; that test compares `PLACES` with the kernel's headers
const _: () = {
    assert!(size_of::<Header>() == 8);
    assert!(size_of::<CreateId>() == 24);
    assert!(size_of::<Bind>() == 136);
    assert!(size_of::<ResolveAddress>() == 272);
    assert!(size_of::<ResolveRoute>() == 8);
    assert!(size_of::<SetOption>() == 24);
    assert!(size_of::<Query>() == 16);
    assert!(size_of::<Addresses>() == 280);
    assert!(size_of::<Connect>() == 288);
    assert!(size_of::<GetEvent>() == 8);
    assert!(size_of::<Event>() == 336);
    assert!(offset_of!(Header, output) == 6);
    assert!(offset_of!(CreateId, response) == 8);
    assert!(offset_of!(CreateId, port_space) == 16);
    assert!(offset_of!(CreateId, queue_pair) == 18);
    assert!(offset_of!(Bind, size) == 4);
    assert!(offset_of!(Bind, address) == 8);
    assert!(offset_of!(ResolveAddress, timeout_ms) == 4);
    assert!(offset_of!(ResolveAddress, source_size) == 8);
    assert!(offset_of!(ResolveAddress, destination_size) == 10);
    assert!(offset_of!(ResolveAddress, source) == 16);
    assert!(offset_of!(ResolveAddress, destination) == 144);
    assert!(offset_of!(ResolveRoute, timeout_ms) == 4);
    assert!(offset_of!(SetOption, id) == 8);
    assert!(offset_of!(SetOption, level) == 12);
    assert!(offset_of!(SetOption, name) == 16);
    assert!(offset_of!(SetOption, length) == 20);
    assert!(offset_of!(Query, id) == 8);
    assert!(offset_of!(Query, option) == 12);
    assert!(offset_of!(Addresses, port) == 8);
    assert!(offset_of!(Addresses, source) == 16);
    assert!(offset_of!(Addresses, device) == 272);
    assert!(offset_of!(Connect, valid) == 271);
    assert!(offset_of!(Connect, id) == 272);
    assert!(offset_of!(Event, event) == 12);
    assert!(offset_of!(Event, status) == 16);
    assert!(offset_of!(Event, reserved) == 324);
};

/// `struct rdma_ucm_cmd_hdr`
#[derive(Immutable, IntoBytes)]
#[repr(C)]
pub(super) struct Header {
    pub(super) command: u32,
    /// Number of bytes that follow the header.
    pub(super) input: u16,
    /// Number of bytes that the kernel may write to the answer.
    pub(super) output: u16,
}

/// `struct rdma_ucm_create_id`
#[derive(Immutable, IntoBytes)]
#[repr(C)]
pub(super) struct CreateId {
    pub(super) uid: u64,
    pub(super) response: u64,
    pub(super) port_space: u16,
    pub(super) queue_pair: u8,
    pub(super) reserved: [u8; 5],
}

/// `struct rdma_ucm_bind`
#[derive(Immutable, IntoBytes)]
#[repr(C)]
pub(super) struct Bind {
    pub(super) id: u32,
    pub(super) size: u16,
    pub(super) reserved: u16,
    pub(super) address: SocketAddress,
}

/// `struct rdma_ucm_resolve_addr`
#[derive(Immutable, IntoBytes)]
#[repr(C)]
pub(super) struct ResolveAddress {
    pub(super) id: u32,
    pub(super) timeout_ms: u32,
    pub(super) source_size: u16,
    pub(super) destination_size: u16,
    pub(super) reserved: u32,
    pub(super) source: SocketAddress,
    pub(super) destination: SocketAddress,
}

/// `struct rdma_ucm_resolve_route`
#[derive(Immutable, IntoBytes)]
#[repr(C)]
pub(super) struct ResolveRoute {
    pub(super) id: u32,
    pub(super) timeout_ms: u32,
}

/// `struct rdma_ucm_set_option`
#[derive(Immutable, IntoBytes)]
#[repr(C)]
pub(super) struct SetOption {
    pub(super) value: u64,
    pub(super) id: u32,
    pub(super) level: u32,
    pub(super) name: u32,
    pub(super) length: u32,
}

/// `struct rdma_ucm_query`
#[derive(Immutable, IntoBytes)]
#[repr(C)]
pub(super) struct Query {
    pub(super) response: u64,
    pub(super) id: u32,
    pub(super) option: u32,
}

/// `struct rdma_ucm_query_addr_resp`
#[derive(FromBytes)]
#[repr(C)]
pub(super) struct Addresses {
    pub(super) node_guid: u64,
    pub(super) port: u8,
    pub(super) reserved: u8,
    pub(super) partition: u16,
    pub(super) source_size: u16,
    pub(super) destination_size: u16,
    pub(super) source: SocketAddress,
    pub(super) destination: SocketAddress,
    pub(super) device: u32,
    pub(super) reserved1: u32,
}

/// `struct rdma_ucm_connect`. Its first part is `struct rdma_ucm_conn_param`.
#[derive(FromBytes, Immutable, IntoBytes)]
#[repr(C)]
pub(super) struct Connect {
    pub(super) queue_pair: u32,
    pub(super) queue_key: u32,
    pub(super) private_data: [u8; 256],
    pub(super) private_data_length: u8,
    pub(super) parameters: [u8; 6],
    pub(super) valid: u8,
    pub(super) id: u32,
    pub(super) reserved: u32,
    pub(super) enhanced: [u32; 2],
}

/// `struct rdma_ucm_get_event`
#[derive(Immutable, IntoBytes)]
#[repr(C)]
pub(super) struct GetEvent {
    pub(super) response: u64,
}

/// `struct rdma_ucm_event_resp`. This program does not read the parameters of a connection.
#[derive(FromBytes)]
#[repr(C)]
pub(super) struct Event {
    pub(super) uid: u64,
    pub(super) id: u32,
    pub(super) event: u32,
    pub(super) status: u32,
    pub(super) parameters: [u32; 76],
    pub(super) reserved: u32,
    pub(super) enhanced: [u32; 2],
}

/// `struct __kernel_sockaddr_storage` with an IPv4 or IPv6 address.
#[derive(FromBytes, Immutable, IntoBytes)]
#[repr(C)]
pub(super) struct SocketAddress(pub(super) [u8; SOCKET_ADDRESS]);

impl SocketAddress {
    /// Returns a storage that begins with `struct sockaddr_in` or `struct sockaddr_in6`, and the size of this
    /// structure.
    pub(super) fn new(address: IpAddr, port: u16) -> (Self, u16) {
        let mut bytes = [0; SOCKET_ADDRESS];
        let (family, size) = match address {
            IpAddr::V4(address) => {
                bytes[4..8].copy_from_slice(&address.octets());
                (nix::libc::AF_INET, 16)
            }
            IpAddr::V6(address) => {
                bytes[8..24].copy_from_slice(&address.octets());
                (nix::libc::AF_INET6, 28)
            }
        };
        bytes[..2].copy_from_slice(&(family as u16).to_ne_bytes());
        bytes[2..4].copy_from_slice(&port.to_be_bytes());
        (Self(bytes), size)
    }

    pub(super) fn address(&self) -> Option<IpAddr> {
        let Self(bytes) = self;
        match i32::from(u16::from_ne_bytes([bytes[0], bytes[1]])) {
            nix::libc::AF_INET => <[u8; 4]>::try_from(&bytes[4..8]).ok().map(IpAddr::from),
            nix::libc::AF_INET6 => <[u8; 16]>::try_from(&bytes[8..24]).ok().map(IpAddr::from),
            _ => None,
        }
    }
}
