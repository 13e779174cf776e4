// SPDX-License-Identifier: Apache-2.0
//! Selects the netdevs and RDMA devices of an ADD, before ADD changes anything.

mod allocated;
mod bare;
mod error;
mod host_use;
mod selected;
mod share;
mod vlan;

use crate::{
    allocation::{self, Allotment, Meaning, Named},
    locate::{links, places},
};
use attachments::{Attachment, Rail, Sibling};
pub use error::SelectError;
use error::check_free;
use host_use::{HostUse, Naming};
use network_conf::{
    Conf, Mode,
    selector::{Candidate, Selector},
};
use rdma_netns::{
    DeviceAddress, Kernel, Link, LinkType, Namespace, NetnsSide, Observed, RdmaDevice, RdmaMode,
};
use rdma_resources::Sharing;
pub use selected::{Remark, Selected};
use std::collections::BTreeSet;

/// The source of the devices to attach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice<'a> {
    /// The address of a device.
    Address(&'a DeviceAddress),
    /// Selectors of the configuration.
    Selectors(&'a [Selector]),
    /// Devices that kubelet allocated.
    Allocated(Vec<Meaning>),
}

/// A netdev that becomes a rail, with kubelet's allocation of its device.
struct Chosen<'a> {
    side: NetnsSide,
    link: &'a Link,
    naming: Naming,
    allotment: Option<Allotment>,
}

/// The netdevs that selectors match.
struct Selection<'a> {
    chosen: Vec<Chosen<'a>>,
    /// Matching netdevs that the selection ignores, with reasons.
    passed_over: Vec<String>,
}

/// Returns the devices that `choice` names by address. Returns `None` if finding them needs an observation.
pub fn named(choice: &Choice<'_>) -> Option<BTreeSet<DeviceAddress>> {
    match choice {
        Choice::Address(address) => Some(BTreeSet::from([(*address).clone()])),
        Choice::Selectors(_) => None,
        Choice::Allocated(meanings) => {
            let devices = meanings.iter().map(|it| match &it.devices {
                Named::Devices(devices) => Some(devices),
                Named::Rdma(_) => None,
            });
            let devices: Option<Vec<_>> = devices.collect();
            let devices = devices?.into_iter().flatten();
            Some(devices.map(|it| it.address.clone()).collect())
        }
    }
}

/// Returns the devices that kubelet allocated. Needs no observation of ports. Returns none if an id leads to no device.
pub fn allocated_devices(meanings: &[Meaning], observed: &Observed) -> BTreeSet<DeviceAddress> {
    let allotments = allocation::devices(meanings, &observed.devices).unwrap_or_default();
    allotments.into_iter().map(|it| it.address).collect()
}

/// Returns the hardware of the RDMA devices that `selectors` can match by name or by their netdev. Returns `None` if
/// the selection fails, or if the RDMA device of a matching netdev can be found only by its ports, which `observed` may
/// lack.
pub fn selected(
    conf: &Conf,
    selectors: &[Selector],
    observed: &Observed,
    others: &[Attachment],
) -> Option<BTreeSet<DeviceAddress>> {
    let by_name = observed.host.rdma.iter();
    let by_name = by_name.filter(|rdma| selectors.iter().any(|it| it.fits_rdma(&rdma.name)));
    let mut devices: BTreeSet<_> = by_name.filter_map(|rdma| rdma.parent.clone()).collect();
    let host_use = HostUse::of(observed);
    let selection = by_selectors(conf, &host_use, selectors, observed, others);
    for chosen in selection.ok()?.chosen {
        match rdma_of(&observed.host, chosen.link) {
            Some(rdma) => devices.extend(rdma.parent.clone()),
            // no RDMA device exists whose ports could be queried
            None if observed.host.rdma.is_empty() => {}
            None => return None,
        }
    }
    let has_unknown = selectors
        .iter()
        .any(|it| vlan::has_unknown_rdma(it, observed));
    (!has_unknown).then_some(devices)
}

/// Marks in `observed` the InfiniBand hardware that manages NVLink, among the hardware that a pattern of `choice`
/// matches. Hardware that manages NVLink is no network device.
pub fn ask_for_rails<K: Kernel>(kernel: &K, choice: &Choice<'_>, observed: &mut Observed) {
    let Choice::Selectors(selectors) = choice else {
        return;
    };
    let doubtful = doubtful(selectors, observed);
    let devices = observed.devices.iter_mut();
    for device in devices.filter(|it| doubtful.contains(&it.address)) {
        device.manages_nvlink = kernel.manages_nvlink(&device.address);
    }
}

/// Returns the hardware of the host's InfiniBand netdevs that a pattern matches.
fn doubtful(selectors: &[Selector], observed: &Observed) -> BTreeSet<DeviceAddress> {
    let patterns = || {
        let selectors = selectors.iter();
        selectors.filter(|it| Naming::from(*it) != Naming::Literal)
    };
    let links = observed.host.links.iter();
    let fitting = links.filter(|link| {
        let of = || candidate(observed, link, rdma_of(&observed.host, link));
        link.link_type == LinkType::Infiniband && patterns().any(|it| it.matches(of()))
    });
    fitting.filter_map(|link| link.parent.clone()).collect()
}

/// Selects the rails of an ADD with `conf`. `others` are the attachments whose devices this ADD cannot get.
pub fn rails(
    conf: &Conf,
    choice: &Choice<'_>,
    observed: &Observed,
    others: &[Attachment],
) -> Result<Selected, SelectError> {
    let mut remarks = vec![];
    let mode = match (observed.rdma_mode, conf.require_rdma || conf.drop_in) {
        (None, true) => return Err(SelectError::NoSubsystem),
        (mode, _) => mode,
    };
    if let (true, Some(RdmaMode::Shared)) = (conf.drop_in, mode) {
        return Err(SelectError::WrongMode(RdmaMode::Shared));
    }
    let host_use = HostUse::of(observed);
    let seen = (observed, &host_use);
    if let (true, Choice::Address(address)) = (conf.drop_in, choice)
        && let Some(rail) = bare::rail(conf, address, observed, others)?
    {
        host_use.rdma_movable(Naming::Literal, conf.mode, rail.rdma.as_ref())?;
        let rails = vec![rail];
        return Ok(Selected { rails, remarks });
    }
    let chosen = match choice {
        Choice::Address(address) => vec![by_address(conf, address, observed, others)?],
        Choice::Selectors(selectors) => {
            let selection = by_selectors(conf, &host_use, selectors, observed, others)?;
            let passed_over = selection.passed_over.iter();
            remarks.extend(passed_over.map(|why| Remark::info(format!("passed over: {why}"))));
            selection.chosen
        }
        Choice::Allocated(meanings) => {
            allocated::choose(conf, meanings, observed, others, &mut remarks)?
        }
    };
    if chosen.len() > 1 && !conf.interface_name.counts() {
        return Err(SelectError::NameWithoutNumber {
            rails: chosen.len(),
        });
    }
    let count = chosen.len();
    let chosen = chosen.into_iter().enumerate();
    let rails = chosen
        .map(|(index, chosen)| rail(conf, seen, others, (index, count), chosen, &mut remarks))
        .collect::<Result<Vec<Rail>, _>>()?;
    share::apart(&rails)?;
    Ok(Selected { rails, remarks })
}

fn rail(
    conf: &Conf,
    (observed, host_use): (&Observed, &HostUse<'_>),
    others: &[Attachment],
    (index, count): (usize, usize),
    chosen: Chosen<'_>,
    remarks: &mut Vec<Remark>,
) -> Result<Rail, SelectError> {
    let Chosen {
        side,
        link,
        naming,
        allotment,
    } = chosen;
    let (sharing, allocated) = allotment.map(|it| (it.sharing, it.allocated)).unzip();
    if link.name.index().is_some() {
        return Err(SelectError::NoText(link.index));
    }
    let rdma = rdma_of(&observed.host, link).filter(|_| !vlan::moves_alone(conf, link));
    if conf.require_rdma && rdma.is_none() {
        return Err(SelectError::NoRdma(link.name.clone()));
    }
    if side == NetnsSide::Pod || conf.drop_in {
        if side == NetnsSide::Host && observed.pod.is_some() {
            return Err(SelectError::NotMoved(link.name.clone()));
        }
        if observed.rdma_mode == Some(RdmaMode::Exclusive) {
            host_use.rdma_movable(naming, conf.mode, rdma)?;
        }
        let pod_name = link.name.clone();
        return Ok(Rail {
            rdma: rdma.cloned(),
            allocated,
            ..Rail::new(pod_name)
        });
    }
    let pod_name = conf
        .pod_name(index, count)
        .ok_or(SelectError::NameWithoutNumber { rails: index + 1 })?;
    if observed
        .pod
        .as_ref()
        .is_some_and(|pod| pod.link(&pod_name).is_some())
    {
        return Err(SelectError::NameTaken(pod_name));
    }
    let rail = Rail {
        rdma: rdma.cloned(),
        allocated,
        ..Rail::new(pod_name)
    };
    match share::reason(conf.mode, sharing, (link, rdma), others) {
        Some(reason) => {
            if sharing == Some(Sharing::Exclusive) {
                share::alone((link, rdma), others)?;
            }
            remarks.push(Remark::info(format!("{} is shared: {reason}", link.name)));
            Ok(Rail {
                shared: Some(share::shared(
                    conf,
                    observed.rdma_mode,
                    &rail,
                    link,
                    others,
                )?),
                siblings: siblings(&observed.host, &|it| it.lower == Some(link.index)),
                ..rail
            })
        }
        None => {
            share::movable(observed, (link, rdma), others)?;
            host_use.movable(naming, conf.mode, link, rdma)?;
            Ok(Rail {
                host_link: Some(link.clone()),
                siblings: siblings(&observed.host, &|it| {
                    it.parent.is_some() && it.parent == link.parent && it.index != link.index
                }),
                ..rail
            })
        }
    }
}

/// Returns the netdevs of `host` that `is_sibling` accepts. Omits netdevs whose names are not UTF-8, because a record
/// cannot contain them.
fn siblings(host: &Namespace, is_sibling: &dyn Fn(&Link) -> bool) -> Vec<Sibling> {
    let links = host.links.iter();
    links
        .filter(|link| is_sibling(link) && link.name.index().is_none())
        .map(|other| Sibling {
            name: other.name.clone(),
            index: other.index,
        })
        .collect()
}

/// Returns the host's RDMA device of the netdev `link`. The netdev itself may be in the pod.
fn rdma_of<'a>(host: &'a Namespace, link: &Link) -> Option<&'a RdmaDevice> {
    if link.is_representor() {
        // a representor's port is a port of the physical function's RDMA device, which must stay on the host
        return None;
    }
    host.rdma_of(link)
}

fn by_address<'a>(
    conf: &Conf,
    address: &DeviceAddress,
    observed: &'a Observed,
    others: &[Attachment],
) -> Result<Chosen<'a>, SelectError> {
    check_holders(address, others)?;
    let mut places: Vec<_> = places(observed).collect();
    if conf.drop_in {
        // prefer the pod: an earlier plugin may have moved one of several netdevs of a function
        places.reverse();
    }
    for (side, namespace) in places {
        let links = namespace.links_of(address, &observed.host).into_iter();
        // a PF in switchdev mode also has representors: select the netdev that is the port of the RDMA device
        let link = links.min_by_key(|link| {
            let is_port = namespace
                .rdma
                .iter()
                .any(|rdma| rdma.has_netdev(link.index));
            (link.is_representor(), !is_port, link.index)
        });
        if let Some(link) = link {
            return Ok(Chosen::at(conf.mode, observed, side, link));
        }
    }
    Err(bare::refusal(address, observed))
}

impl<'a> Chosen<'a> {
    /// Returns the choice of `link`, or of its bond if `link` is a bond's port (see [`share::bond_of`]).
    fn at(mode: Mode, observed: &'a Observed, side: NetnsSide, link: &'a Link) -> Self {
        Self {
            side,
            link: share::bond_of(mode, &observed.host, side, link),
            naming: Naming::Literal,
            allotment: None,
        }
    }

    fn is_in(&self, chosen: &[Self]) -> bool {
        let is_same = |it: &Self| it.side == self.side && it.link.index == self.link.index;
        chosen.iter().any(is_same)
    }
}

/// Returns an error if another attachment has moved a device at `address` and has not restored it.
fn check_holders(address: &DeviceAddress, others: &[Attachment]) -> Result<(), SelectError> {
    let holds = |rail: &Rail| {
        let rdma = rail.rdma.as_ref().and_then(|it| it.parent.as_ref());
        // a shared device can have several attachments
        rail.shared.is_none() && [rail.device(), rdma].contains(&Some(address))
    };
    let holder = others.iter().find(|it| it.rails.iter().any(holds));
    check_free(address, holder)
}

fn by_selectors<'a>(
    conf: &Conf,
    host_use: &HostUse<'_>,
    selectors: &[Selector],
    observed: &'a Observed,
    others: &[Attachment],
) -> Result<Selection<'a>, SelectError> {
    let mut chosen: Vec<Chosen<'a>> = vec![];
    let mut passed_over: Vec<String> = vec![];
    for selector in selectors {
        let naming = Naming::from(selector);
        let held = others.iter().find_map(|other| {
            let rail = other.rails.iter().find(|rail| {
                rail.host_link.as_ref().is_some_and(|host_link| {
                    selector.matches(candidate(observed, host_link, rail.rdma.as_ref()))
                })
            })?;
            Some((rail, other))
        });
        if let Some((rail, holder)) = held {
            check_free(rail.name(), Some(holder))?;
        }
        let mut matching: Vec<Chosen<'a>> = links(observed)
            .filter(|(side, link)| *side == NetnsSide::Host || link.parent.is_some())
            .filter(|(_, link)| link.link_type != LinkType::Other)
            .filter(|(_, link)| !link.is_representor() || selector.literal_netdev().is_some())
            .filter(|(_, link)| naming == Naming::Literal || !is_plain_upper(conf, observed, link))
            .filter(|(_, link)| {
                selector.matches(candidate(observed, link, rdma_of(&observed.host, link)))
            })
            .filter(|(_, link)| !vlan::means_lower(selector, observed, link))
            .map(|(side, link)| Chosen {
                naming,
                ..Chosen::at(conf.mode, observed, side, link)
            })
            .collect();
        if matching.is_empty() && selector.is_literal() {
            return Err(SelectError::NotFound(selector.text.clone()));
        }
        matching.sort_by_key(|found| natural(&found.link.name));
        for found in matching {
            if found.is_in(&chosen) {
                continue;
            }
            let Chosen { side, link, .. } = found;
            let rdma = rdma_of(&observed.host, link);
            let is_shared = share::reason(conf.mode, None, (link, rdma), others).is_some();
            let no_rail = || no_rail(naming, observed, link);
            match no_rail().or_else(|| host_use.passes_over(naming, is_shared, link, rdma)) {
                Some(why) if side == NetnsSide::Host => {
                    let why = format!("{}: {why}", link.name);
                    if !passed_over.contains(&why) {
                        passed_over.push(why);
                    }
                }
                _ => chosen.push(found),
            }
        }
    }
    for address in chosen.iter().filter_map(|it| it.link.parent.as_ref()) {
        check_holders(address, others)?;
    }
    if chosen.is_empty() {
        let texts: Vec<&str> = selectors
            .iter()
            .map(|selector| selector.text.as_str())
            .collect();
        let selectors = texts.join(" or ");
        return Err(match passed_over.as_slice() {
            [] => SelectError::NotFound(selectors),
            _ => SelectError::PassedOver {
                selectors,
                passed_over: passed_over.join(", "),
            },
        });
    }
    Ok(Selection {
        chosen,
        passed_over,
    })
}

/// Returns the reason why patterns ignore `link`: its hardware is no network device.
fn no_rail(naming: Naming, observed: &Observed, link: &Link) -> Option<String> {
    let device = observed.device(link.parent.as_ref()?)?;
    let why = device.no_rail().filter(|_| naming != Naming::Literal);
    why.map(str::to_owned)
}

/// Returns true if the network requires RDMA, and `link` is an upper netdev (such as a VLAN) without an RDMA device.
/// Patterns ignore it: `bond*` does not select `bond0.100`.
fn is_plain_upper(conf: &Conf, observed: &Observed, link: &Link) -> bool {
    conf.require_rdma
        && link.parent.is_none()
        && link.lower.is_some()
        && rdma_of(&observed.host, link).is_none()
}

fn candidate<'a>(
    observed: &'a Observed,
    link: &'a Link,
    rdma: Option<&'a RdmaDevice>,
) -> Candidate<'a> {
    Candidate {
        observed,
        link,
        rdma,
    }
}

/// Returns a sorting key by which `eth10` follows `eth9`, so rails are in the order of the NICs' numbers.
fn natural(name: &str) -> Vec<(bool, u64, String)> {
    let mut parts: Vec<(bool, u64, String)> = vec![];
    for c in name.chars() {
        match (c.to_digit(10), parts.last_mut()) {
            (Some(digit), Some((true, number, _))) => {
                *number = number.saturating_mul(10).saturating_add(u64::from(digit));
            }
            (Some(digit), _) => parts.push((true, u64::from(digit), String::new())),
            (None, Some((false, _, text))) => text.push(c),
            (None, _) => parts.push((false, 0, c.to_string())),
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::natural;

    #[test]
    fn rails_are_numbered_as_people_do() {
        let mut names = ["eth10", "eth9", "bond0", "enp65s0f1", "enp3s0"];
        names.sort_by_key(|name| natural(name));
        assert_eq!(names, ["bond0", "enp3s0", "enp65s0f1", "eth9", "eth10"]);
    }
}
