// SPDX-License-Identifier: Apache-2.0
//! Plans the rails of a pod: moves of devices into the pod, and children of shared netdevs.

use super::{
    Obstacle,
    draft::LinkPlanner,
    function::{self, Function},
    locate,
    locate::Located,
    other_interfaces,
};
use attachments::{Attachment, DesiredLink, Rail, Shared};
use network_conf::Dad;
use rdma_netns::{Child, Ipoib, IpoibMode, Link, LinkType, NetnsSide, Observed, Op, RdmaDevice};

/// `IPV6_MIN_MTU` (`include/uapi/linux/ipv6.h`): the kernel removes IPv6 from a netdev with a smaller MTU.
const IPV6_MIN_MTU: u32 = 1280;

/// Returns the operations that are still necessary to give the pod every rail with its assigned state, rail by rail.
/// Operations for the pod's other interfaces precede them. Otherwise replies from these interfaces could leave through
/// a rail.
pub fn attach(attachment: &Attachment, observed: &Observed) -> Result<Vec<Op>, Obstacle> {
    let mut ops = other_interfaces::attach_other_interfaces(attachment, observed);
    for rail in &attachment.rails {
        for op in attach_rail(attachment, rail, observed, &rail.assigned)? {
            // several ports of one RDMA device need only one move
            if !ops.contains(&op) {
                ops.push(op);
            }
        }
    }
    Ok(ops)
}

/// Returns the operations that are still necessary to give the pod one rail in its `desired` state.
pub fn attach_rail(
    attachment: &Attachment,
    rail: &Rail,
    observed: &Observed,
    desired: &DesiredLink,
) -> Result<Vec<Op>, Obstacle> {
    let mut ops = vec![];
    if let Some(host_link) = &rail.host_link
        && set_up(rail, host_link, observed, &mut ops)
    {
        return Ok(ops);
    }
    let moved = move_rdma(attachment, rail, observed, &mut ops)?;
    match (&rail.host_link, &rail.shared) {
        // after the move the kernel makes a new IPoIB netdev: in the pod since Linux 6.17, and on the host with earlier
        // kernels. The plan continues after the next observation
        (Some(host_link), _) if moved && host_link.link_type == LinkType::Infiniband => {}
        (Some(host_link), _) => {
            let draft = placed(rail, host_link, observed, &mut ops)?;
            let mtu = attachment.mtu.unwrap_or(host_link.mtu);
            let medium = Medium {
                origin: host_link,
                mtu: Mtu::Exactly(mtu),
                ipoib: host_link.ipoib,
            };
            configure(attachment, rail, draft, medium, desired)?;
        }
        (None, Some(shared)) => share(attachment, rail, shared, observed, desired, &mut ops)?,
        (None, None) => {}
    }
    let rules = desired.rules.iter();
    let is_missing = |rule: &&_| {
        let pod = observed.pod.as_ref();
        !pod.is_some_and(|pod| pod.rules.contains(rule))
    };
    ops.extend(rules.filter(is_missing).map(|rule| Op::AddRule {
        at: NetnsSide::Pod,
        rule: rule.clone(),
    }));
    Ok(ops)
}

/// Plans the settings that the physical function makes for the virtual function, before the virtual function moves.
/// Drivers adopt a new hardware address only when the virtual function restarts, and new GUIDs only when the driver is
/// bound. Returns true if the plan binds the driver again. The plan then continues after the new devices are observed.
fn set_up(rail: &Rail, host_link: &Link, observed: &Observed, ops: &mut Vec<Op>) -> bool {
    let Some(function) = Function::of(host_link, observed) else {
        return false;
    };
    // after the move, omits settings that the PF's driver does not report, because ADD has made them before the move
    let is_moved = matches!(
        locate::link(rail, host_link, observed),
        Ok(Located::At(NetnsSide::Pod, _))
    );
    let desired = rail.vf.iter();
    ops.extend(function.lacks(desired.filter(|it| !is_moved || function.reports(it.kind()))));
    let rebind = function::takes_over(rail, host_link, observed);
    let is_due = rebind.is_some();
    ops.extend(rebind);
    is_due
}

fn move_rdma(
    attachment: &Attachment,
    rail: &Rail,
    observed: &Observed,
    ops: &mut Vec<Op>,
) -> Result<bool, Obstacle> {
    let Some(host_device) = rail.rdma.as_ref().filter(|_| attachment.moves_rdma()) else {
        return Ok(false);
    };
    match locate::rdma(rail, host_device, &[], observed)? {
        Located::At(NetnsSide::Pod, _) => Ok(false),
        Located::At(NetnsSide::Host, _) if !locate::moves_rdma(attachment, observed) => Ok(false),
        Located::At(NetnsSide::Host, RdmaDevice { name, .. }) => {
            if let Some((_, sub_device)) = observed.sub_devices_of(name).next() {
                return Err(Obstacle::HasSubDevice {
                    device: name.clone(),
                    sub_device: sub_device.name.clone(),
                });
            }
            ops.push(Op::MoveRdma {
                device: name.clone(),
                from: NetnsSide::Host,
                to: NetnsSide::Pod,
            });
            Ok(true)
        }
        Located::Gone => Err(Obstacle::Vanished {
            device: host_device.name.clone(),
        }),
    }
}

/// Plans the move of the netdev recorded as `host_link` into the pod, under its name in the pod.
fn placed<'a>(
    rail: &Rail,
    host_link: &Link,
    observed: &Observed,
    ops: &'a mut Vec<Op>,
) -> Result<LinkPlanner<'a>, Obstacle> {
    let Located::At(side, link) = locate::link(rail, host_link, observed)? else {
        let device = format!("{} ({} in the pod)", host_link.name, rail.pod_name);
        return Err(Obstacle::Vanished { device });
    };
    let present = Some(link).filter(|_| side == NetnsSide::Pod);
    check_name(rail, present, observed)?;
    let mut draft = LinkPlanner::new(side, link, ops);
    draft.relocate(NetnsSide::Pod, &rail.pod_name);
    draft.rename(&rail.pod_name);
    Ok(draft)
}

/// Returns an error if a netdev other than `present` has the rail's name in the pod.
fn check_name(rail: &Rail, present: Option<&Link>, observed: &Observed) -> Result<(), Obstacle> {
    let pod = observed.pod.as_ref();
    let named = pod.and_then(|pod| pod.link(&rail.pod_name));
    match named {
        Some(named) if present.is_none_or(|link| link.index != named.index) => {
            Err(Obstacle::PodNameTaken {
                name: rail.pod_name.clone(),
            })
        }
        _ => Ok(()),
    }
}

/// Returns the parent of `shared` on the host.
///
/// # Errors
/// The reason why the parent cannot have a child with `mtu`.
pub fn bearer<'a>(shared: &Shared, mtu: u32, observed: &'a Observed) -> Result<&'a Link, Obstacle> {
    let Some(parent) = observed.host.link_by_index(shared.parent_index) else {
        let device = shared.parent.to_string();
        return Err(Obstacle::Vanished { device });
    };
    // an IPoIB child gets its MTU from its mode and partition
    let is_limit = !matches!(shared.child, Child::Ipoib { .. });
    if is_limit && mtu > parent.mtu {
        return Err(Obstacle::MtuTooLarge {
            parent: parent.name.clone(),
            mtu,
            limit: parent.mtu,
        });
    }
    if !parent.up {
        let parent = parent.name.clone();
        return Err(Obstacle::ParentDown { parent });
    }
    Ok(parent)
}

/// Plans a child in the pod. Its parent is the netdev of `shared`, which stays on the host.
fn share(
    attachment: &Attachment,
    rail: &Rail,
    shared: &Shared,
    observed: &Observed,
    desired: &DesiredLink,
    ops: &mut Vec<Op>,
) -> Result<(), Obstacle> {
    let mtu = attachment.mtu.unwrap_or(shared.parent_mtu);
    let parent = bearer(shared, mtu, observed)?;
    let present = locate::child(rail, shared, observed);
    check_name(rail, present, observed)?;
    let mut draft = match (present, &shared.made_as) {
        (Some(link), _) => LinkPlanner::new(NetnsSide::Pod, link, ops),
        (None, Some(made_as)) => {
            let on_host = locate::child_on_host(rail, shared, observed);
            let mut draft = match on_host {
                Some(link) => LinkPlanner::new(NetnsSide::Host, link, ops),
                None => {
                    LinkPlanner::child(NetnsSide::Host, shared.child, parent, (made_as, mtu), ops)
                }
            };
            // the alias identifies the child after the pod's namespace has ended
            draft.alias(Some(made_as));
            draft.relocate(NetnsSide::Pod, &rail.pod_name);
            draft
        }
        (None, None) => {
            let made = (&rail.pod_name, mtu);
            LinkPlanner::child(NetnsSide::Pod, shared.child, parent, made, ops)
        }
    };
    let medium = Medium::of_child(attachment, shared.child, parent, mtu);
    draft.rename(&rail.pod_name);
    configure(attachment, rail, draft, medium, desired)
}

/// The desired MTU of a netdev, bytes.
#[derive(Clone, Copy)]
enum Mtu {
    Exactly(u32),
    AtMost(u32),
    /// The kernel chooses the MTU by the mode.
    Any,
}

impl Mtu {
    /// Returns the desired MTU of an IPoIB child with the send mode `mode`: the setting `mtu`, or else the parent's MTU
    /// if parent and child have the same mode. In datagram mode the broadcast group of the partition limits the MTU,
    /// once the netdev has joined the group (`ipoib_mcast_carrier_on_task()`,
    /// `drivers/infiniband/ulp/ipoib/ipoib_multicast.c`).
    fn of_ipoib_child(attachment: &Attachment, mode: IpoibMode, parent: &Link) -> Self {
        let is_alike = parent.ipoib.is_some_and(|it| it.mode == mode);
        let mtu = attachment.mtu.or(Some(parent.mtu).filter(|_| is_alike));
        match (mtu, mode) {
            (None, _) => Self::Any,
            (Some(mtu), IpoibMode::Datagram) => Self::AtMost(mtu),
            (Some(mtu), IpoibMode::Connected) => Self::Exactly(mtu),
        }
    }

    /// Returns the largest MTU that the netdev can get, bytes.
    fn limit(self) -> u32 {
        match self {
            Self::Exactly(mtu) | Self::AtMost(mtu) => mtu,
            Self::Any => u32::MAX,
        }
    }
}

/// The desired MTU and IPoIB attributes of a netdev in the pod, and the netdev from which they come.
struct Medium<'a> {
    /// The moved netdev in its host state, or the child's parent on the host.
    origin: &'a Link,
    mtu: Mtu,
    /// The IPoIB attributes, if the netdev's link type is InfiniBand.
    ipoib: Option<Ipoib>,
}

impl<'a> Medium<'a> {
    /// Returns the medium of a `child` of `parent`. `mtu` does not apply to an IPoIB child.
    fn of_child(attachment: &Attachment, child: Child, parent: &'a Link, mtu: u32) -> Self {
        let (mtu, ipoib) = match child {
            Child::Macvlan { .. } | Child::Ipvlan { .. } => (Mtu::Exactly(mtu), None),
            Child::Ipoib { pkey, mode } => {
                let umcast = false;
                let ipoib = Ipoib { pkey, mode, umcast };
                (Mtu::of_ipoib_child(attachment, mode, parent), Some(ipoib))
            }
        };
        let origin = parent;
        Self { origin, mtu, ipoib }
    }
}

/// Plans settings, the state up, addresses and routes of a netdev in the pod.
fn configure(
    attachment: &Attachment,
    rail: &Rail,
    mut draft: LinkPlanner<'_>,
    Medium { origin, mtu, ipoib }: Medium<'_>,
    desired: &DesiredLink,
) -> Result<(), Obstacle> {
    let has_room = mtu.limit() >= IPV6_MIN_MTU;
    let mut addresses = desired.addresses.iter();
    if addresses.any(|address| address.ip.is_ipv6()) {
        if !has_room {
            let (link, mtu) = (origin.name.clone(), mtu.limit());
            return Err(Obstacle::MtuTooSmall { link, mtu });
        }
        if draft.is_ipv6_disabled() {
            let link = rail.pod_name.clone();
            return Err(Obstacle::Ipv6Disabled { link });
        }
    }
    if let Some(mac) = rail.vf_mac() {
        draft.mac(mac);
    }
    if let Some(Ipoib { mode, umcast, .. }) = ipoib {
        // the mode precedes the MTU, because the kernel changes the MTU with the mode
        draft.ipoib_mode(mode);
        draft.umcast(umcast);
    }
    match mtu {
        Mtu::Exactly(mtu) => draft.mtu(mtu),
        Mtu::AtMost(mtu) => draft.mtu_at_most(mtu),
        Mtu::Any => {}
    }
    let mut sysctls = origin.sysctls.iter();
    let has_ipv6 = has_room && sysctls.any(|(key, _)| key.starts_with("ipv6/"));
    if has_ipv6 {
        draft.sysctl("ipv6/accept_ra", i32::from(attachment.accept_ra));
        draft.sysctl("ipv6/accept_dad", i32::from(attachment.dad != Dad::Off));
        if attachment.dad == Dad::Optimistic {
            // without this setting the kernel drops IFA_F_OPTIMISTIC without an error
            draft.sysctl("ipv6/optimistic_dad", 1);
        }
    }
    if attachment.rails.len() > 1 {
        // rails can be on one Ethernet segment. If a rail answered ARP for another rail's address, a peer would send
        // the other rail's frames to the wrong RDMA device, which drops them
        draft.sysctl("ipv4/arp_ignore", 1);
        draft.sysctl("ipv4/arp_announce", 2);
    }
    draft.up(true);
    draft.addresses(desired.addresses.iter());
    for route in &desired.routes {
        draft.route(route);
    }
    Ok(())
}
