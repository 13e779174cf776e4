// SPDX-License-Identifier: Apache-2.0
//! Settings that a virtual function has while a pod has it. The fields have the names and meanings of sriov-cni's
//! fields (`docs/configuration-reference.md` of k8snetworkplumbingwg/sriov-cni) and of ib-sriov-cni's `guid`
//! (`README.md` and `pkg/sriov/sriov.go` of k8snetworkplumbingwg/ib-sriov-cni). An empty text counts as a missing
//! field, as in Go's decoders.

use crate::{
    ON_OFF,
    pod_arguments::{Argument, PodArguments},
};
use conf_reader::{Field, Number, Wrong, json};
use rdma_netns::{
    Guid, HardwareAddress, VfLinkState, VfRates, VfSetting, VfSettingKind, VfVlan, VlanProtocol,
};
use serde_json::Value;

const LINK_STATES: [(&str, VfLinkState); 3] = [
    ("auto", VfLinkState::Auto),
    ("enable", VfLinkState::Enable),
    ("disable", VfLinkState::Disable),
];

const PROTOCOLS: [(&str, VlanProtocol); 2] = [
    ("802.1q", VlanProtocol::Customer),
    ("802.1ad", VlanProtocol::Service),
];

/// Returns the name of the field that sets `kind`, for messages.
pub fn fields(kind: VfSettingKind) -> &'static str {
    match kind {
        VfSettingKind::Vlan => "vlan",
        VfSettingKind::Mac => "mac",
        VfSettingKind::Rates => "max_tx_rate",
        VfSettingKind::SpoofCheck => "spoofchk",
        VfSettingKind::Trust => "trust",
        VfSettingKind::LinkState => "link_state",
        VfSettingKind::NodeGuid | VfSettingKind::PortGuid => "guid",
    }
}

/// Returns the settings in the order in which sriov-cni applies them, and then the GUIDs. The pod's choices in
/// `arguments` override the configuration.
///
/// # Errors
/// A value is wrong.
pub fn parse(file: &Field<'_>, arguments: &PodArguments<'_>) -> Result<Vec<VfSetting>, Wrong> {
    let guid = guid(file, arguments)?;
    let settings = [
        vlan(file)?.map(VfSetting::Vlan),
        mac(file, arguments)?.map(VfSetting::Mac),
        rates(file)?.map(VfSetting::Rates),
        word(file, "spoofchk", &ON_OFF)?.map(VfSetting::SpoofCheck),
        word(file, "trust", &ON_OFF)?.map(VfSetting::Trust),
        word(file, "link_state", &LINK_STATES)?.map(VfSetting::LinkState),
        guid.map(VfSetting::NodeGuid),
        guid.map(VfSetting::PortGuid),
    ];
    Ok(settings.into_iter().flatten().collect())
}

/// Returns `settings`, and the settings in `others` whose kinds `settings` lacks.
pub fn over(settings: Vec<VfSetting>, others: Vec<VfSetting>) -> Vec<VfSetting> {
    let mut all = settings;
    for other in others {
        if all.iter().all(|it| it.kind() != other.kind()) {
            all.push(other);
        }
    }
    all
}

fn vlan(file: &Field<'_>) -> Result<Option<VfVlan>, Wrong> {
    let id: Option<Number<0, 4094>> = file.get("vlan")?;
    let qos: Option<Number<0, 7>> = file.get("vlanQoS")?;
    let protocol = word(file, "vlanProto", &PROTOCOLS)?;
    let id = id.map(|Number(id)| id);
    for (name, is_there) in [
        ("vlanQoS", qos.is_some()),
        ("vlanProto", protocol.is_some()),
    ] {
        if is_there && id.is_none() {
            return Err(file.at(name).wrong("needs vlan"));
        }
    }
    let Some(id) = id else {
        return Ok(None);
    };
    let vlan = VfVlan {
        id: id as u16,
        qos: qos.map_or(0, |Number(qos)| qos as u8),
        protocol: protocol.unwrap_or_default(),
    };
    match (vlan.id, vlan.qos, vlan.protocol) {
        (0, 1.., _) => Err(file
            .at("vlanQoS")
            .wrong("must be 0 if vlan is 0, which means no VLAN")),
        (0, _, VlanProtocol::Service) => Err(file
            .at("vlanProto")
            .wrong("must be 802.1q if vlan is 0, which means no VLAN")),
        _ => Ok(Some(vlan)),
    }
}

/// Reads the hardware address from the same fields and in the same order as sriov-cni (`CmdAdd()`,
/// `pkg/cnicommands/cni.go`). Multus passes an address as `MAC` in `CNI_ARGS`, which all plugins of a list get. It also
/// passes the address in `runtimeConfig` if the network has the capability `mac` (`delegateAdd()`,
/// `pkg/multus/multus.go`).
fn mac(file: &Field<'_>, arguments: &PodArguments<'_>) -> Result<Option<HardwareAddress>, Wrong> {
    let text = arguments.mac();
    let of_args = text.map(|text| {
        let value = json(&Value::from(text.as_str()));
        one_address(text).ok_or_else(|| Wrong::value("CNI_ARGS: MAC", value, ONE_ADDRESS))
    });
    let of_args = of_args.transpose()?;
    chosen(file, arguments, Argument::Mac, of_args, address)
}

/// Reads one GUID, which applies to the node and to the port, as in ib-sriov-cni.
fn guid(file: &Field<'_>, arguments: &PodArguments<'_>) -> Result<Option<Guid>, Wrong> {
    let misplaced = file.at("infinibandGUID");
    if misplaced.value().is_some_and(|it| *it != "") {
        let must = "must be in runtimeConfig, or be called guid";
        return Err(misplaced.wrong(must));
    }
    let must = "must be a GUID such as 02:00:00:00:00:00:00:01, and neither all zeros nor all ones";
    chosen(file, arguments, Argument::Guid, None, |field| {
        let parse = |text: String| {
            let guid = text.parse::<Guid>().ok().filter(|it| it.is_valid());
            guid.ok_or_else(|| field.wrong(must))
        };
        field.text()?.map(parse).transpose()
    })
}

/// Returns the first existing value of these: `runtimeConfig`, `of_args` (from `CNI_ARGS`), `args.cni`, and the field
/// `mac` or `guid` of the configuration. The first three are the pod's choices, and count only if the pod may choose.
fn chosen<T>(
    file: &Field<'_>,
    arguments: &PodArguments<'_>,
    argument: Argument,
    of_args: Option<T>,
    read: impl Fn(&Field<'_>) -> Result<Option<T>, Wrong>,
) -> Result<Option<T>, Wrong> {
    let mut places = match arguments.allows(argument) {
        true => arguments.places(file, argument)?,
        false => vec![],
    };
    places.push(file.at(argument.name()));
    // reads all values first: a wrong value is an error even if another value takes precedence
    let mut read = places.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    read.insert(1, of_args);
    Ok(read.into_iter().flatten().next())
}

fn address(field: &Field<'_>) -> Result<Option<HardwareAddress>, Wrong> {
    let parse = |text: String| one_address(&text).ok_or_else(|| field.wrong(ONE_ADDRESS));
    field.text()?.map(parse).transpose()
}

const ONE_ADDRESS: &str = "must be a nonzero unicast Ethernet address such as 02:00:00:00:00:01";

/// Parses the hardware address of an Ethernet netdev. Rejects zero and group addresses. Accepts the formats of Go's
/// `net.ParseMAC`, like sriov-cni: with colons, with hyphens, or two bytes between dots.
fn one_address(text: &str) -> Option<HardwareAddress> {
    let pairs: Vec<&str> = text.split('.').collect();
    let with_colons = match &pairs[..] {
        [first, second, third] => {
            let halves = [first, second, third].map(|it| it.split_at_checked(2));
            let [Some((a, b)), Some((c, d)), Some((e, f))] = halves else {
                return None;
            };
            [a, b, c, d, e, f].join(":")
        }
        _ if text.contains(':') => text.to_owned(),
        _ => text.replace('-', ":"),
    };
    let is_one = |it: &HardwareAddress| {
        it.0.len() == 6 && it.0[0] & 1 == 0 && it.0.iter().any(|byte| *byte != 0)
    };
    with_colons.parse().ok().filter(is_one)
}

fn rates(file: &Field<'_>) -> Result<Option<VfRates>, Wrong> {
    let rate = |name: &str| -> Result<Option<u32>, Wrong> {
        let rate: Option<Number<0, { u32::MAX }>> = file.get(name)?;
        Ok(rate.map(|Number(rate)| rate))
    };
    let (min, max) = (rate("min_tx_rate")?, rate("max_tx_rate")?);
    if min.is_none() && max.is_none() {
        return Ok(None);
    }
    let (min, max) = (min.unwrap_or(0), max.unwrap_or(0));
    if max != 0 && min > max {
        let must = format!("must be at most max_tx_rate, {max}");
        return Err(file.at("min_tx_rate").wrong(must));
    }
    Ok(Some(VfRates { min, max }))
}

/// Reads one of `choices`, in upper or lower case, from the field `name`. An empty text counts as a missing field.
fn word<T: Copy>(file: &Field<'_>, name: &str, choices: &[(&str, T)]) -> Result<Option<T>, Wrong> {
    let Some(text) = file.at(name).text()? else {
        return Ok(None);
    };
    let mut all = choices.iter();
    match all.find(|(word, _)| text.eq_ignore_ascii_case(word)) {
        Some((_, choice)) => Ok(Some(*choice)),
        // `choice` returns the error, which names the accepted words
        None => file.choice(name, choices),
    }
}
