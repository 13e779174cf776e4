// SPDX-License-Identifier: Apache-2.0
#![doc = include_str!("../README.md")]
//!
//! # Modules
//!
//! | module | owns |
//! |---|---|
//! | [`observed`], [`link`], [`name`], [`hardware_address`], [`child`], [`rule`], [`rdma`], [`gid`], [`guid`], [`ipoib`], [`device`] | the data: a node's and a pod's state |
//! | [`device_settings`] | further settings of a netdev, which a [`Link`] does not contain |
//! | [`inventory`] | the node's hardware from which resources are formed |
//! | [`gpudirect`] | registration of accelerators' memory with RDMA devices |
//! | [`vf`] | the settings that the host makes for a virtual function through its physical function |
//! | [`uplink`] | the netdevs that the node needs for its own network connection |
//! | [`pairing`] | the assignment of netdevs and RDMA devices to NICs |
//! | [`op`] | one change, and its `ip`/`rdma` equivalent |
//! | [`probe`] | probes for addresses on the wire, and the known neighbours |
//! | [`kernel`] | the trait [`Kernel`], which Linux and the tests' fake kernel implement |
//! | [`mod@reconcile`] | the loop that repeats a plan until the state is the desired one |
//! | [`linux`] | the real kernel: rtnetlink, RDMA netlink, sysfs, sysctl |
//! | [`netns`] | opening, identifying and entering network namespaces |
//! | [`netlink`] | the exchange of one request and its answer, with the kernel's own error message |
//! | [`sidr`] | an RDMA echo by the peer's connection manager |
//! | [`smc`] | the kernel's SMC state: pnet table, devices, EIDs, link groups, connections |

pub mod capabilities;
pub mod child;
pub mod device;
pub mod device_settings;
pub mod gid;
pub mod gpudirect;
pub mod guid;
pub mod hardware_address;
pub mod inventory;
pub mod ipoib;
pub mod kernel;
pub mod link;
pub mod linux;
pub mod name;
pub mod netlink;
pub mod netns;
pub mod observed;
pub mod op;
pub mod pairing;
pub mod probe;
pub mod rdma;
pub mod reconcile;
pub mod rule;
pub mod sidr;
pub mod smc;
mod text_type;
pub mod uplink;
pub mod vf;

pub use child::{Child, IpvlanMode, MacvlanMode};
pub use device::{Device, DeviceAddress};
pub use device_settings::DeviceSettings;
pub use gid::{Gid, GidKind, GidTable};
pub use gpudirect::GpuDirect;
pub use guid::Guid;
pub use hardware_address::HardwareAddress;
pub use inventory::{
    Accelerator, ErdmaModule, Function, Hca, HcaPort, Inventory, Netdev, PciPath, Vlan,
};
pub use ipoib::{Ipoib, IpoibMode, Pkey};
pub use kernel::{Kernel, ObservationScope, ObserveError, OpError, Pod};
pub use link::{Address, Link, LinkFlag, LinkSetting, LinkType, Origin, Route};
pub use linux::{GpuDirectReader, Linux, RdmaCgroup, accelerator_names, accelerators};
pub use name::InterfaceName;
pub use netns::{NetnsId, OpenPodError};
pub use observed::{Namespace, Observed};
pub use op::{LinkChange, NetnsSide, Op};
pub use probe::{Conflict, Neighbour, ProbeError, Probed, Question};
pub use rdma::{CharDevice, RdmaDevice, RdmaMode, SubDevice};
pub use reconcile::{Desired, Plan, Refusal, Unstable, reconcile};
pub use rule::{GeneralRule, Rule};
pub use uplink::Uplink;
pub use vf::{Vf, VfLinkState, VfRates, VfSetting, VfSettingKind, VfVlan, VlanProtocol};
