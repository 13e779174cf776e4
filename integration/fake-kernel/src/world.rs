// SPDX-License-Identifier: Apache-2.0
//! Namespaces, their paths, and the devices in them.

use crate::{
    hca::{Hca, SubHca},
    netdev::{Netdev, Renaming, blank},
    nic::Nic,
    smc_state::{Settings, Smc},
};
use nix::errno::Errno;
use rdma_netns::{
    Device, DeviceAddress, HardwareAddress, InterfaceName, Link, LinkType, Neighbour, NetnsId,
    RdmaMode, Rule, VfSetting, VfSettingKind, link::Sysctls,
};
use std::{
    collections::BTreeMap,
    fmt,
    net::IpAddr,
    path::{Path, PathBuf},
};

/// A change that the world refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Error number.
    pub errno: Errno,
    /// The kernel's own sentence (`NLMSGERR_ATTR_MSG`), if it sends one.
    pub message: Option<&'static str>,
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Self {
        Self {
            errno,
            message: None,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.errno, self.message.unwrap_or_default())
    }
}

/// Refuses with `errno` and the kernel's `sentence`.
pub(crate) fn refuse<T>(errno: Errno, sentence: &'static str) -> Result<T, Refusal> {
    let message = Some(sentence);
    Err(Refusal { errno, message })
}

/// A node: its hardware, and the namespaces of one boot.
#[derive(Clone, Debug)]
pub struct World {
    /// Netns mode of RDMA, as `rdma system` shows it. `None`: ib_core is not loaded.
    pub rdma_mode: Option<RdmaMode>,
    /// True for Linux 6.2 and later, which renames a netdev that is up (`IFF_LIVE_RENAME_OK` was removed).
    pub renames_while_up: bool,
    /// Number of observations after which duplicate address detection ends. On Linux it takes one to two seconds.
    pub detection: u32,
    /// Number of observations after which udev has made a new character device's node.
    pub udev: u32,
    /// Addresses that another host on every link has, so that duplicate address detection fails.
    pub duplicates: Vec<IpAddr>,
    /// Addresses for which another host on every link is also probing. The node receives one such probe for each
    /// address. After this probe, the other host no longer wants the address.
    pub probing: Vec<IpAddr>,
    /// Addresses that another host takes while ADD sets them. ADD receives one announcement of each, after it has set
    /// all addresses.
    pub taken_late: Vec<IpAddr>,
    /// Addresses that were probed on the link. Each element is one probe over all netdevs.
    pub probed: Vec<Vec<(InterfaceName, IpAddr)>>,
    /// Entries in the host's neighbour table.
    pub neighbours: Vec<Neighbour>,
    /// Number of entries of a GID table.
    pub gid_table_size: u32,
    /// True if an address also has a GID of RoCE v1, in front of its GID of RoCE v2.
    pub gids_of_roce_v1: bool,
    /// Number of reads of a table that do not show a new GID yet. On Linux a new GID appears after 11 to 58 ms.
    pub gid_delay: u32,
    /// Announcements to neighbours, in order: hardware address and IP address.
    pub announced: Vec<(HardwareAddress, IpAddr)>,
    /// SMC of the kernel. `None`: the kernel has no SMC, like Debian's 7.2.
    pub smc: Option<Smc>,
    /// VF settings that the drivers of physical functions refuse to set.
    pub fixed_of_vfs: Vec<VfSettingKind>,
    /// VF settings that the drivers of physical functions do not report.
    pub unreported_of_vfs: Vec<VfSettingKind>,
    /// Drivers whose bind fails.
    pub broken_drivers: Vec<String>,
    /// Node and port GUID that the firmware of every function keeps, even if the physical function sets others.
    pub stuck_guids: Option<[u64; 2]>,
    /// True if an IPoIB child returns to the host when its namespace ends (Linux 5.13 and later, `netns_refund` of
    /// `ipoib_link_ops`). Earlier kernels destroy the child.
    pub returns_ipoib_children: bool,
    /// True if the new IPoIB netdev of a moved RDMA device is in the device's namespace (Linux 6.17 and later, commit
    /// f1208b05574f, `ipoib_add_port()`). Before, it is on the host.
    pub ipoib_follows_rdma: bool,
    /// Seconds since the boot.
    pub(crate) clock: u64,
    pub(crate) boot: u32,
    pub(crate) functions: Vec<Device>,
    /// Inodes of the functions' directories in sysfs.
    pub(crate) inodes: BTreeMap<DeviceAddress, u64>,
    pub(crate) vfs: BTreeMap<DeviceAddress, Vec<VfSetting>>,
    /// The plugged NICs, by function.
    pub(crate) nics: BTreeMap<DeviceAddress, Nic>,
    /// Names that udev gives to the netdevs of functions.
    pub(crate) names: BTreeMap<DeviceAddress, InterfaceName>,
    pub(crate) renaming: Vec<Renaming>,
    pub(crate) namespaces: Vec<Netns>,
    pub(crate) paths: BTreeMap<PathBuf, Option<NetnsId>>,
    pub(crate) netdevs: Vec<Netdev>,
    pub(crate) hcas: Vec<Hca>,
    pub(crate) sub_devices: Vec<SubHca>,
    pub(crate) next_cookie: u64,
    pub(crate) next_netdev: u64,
    pub(crate) next_inode: u64,
    pub(crate) next_hca: u32,
    pub(crate) next_queue_pair: u8,
    pub(crate) switched_on: Option<Box<World>>,
}

#[derive(Clone, Debug)]
pub(crate) struct Netns {
    pub(crate) id: NetnsId,
    /// `net.ipv{4,6}.conf.default`: the settings of a netdev that enters the namespace.
    pub(crate) defaults: Sysctls,
    /// Number of open descriptors. A namespace ends with the last of its descriptors and paths.
    pub(crate) descriptors: u32,
    pub(crate) rules: Vec<Rule>,
    pub(crate) smc: Settings,
}

/// The host's namespace, which never ends.
pub const HOST: NetnsId = NetnsId {
    device: 4,
    inode: 0xf000_0000,
    cookie: 1,
};

/// Default settings of a new namespace.
const UNTOUCHED: [(&str, i32); 21] = [
    ("ipv4/accept_local", 0),
    ("ipv4/accept_redirects", 1),
    ("ipv4/arp_announce", 0),
    ("ipv4/arp_filter", 0),
    ("ipv4/arp_ignore", 0),
    ("ipv4/arp_notify", 0),
    ("ipv4/forwarding", 0),
    ("ipv4/proxy_arp", 0),
    ("ipv4/rp_filter", 0),
    ("ipv4/send_redirects", 1),
    ("ipv4/src_valid_mark", 0),
    ("ipv6/accept_dad", 1),
    ("ipv6/accept_ra", 1),
    ("ipv6/accept_redirects", 1),
    ("ipv6/addr_gen_mode", 0),
    ("ipv6/autoconf", 1),
    ("ipv6/disable_ipv6", 0),
    ("ipv6/forwarding", 0),
    ("ipv6/optimistic_dad", 0),
    ("ipv6/proxy_ndp", 0),
    ("ipv6/use_tempaddr", 0),
];

impl World {
    /// Returns a node without hardware, with a Kubernetes node's usual settings, such as forwarding and loose reverse
    /// path filtering.
    pub fn new(rdma_mode: Option<RdmaMode>) -> Self {
        let mut defaults = untouched();
        for (key, value) in [
            ("ipv4/forwarding", 1),
            ("ipv4/rp_filter", 2),
            ("ipv6/forwarding", 1),
            ("ipv6/use_tempaddr", 2),
        ] {
            defaults.insert(key.into(), value);
        }
        let mut world = Self {
            rdma_mode,
            renames_while_up: false,
            detection: 8,
            udev: 0,
            duplicates: vec![],
            probing: vec![],
            taken_late: vec![],
            probed: vec![],
            neighbours: vec![],
            gid_table_size: 128,
            gids_of_roce_v1: false,
            gid_delay: 0,
            announced: vec![],
            smc: Some(Smc::default()),
            fixed_of_vfs: vec![],
            unreported_of_vfs: vec![],
            broken_drivers: vec![],
            stuck_guids: None,
            returns_ipoib_children: true,
            ipoib_follows_rdma: false,
            clock: 100,
            boot: 1,
            functions: vec![],
            inodes: BTreeMap::new(),
            vfs: BTreeMap::new(),
            nics: BTreeMap::new(),
            names: BTreeMap::new(),
            renaming: vec![],
            namespaces: vec![],
            paths: BTreeMap::from([("/proc/1/ns/net".into(), Some(HOST))]),
            netdevs: vec![],
            hcas: vec![],
            sub_devices: vec![],
            next_cookie: HOST.cookie + 1,
            next_netdev: 1,
            next_inode: 1,
            next_hca: 0,
            next_queue_pair: 0x41,
            switched_on: None,
        };
        world.namespaces.push(Netns {
            id: HOST,
            defaults,
            descriptors: 1,
            rules: vec![],
            smc: Settings::default(),
        });
        world.add_loopback(HOST);
        world
    }

    /// Makes a pod's namespace at `path`. An earlier namespace may have had the same inode, but never the same cookie
    /// (`net_gen_cookie()`, `net/core/net_namespace.c`).
    pub fn create_namespace(&mut self, path: impl AsRef<Path>) -> NetnsId {
        let taken = |inode: u64| self.namespaces.iter().any(|n| n.id.inode == inode);
        let inode = (HOST.inode..).find(|inode| !taken(*inode));
        let id = NetnsId {
            device: HOST.device,
            inode: inode.unwrap_or_default(),
            cookie: self.next_cookie,
        };
        self.next_cookie += 1;
        self.namespaces.push(Netns {
            id,
            defaults: untouched(),
            descriptors: 0,
            rules: vec![],
            smc: Settings::default(),
        });
        self.paths.insert(path.as_ref().to_owned(), Some(id));
        self.add_loopback(id);
        id
    }

    /// Makes a file at `path` that is no namespace.
    pub fn create_file(&mut self, path: impl AsRef<Path>) {
        self.paths.insert(path.as_ref().to_owned(), None);
    }

    /// `ip netns del`: removes the path. The namespace ends if no other path and no open descriptor leads to it.
    pub fn unmount(&mut self, path: impl AsRef<Path>) {
        if let Some(Some(id)) = self.paths.remove(path.as_ref()) {
            self.end_if_unused(id);
        }
    }

    /// Returns the namespace at `path`.
    pub fn namespace_at(&self, path: impl AsRef<Path>) -> Option<NetnsId> {
        *self.paths.get(path.as_ref())?
    }

    /// Returns the netdev with this name or alternative name.
    pub fn link(&self, netns: NetnsId, name: &str) -> Option<&Link> {
        Some(&self.netdevs[self.position(netns, name).ok()?].link)
    }

    /// Returns the netdevs of a namespace by index, beginning with `lo`.
    pub fn links(&self, netns: NetnsId) -> Vec<&Link> {
        let own = self.netdevs.iter().filter(|netdev| netdev.netns == netns);
        let mut links: Vec<&Link> = own.map(|netdev| &netdev.link).collect();
        links.sort_by_key(|link| link.index);
        links
    }

    /// Returns the namespace of the RDMA device `name`; in shared mode the host.
    pub fn place_of_rdma(&self, name: &str) -> Option<NetnsId> {
        let hca = self.hcas.iter().find(|hca| hca.name == name)?;
        Some(hca.netns)
    }

    /// Finds a netdev by its name, by an alternative name, or by an index in place of a name
    /// ([`InterfaceName::of_index`]).
    pub(crate) fn position(&self, netns: NetnsId, name: &str) -> Result<usize, Refusal> {
        let index: Option<u32> = name.strip_prefix(':').and_then(|it| it.parse().ok());
        let is_it = |link: &Link| match index {
            Some(index) => link.index == index,
            None => link.has_name(name),
        };
        self.netdevs
            .iter()
            .position(|netdev| netdev.netns == netns && is_it(&netdev.link))
            .ok_or(Errno::ENODEV.into())
    }

    pub(crate) fn netdev(&mut self, netns: NetnsId, name: &str) -> Result<&mut Netdev, Refusal> {
        let position = self.position(netns, name)?;
        Ok(&mut self.netdevs[position])
    }

    pub(crate) fn name_in_use(&self, netns: NetnsId, name: &str) -> bool {
        let mut own = self.netdevs.iter().filter(|netdev| netdev.netns == netns);
        own.any(|netdev| netdev.link.has_name(name))
    }

    /// Returns the first free name of `<stem>0`, `<stem>1`… (`dev_alloc_name()`).
    pub(crate) fn numbered(&self, netns: NetnsId, stem: &str) -> InterfaceName {
        (0_u32..)
            .filter_map(|number| InterfaceName::try_from(format!("{stem}{number}")).ok())
            .find(|name| !self.name_in_use(netns, name))
            .expect("a namespace has fewer netdevs than there are numbers")
    }

    /// Returns the index `wanted` if it is free, otherwise one above the highest index. So the index of a netdev that
    /// left can be assigned again, and a netdev that returns to the host may find its index taken. On Linux
    /// `dev_new_index()` counts up: only `ip link add index N`, or a netdev that had the index in another namespace,
    /// can take it.
    pub(crate) fn index_in(&self, netns: NetnsId, wanted: Option<u32>) -> u32 {
        let own = || self.netdevs.iter().filter(|netdev| netdev.netns == netns);
        let highest = own().map(|netdev| netdev.link.index).max().unwrap_or(0);
        match wanted {
            Some(index) if own().all(|netdev| netdev.link.index != index) => index,
            _ => highest + 1,
        }
    }

    pub(crate) fn defaults(&self, netns: NetnsId) -> Sysctls {
        let found = self.namespaces.iter().find(|n| n.id == netns);
        found.map(|n| n.defaults.clone()).unwrap_or_default()
    }

    /// Returns true if a netdev of `netns` has the address, and the address is not tentative.
    pub(crate) fn is_local(&self, netns: NetnsId, ip: IpAddr) -> bool {
        let mut own = self.netdevs.iter().filter(|netdev| netdev.netns == netns);
        own.any(|netdev| {
            let mut addresses = netdev.link.addresses.iter();
            addresses.any(|address| address.ip == ip && !address.tentative)
        })
    }

    fn add_loopback(&mut self, netns: NetnsId) {
        let mut link = blank(InterfaceName::try_from("lo").expect("a name"));
        link.index = 1;
        link.mac = HardwareAddress(vec![0; 6]);
        link.mtu = 65536;
        link.link_type = LinkType::Other;
        self.insert(netns, link);
    }
}

fn untouched() -> Sysctls {
    let settings = UNTOUCHED.into_iter();
    settings.map(|(key, value)| (key.into(), value)).collect()
}
