// SPDX-License-Identifier: Apache-2.0
//! Plans the operations that return every device to its recorded host state.

use super::{
    Obstacle, RailPlan,
    draft::LinkPlanner,
    function::{self, Function},
    leftovers::{rails_in_pod, siblings, sub_devices, uppers},
    locate,
    locate::Located,
    other_interfaces, rdma_name,
};
use attachments::{Attachment, Attribute, Rail, Shared, Stage};
use rdma_netns::{
    Child, Guid, InterfaceName, Link, LinkChange, LinkType, NetnsSide, Observed, Op, VfSetting,
    VfSettingKind,
};

/// Records of other attachments, which a plan takes into account.
#[derive(Debug, Default)]
pub struct Others {
    /// Records of this boot whose devices are not restored, and that are not [settled](attachments::settled). A pod can
    /// have exchanged names of netdevs. If a netdev of such a record has a name that this attachment needs, the plan
    /// renames that netdev.
    pub unrestored: Vec<Attachment>,
    /// Settled records of this boot: their pods live and have the devices. The plan does not take an RDMA device of one
    /// of these records for a missing RDMA device of this attachment.
    pub settled: Vec<Attachment>,
    /// Other attachments of the same pod, whose rails stay.
    pub of_pod: Vec<Attachment>,
    /// True if netdevs of the pod that have an alias and are no rails stay in the pod, because they may belong to the
    /// host. Only DEL removes such a netdev, after an earlier DEL has named it in an error.
    pub keeps_aliased: bool,
}

impl Others {
    /// Returns true if plans with [`Others`] may differ from `plans`, which were made without them.
    pub fn are_needed(plans: &[RailPlan], attachment: &Attachment, observed: &Observed) -> bool {
        let depends = |plan: &RailPlan| match plan {
            Err(Obstacle::HostNameTaken { .. }) => true,
            // an RDMA device that no observed namespace has can be another attachment's
            Err(Obstacle::InAnotherNetns { .. }) => !observed.unpaired.is_empty(),
            _ => false,
        };
        let mut rails = attachment.rails.iter();
        plans.iter().any(depends)
            || siblings(attachment, &[], observed).next().is_some()
            || rails.any(|it| port_resets(it, observed).next().is_some())
    }

    /// Returns the records of this boot whose devices are not restored.
    fn with_devices(&self) -> impl Iterator<Item = &Attachment> {
        self.unrestored.iter().chain(&self.settled)
    }
}

/// Returns the operations from the present state to the recorded state, one plan for each rail. If one rail cannot
/// return to the host, the other rails still get plans. The plans change no attribute in `given_up`. An element of
/// `given_up` is a rail's index and an attribute. With the attribute [`Attribute::Netdev`], a netdev that no namespace
/// has is not an obstacle, although the function's driver could make the netdev again.
pub fn detach(
    attachment: &Attachment,
    others: &Others,
    observed: &Observed,
    given_up: &[(usize, Attribute)],
) -> Vec<RailPlan> {
    let rails = attachment.rails.iter().enumerate();
    let rails = rails.map(|(index, rail)| {
        let rules = rules(rail, observed);
        let mut interfaces = vec![];
        let (mut indexes, mut aliased) = (vec![], vec![]);
        if index == 0 {
            // the first rail's plan also cleans up the pod's other interfaces, and removes netdevs that the pod made
            interfaces = other_interfaces::detach(attachment, observed);
            let siblings = siblings(attachment, &others.of_pod, observed);
            for (link, _) in siblings.filter(|(_, hosts)| hosts.is_none()) {
                match &link.alias {
                    Some(alias)
                        if others.keeps_aliased || !attachment.named.contains(&link.index) =>
                    {
                        indexes.push(link.index);
                        aliased.push(format!("{} of the pod has the alias {alias}", link.name));
                    }
                    _ => interfaces.push(Op::link(NetnsSide::Pod, &link.name, LinkChange::Remove)),
                }
            }
        }
        match return_rail(attachment, others, index, observed, given_up) {
            // the netdev stays in the pod with its rules and routes until its host name is free
            Err(taken @ Obstacle::HostNameTaken { .. }) => Err(taken),
            // the obstacle does not prevent these operations. The next plan, without them, reports the obstacle
            Err(_) if !(rules.is_empty() && interfaces.is_empty()) => {
                Ok(rules.into_iter().chain(interfaces).collect())
            }
            own => {
                let ops: Vec<Op> = rules.into_iter().chain(own?).chain(interfaces).collect();
                match ops.is_empty() && !aliased.is_empty() {
                    false => Ok(ops),
                    true => Err(Obstacle::MayBeHosts {
                        links: aliased.join(", "),
                        indexes,
                    }),
                }
            }
        }
    });
    rails.collect()
}

/// Returns the indexes of restored rails. A rail is restored if the host has its devices with all recorded attributes
/// except `given_up`, and the pod has no netdev that ADD made or moved for the rail. Rules and routes in the pod do not
/// matter. A rail whose netdev does not exist is not restored, because the netdev can appear again.
pub fn home(
    attachment: &Attachment,
    others: &Others,
    observed: &Observed,
    given_up: &[(usize, Attribute)],
) -> Vec<usize> {
    let rails = 0..attachment.rails.len();
    let gone: Vec<usize> = locate::gone(attachment, observed)
        .map(|it| it.index)
        .collect();
    let is_home = |index: &usize| {
        let plan = return_rail(attachment, others, *index, observed, given_up);
        !gone.contains(index) && plan.is_ok_and(|ops| ops.is_empty())
    };
    rails.filter(is_home).collect()
}

/// Plans the return of the rail `index`. Binding the rail's driver again also returns the rail, so a plan with this
/// operation has no move.
fn return_rail(
    attachment: &Attachment,
    others: &Others,
    index: usize,
    observed: &Observed,
    given_up: &[(usize, Attribute)],
) -> RailPlan {
    let rail = &attachment.rails[index];
    let own = given_up.iter().filter(|(rail, _)| *rail == index);
    let mut own: Vec<Attribute> = own.map(|(_, attribute)| attribute.clone()).collect();
    let bind_anew = function::bind_anew(rail, 0);
    let bind_anew = bind_anew.filter(|_| !own.contains(&Attribute::Rebound));
    if bind_anew.is_some() {
        // the driver may make the netdev again when it is bound again
        own.retain(|it| *it != Attribute::Netdev);
    }
    match rail_to_host(attachment, others, rail, observed, &own) {
        Err(obstacle) if obstacle.is_awaited() && bind_anew.is_some() => {
            Ok(bind_anew.into_iter().collect())
        }
        to_host => to_host,
    }
}

/// Plans the removal of the rules that ADD set for the rail. When the netdev leaves the pod, the kernel removes its
/// routes, but not the rules.
fn rules(rail: &Rail, observed: &Observed) -> Vec<Op> {
    let rules = observed.pod.iter().flat_map(|pod| &pod.rules);
    let ours = rules.filter(|rule| rail.assigned.rules.contains(rule));
    ours.map(|rule| Op::RemoveRule {
        at: NetnsSide::Pod,
        rule: rule.clone(),
    })
    .collect()
}

/// Returns the operations that restore the host's netdev `link` to the recorded state `host_link`. Omits
/// [`rdma_netns::DeviceSettings`].
pub fn missing_of(host_link: &Link, link: &Link, observed: &Observed) -> Vec<Op> {
    let mut ops = vec![];
    let draft = LinkPlanner::new(NetnsSide::Host, link, &mut ops);
    restore_attributes(host_link, draft, link, observed);
    ops
}

fn rail_to_host(
    attachment: &Attachment,
    others: &Others,
    rail: &Rail,
    observed: &Observed,
    given_up: &[Attribute],
) -> RailPlan {
    if rail.stage == Stage::Returned {
        return Ok(children(rail, &others.of_pod, observed));
    }
    let mut ops = vec![];
    if let Some(host_device) = &rail.rdma {
        let located = locate::rdma(rail, host_device, others.with_devices(), observed);
        let moves_rdma = locate::moves_rdma(attachment, observed);
        if moves_rdma {
            let sub_devices = sub_devices(host_device, &located, observed);
            if !sub_devices.is_empty() {
                return Ok(sub_devices);
            }
        }
        let (from, to) = (NetnsSide::Pod, NetnsSide::Host);
        match located {
            Err(obstacle) if moves_rdma => return Err(obstacle),
            Ok(Located::At(side, device)) => {
                let moves = side == from && moves_rdma;
                let device_name = || device.name.clone();
                ops.extend(moves.then(|| Op::MoveRdma {
                    device: device_name(),
                    from,
                    to,
                }));
                ops.extend(rdma_name::restore(
                    host_device,
                    (to, device),
                    observed,
                    given_up,
                ));
            }
            _ => {}
        }
    }
    ops.extend(children(rail, &others.of_pod, observed));
    let Some(host_link) = &rail.host_link else {
        return Ok(ops);
    };
    if !ops.is_empty() && host_link.link_type == LinkType::Infiniband {
        // after the move the kernel makes a new IPoIB netdev on the host: the plan continues after the next observation
        return Ok(ops);
    }
    let lacks = |function: &Function<'_>| {
        let is_wanted =
            |op: &Op| Attribute::of(op).is_none_or(|attribute| !given_up.contains(&attribute));
        function
            .lacks(function.before())
            .into_iter()
            .filter(is_wanted)
    };
    let function = Function::of(host_link, observed);
    let bind = function::bind(rail, observed);
    let is_unbound = bind.is_some();
    let located = match locate::link(rail, host_link, observed) {
        _ if is_unbound => Located::Gone,
        Err(Obstacle::NoNetdev { .. }) if given_up.contains(&Attribute::Netdev) => Located::Gone,
        located => located?,
    };
    let Located::At(side, link) = located else {
        // a virtual function without a netdev, for example without a driver, also gets its settings back
        ops.extend(function.iter().filter(|it| it.is_there()).flat_map(lacks));
        ops.extend(bind);
        return Ok(ops);
    };
    if let Some(function) = function.filter(|_| side == NetnsSide::Host && rail.driver.is_some()) {
        ops.extend(lacks(&function));
        if ops.is_empty() {
            let is_to_go =
                |kind| function.gets_back(rail, kind) && !given_up.contains(&Attribute::Vf(kind));
            let rebind = function::gives_back(rail, host_link, observed, is_to_go);
            ops.extend(rebind.filter(|_| !given_up.contains(&Attribute::Rebound)));
        }
        if !ops.is_empty() {
            // the plan continues after the next observation, because a rebound driver makes new devices
            return Ok(ops);
        }
    }
    let bind_anew = function::bind_anew(rail, link.index);
    if side == NetnsSide::Host && bind_anew.is_some() && !given_up.contains(&Attribute::Rebound) {
        ops.extend(bind_anew);
        return Ok(ops);
    }
    if let Some(other) = observed.host.link(&host_link.name)
        && (side == NetnsSide::Pod || other.index != link.index)
    {
        if let Some(name) = temporary_name(attachment, rail, (side, link), other, observed) {
            LinkPlanner::new(side, link, &mut ops).rename(&name);
            return Ok(ops);
        }
        let before = ops.len();
        let mut draft = LinkPlanner::new(NetnsSide::Host, other, &mut ops);
        draft.give_up(given_up);
        release_name(&others.unrestored, other, &host_link.name, observed, draft);
        if ops.len() > before {
            return Ok(ops);
        }
        let (link, name) = (link.name.clone(), host_link.name.clone());
        return Err(Obstacle::HostNameTaken { link, name });
    }
    ops.extend(uppers(attachment, (side, link), observed));
    // leaves out recorded addresses and routes whose lifetimes have expired since ADD
    let host_link = host_link.aged(attachment.age(observed));
    let mut draft = LinkPlanner::new(side, link, &mut ops);
    match side {
        NetnsSide::Pod => to_host(&host_link, draft, observed),
        NetnsSide::Host => {
            draft.give_up(given_up);
            let mut present = observed.device_settings.iter();
            let present = present.find(|(index, _)| *index == link.index);
            if let Some((desired, (_, present))) = rail.device_settings.as_ref().zip(present) {
                draft.device_settings(desired, present);
            }
            restore_attributes(&host_link, draft, link, observed);
        }
    }
    Ok(ops)
}

/// Plans the restore of an ipvlan port's mode ([`reset_port`]). Then plans the removal of the rail's child of a shared
/// netdev, in the pod or on the host, and of temporary children that earlier plans made for such a restore. Keeps the
/// rails of `of_pod`, the pod's other attachments.
fn children(rail: &Rail, of_pod: &[Attachment], observed: &Observed) -> Vec<Op> {
    let Some(shared) = &rail.shared else {
        return vec![];
    };
    let in_pod = locate::child(rail, shared, observed);
    let mut ops: Vec<Op> = in_pod
        .and_then(|link| reset_port(shared, link, observed))
        .into_iter()
        .collect();
    let own = in_pod.map(|link| link.index);
    let made = port_resets(rail, observed);
    let others = rails_in_pod(of_pod, observed);
    let made = made.filter(|it| own != Some(it.index) && !others.contains(&it.index));
    let to_go = in_pod.into_iter().chain(made);
    let to_go = to_go.map(|link| (NetnsSide::Pod, link));
    let on_host = locate::child_on_host(rail, shared, observed);
    let on_host = on_host.map(|link| (NetnsSide::Host, link));
    let to_go = to_go.chain(on_host);
    ops.extend(to_go.map(|(at, link)| Op::link(at, &link.name, LinkChange::Remove)));
    ops
}

/// Prefix of the name of a temporary child that restores the mode of an ipvlan port. A number follows.
const PORT_RESET: &str = "rdmaport";

/// Returns the temporary children of the rail's ipvlan port, which it finds by their names.
fn port_resets<'a>(rail: &'a Rail, observed: &'a Observed) -> impl Iterator<Item = &'a Link> {
    let shared = rail.shared.as_ref();
    let shared = shared.filter(|it| matches!(it.child, Child::Ipvlan { .. }));
    let links = observed.pod.iter().flat_map(|pod| &pod.links);
    links.filter(move |link| {
        let is_child = shared.is_some_and(|it| {
            link.kind.as_deref() == Some(it.child.kind()) && link.lower == Some(it.parent_index)
        });
        is_child && link.name.starts_with(PORT_RESET)
    })
}

/// Plans the restore of an ipvlan port's mode, if the mode of the pod's child `link` shows that a program changed it.
/// All children of a parent share the port's mode, and the port remains while other pods have children. A new child
/// sets the mode (`ipvlan_link_new()`, `drivers/net/ipvlan/ipvlan_main.c`). So the plan makes a temporary child, and
/// removes it after the next observation.
fn reset_port(shared: &Shared, link: &Link, observed: &Observed) -> Option<Op> {
    let is_changed =
        matches!(shared.child, Child::Ipvlan { .. }) && link.child != Some(shared.child);
    let parent = observed.host.link_by_index(shared.parent_index);
    let parent = parent.filter(|_| is_changed)?;
    let pod = observed.pod.as_ref()?;
    let mut names =
        (0..=pod.links.len()).map(|it| InterfaceName::try_from(format!("{PORT_RESET}{it}")));
    let name = names.find_map(|it| it.ok().filter(|it| pod.link(it).is_none()))?;
    Some(Op::AddChild {
        at: NetnsSide::Pod,
        parent: parent.name.clone(),
        child: shared.child,
        name,
        mtu: shared.parent_mtu,
    })
}

/// Returns a temporary name for `link`, a netdev of `rail` on the host, if a misnamed netdev `other` of another rail
/// has the recorded name of `link`. A pod can have exchanged the names, and then neither netdev could be renamed first.
fn temporary_name(
    attachment: &Attachment,
    rail: &Rail,
    (side, link): (NetnsSide, &Link),
    other: &Link,
    observed: &Observed,
) -> Option<InterfaceName> {
    let is_misnamed = |it: &Rail| {
        let is_another = it != rail && it.stage != Stage::Returned;
        let Some(host_link) = it.host_link.as_ref().filter(|_| is_another) else {
            return false;
        };
        let located = locate::link(it, host_link, observed);
        let is_it =
            matches!(located, Ok(Located::At(NetnsSide::Host, link)) if link.index == other.index);
        is_it && other.name != host_link.name
    };
    let is_there = side == NetnsSide::Host && attachment.rails.iter().any(is_misnamed);
    kernel_name(link, observed).filter(|_| is_there)
}

/// Returns the name that the kernel gives to a netdev that returns to the host while another netdev has its name
/// (`default_device_exit_net()`, `net/core/dev.c`). Returns `None` if a netdev of the host already has the kernel's
/// name.
fn kernel_name(link: &Link, observed: &Observed) -> Option<InterfaceName> {
    let name = InterfaceName::try_from(format!("dev{}", link.index)).ok()?;
    observed.host.link(&name).is_none().then_some(name)
}

/// Plans to free `name`, which the host's netdev `link` has as its name or alternative name, if `link` belongs to a
/// record of `others` and was recorded under another name. The restore of that record finds the netdev under any name.
fn release_name(
    others: &[Attachment],
    link: &Link,
    name: &InterfaceName,
    observed: &Observed,
    mut draft: LinkPlanner<'_>,
) {
    let rails = others.iter().flat_map(|other| &other.rails);
    let rails = rails.filter(|rail| rail.stage != Stage::Returned);
    let mut host_links = rails.filter_map(|rail| Some((rail, rail.host_link.as_ref()?)));
    let is_it = |(rail, host_link): &(&Rail, &Link)| {
        let located = locate::link(rail, host_link, observed);
        matches!(located, Ok(Located::At(NetnsSide::Host, it)) if it.index == link.index)
    };
    let Some((_, host_link)) = host_links
        .find(is_it)
        .filter(|(_, host_link)| !host_link.has_name(name))
    else {
        return;
    };
    if link.name != *name {
        draft.drop_alt_names(&host_link.alt_names);
    } else if let Some(name) = kernel_name(link, observed) {
        draft.rename(&name);
    }
}

/// Plans the netdev's move to the host under the recorded name. The pod may have changed other attributes, and the
/// kernel resets some of them during the move. A later plan restores them, after an observation of the netdev on the
/// host.
fn to_host(host_link: &Link, mut draft: LinkPlanner<'_>, observed: &Observed) {
    if let Some(function) = Function::of(host_link, observed) {
        // a virtual function adopts a hardware address only while it moves. A later plan restores its other settings on
        // the host
        let is_mac = |it: &&VfSetting| it.kind() == VfSettingKind::Mac;
        draft.vf(&function, function.before().filter(is_mac));
    }
    // keeps only recorded alternative names that no netdev of the host has: if one is taken, the kernel refuses the
    // whole move (`__dev_change_net_namespace()`, `net/core/dev.c`)
    let free = host_link.alt_names.iter();
    let free = free.filter(|name| observed.host.link(name).is_none());
    draft.drop_alt_names(&free.cloned().collect::<Vec<_>>());
    if host_link.parent.is_none() {
        // later observations identify a virtual netdev on the host by its hardware address
        draft.mac(&host_link.mac);
    }
    draft.relocate(NetnsSide::Host, &host_link.name);
}

/// Plans the recorded attributes of a netdev on the host. Omits [`rdma_netns::DeviceSettings`], which [`rail_to_host`]
/// plans.
fn restore_attributes(
    host_link: &Link,
    mut draft: LinkPlanner<'_>,
    link: &Link,
    observed: &Observed,
) {
    // the pod may have added the recorded name as an alternative name
    draft.drop_alt_names(&host_link.alt_names);
    draft.rename(&host_link.name);
    let function = Function::of(host_link, observed);
    if let Some(function) = &function {
        draft.vf(function, function.before());
    }
    // an IPoIB address ends with the port's GUID, which the physical function has restored. So the plan restores the
    // address only if an administrator had set another GUID
    let sets_mac = function.is_none_or(|it| !it.has_guids()) || Guid::is_changed(host_link);
    if sets_mac {
        draft.mac(&host_link.mac);
    }
    if let Some(ipoib) = host_link.ipoib {
        // the mode precedes the MTU, because the kernel changes the MTU with the mode
        draft.ipoib_mode(ipoib.mode);
        draft.umcast(ipoib.umcast);
    }
    draft.broadcast(host_link.broadcast.as_ref());
    draft.mtu(host_link.mtu);
    draft.tx_queue_len(host_link.tx_queue_len);
    draft.settings(&host_link.settings);
    draft.flags(&host_link.flags);
    draft.alias(host_link.alias.as_deref());
    draft.add_alt_names(&host_link.alt_names);
    for (key, value) in host_link.sysctls.iter() {
        draft.sysctl(key, value);
    }
    draft.up(host_link.up);
    let mut lasting = host_link.addresses.clone();
    lasting.retain(|it| !it.automatic);
    draft.addresses(lasting.iter());
    // a route can need an address that the kernel itself makes: such a route is planned after the address exists
    for route in host_link.lasting_routes() {
        let can_have = host_link.can_have(route, &lasting) || link.can_have(route, &link.addresses);
        if can_have {
            draft.route(route);
        }
    }
}
