// SPDX-License-Identifier: Apache-2.0
//! The network configuration from standard input. The plugin checks every known field before the first change. It
//! ignores unknown fields, which [`Conf::raw`] also contains.

pub mod child;
pub mod fields;
mod ib_kubernetes;
mod pkey;
mod pod_annotations;
mod pod_arguments;
pub mod resource_name;
mod resources;
mod routing;
pub mod selector;
mod smc;
pub mod vf;

pub use child::ChildConf;
use cni_protocol::{ConfError, Mistakes, Network};
use conf_reader::{AbsolutePath, Field, Number, Wrong};
pub use ib_kubernetes::{IbKubernetes, IbKubernetesError};
use log::LevelFilter;
pub use pod_annotations::PodAnnotations;
pub use pod_arguments::PodArguments;
pub use resource_name::ResourceName;
pub use routing::{Routing, RoutingFields};
pub use smc::{ANNOTATIONS, Smc, SmcRequirement, Smcr};

use rdma_netns::{DeviceAddress, InterfaceName, Pkey, VfSetting};
use selector::Selector;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

/// Default state directory of `rdma-cni`. The field `stateDir` overrides it.
pub const STATE_DIR: &str = "/var/lib/cni/rdma-cni";

/// A checked network configuration.
#[derive(Clone, Debug)]
pub struct Conf {
    /// Fields that every plugin's configuration has.
    pub network: Network,
    /// True if `type` is `rdma`, the name of the plugin that this plugin replaces. A drop-in moves only RDMA devices,
    /// and requires exclusive mode.
    pub drop_in: bool,
    /// The devices to attach. ADD requires them. Only a drop-in can have `None`.
    pub devices: Option<Devices>,
    /// `podResourcesSocket`
    pub pod_resources_socket: PathBuf,
    /// `mode`
    pub mode: Mode,
    /// `child`
    pub child: Option<ChildConf>,
    /// Settings of a virtual function, from `vlan`, `mac`, `spoofchk`, `guid` and similar fields.
    pub vf: Vec<VfSetting>,
    /// `ibKubernetesEnabled`
    pub ib_kubernetes: IbKubernetes,
    /// `pkey`
    pub pkey: Option<Pkey>,
    /// `routing`
    pub routing: Routing,
    /// Value of `resultIPs`. `None`: the default applies ([`Conf::result_ips`]).
    result_ips: Option<ResultIps>,
    /// `interfaceName`
    pub interface_name: NamePattern,
    /// False if `interfaceName` is invalid. DEL and GC ignore an invalid value.
    pub names_are_known: bool,
    /// Value of `CNI_IFNAME`, if the verb refers to one attachment.
    pub attachment: Option<InterfaceName>,
    /// `requireRdma`
    pub require_rdma: bool,
    /// Value of `rebindDriver`: a restore binds the drivers of moved PCI functions again.
    pub rebind_driver: bool,
    /// Value of `ipam.type`, if an IPAM plugin assigns addresses.
    pub ipam: Option<String>,
    /// Value of `probe`: ADD probes addresses on the wire before it uses them.
    pub probe: bool,
    /// `ipv6`
    pub ipv6: Ipv6,
    /// Value of `mtu`, bytes.
    pub mtu: Option<u32>,
    /// `podAnnotations`
    pub pod_annotations: PodAnnotations,
    /// Names of arguments that the pod has set, but that `podArguments` does not allow.
    pub unheard_arguments: Vec<&'static str>,
    /// Numbers of the shared NICs that the pod has chosen ([`Conf::chosen_by_pod`]). `None`: the pod gets all of its
    /// NICs.
    pub rails: Option<BTreeSet<usize>>,
    /// Values of `smcr` and `smcUeid`.
    pub smc: Smc,
    /// `stateDir`
    pub state_dir: PathBuf,
    /// Value of `detect`: ADD and DEL change no device. They only record in the state directory that the runtime called
    /// this entry.
    pub detect: bool,
    /// The configuration as it was read, with unknown fields.
    pub raw: Map<String, Value>,
}

/// The source of the devices to attach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Devices {
    /// Address from `runtimeConfig.deviceID`, or else from `deviceID`.
    Address(DeviceAddress),
    /// Selectors from `devices`.
    Selectors(Vec<Selector>),
    /// Names from `resources`, or default names. The pod gets the devices that kubelet allocated of these resources, in
    /// the order of the names.
    Resources(Vec<String>),
}

/// Value of `mode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Mode {
    /// `rdma-cni` shares bonds (also for a selected port of a bond), VLANs with RDMA, devices that kubelet can allocate
    /// to several pods, and selected devices on which pods already have children. `rdma-cni` moves all other devices.
    #[default]
    Auto,
    /// Moves the netdev into the pod.
    Move,
    /// Gives the pod a child of the netdev, which stays on the host.
    Share,
}

/// Value of `resultIPs`: whether the result's `ips` and `routes` contain the rails' addresses and routes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ResultIps {
    /// The rails' addresses are in the result.
    #[default]
    All,
    /// The rails' addresses are only in the result's `rails` and in the record. Addresses in the result would cause two
    /// problems: CRI-O treats every address in the result as an address of the pod, and CHECK of a reference plugin
    /// expects every address on the reference plugin's interface (`ValidateExpectedInterfaceIPs()`,
    /// containernetworking/plugins `pkg/ip/utils_linux.go`).
    None,
}

/// Value of `ipv6`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ipv6 {
    /// `dad`
    pub dad: Dad,
    /// `acceptRA`
    pub accept_ra: bool,
}

/// Duplicate address detection of the pod's IPv6 addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Dad {
    /// The kernel does no detection: the address is usable at once.
    #[default]
    Off,
    /// The kernel does the detection, and the address is usable during the detection.
    Optimistic,
    /// ADD waits until the detection has ended.
    Wait,
}

/// Value of `interfaceName`. `%d` stands for the rail's number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamePattern(String);

impl Conf {
    /// Returns the devices to attach. Returns an error if the configuration has none, because ADD requires devices.
    pub fn required_devices(&self) -> Result<&Devices, ConfError> {
        self.devices.as_ref().ok_or(ConfError::Missing {
            field: "deviceID",
            expected: "name the device by deviceID or runtimeConfig.deviceID, or set devices or resources",
        })
    }

    /// Returns an error if the drop-in is the first plugin of the list, because no plugin has then moved the netdev.
    pub fn check_drop_in(&self) -> Result<(), ConfError> {
        match self.drop_in && self.network.prev_result.is_none() {
            true => Err(ConfError::Missing {
                field: "prevResult",
                expected: "must be the result of the plugin that moves the netdev: type \"rdma\" comes after it in \
                           the list",
            }),
            false => Ok(()),
        }
    }

    /// Returns `resultIPs`. The default depends on the plugin's place in the list. The first plugin reports the rails'
    /// addresses as the pod's addresses. A later plugin does not report them, because an earlier plugin has reported
    /// the pod's addresses.
    pub fn result_ips(&self) -> ResultIps {
        let default = match self.network.prev_result {
            Some(_) => ResultIps::None,
            None => ResultIps::All,
        };
        self.result_ips.unwrap_or(default)
    }

    /// Sets the attachment's `interface` (`CNI_IFNAME`), if the verb has one.
    pub fn of_attachment(mut self, interface: Option<&InterfaceName>) -> Self {
        self.attachment = interface.cloned();
        self
    }

    /// Returns the name in the pod of rail number `rail`, one of `count` rails. The only rail of the list's first
    /// plugin is called `CNI_IFNAME`, if the configuration has no `interfaceName`.
    pub fn pod_name(&self, rail: usize, count: usize) -> Option<InterfaceName> {
        let is_first = self.network.prev_result.is_none();
        match &self.attachment {
            Some(name) if count == 1 && is_first && self.names_no_interface() => Some(name.clone()),
            _ => self.interface_name.name(rail),
        }
    }

    /// Returns true if the configuration has no `interfaceName`.
    pub fn names_no_interface(&self) -> bool {
        self.raw.get("interfaceName").is_none_or(Value::is_null)
    }

    /// Returns the name for an attachment without a netdev: `CNI_IFNAME`, or without it the name of the first rail.
    pub fn attachment_name(&self) -> Option<InterfaceName> {
        let given = self.attachment.clone();
        given.or_else(|| self.interface_name.name(0))
    }

    /// Returns true if the runtime passes the device at ADD (`runtimeConfig.deviceID`), and the configuration names no
    /// resources of kubelet.
    pub fn takes_device_id(&self) -> bool {
        let capabilities = self.raw.get("capabilities");
        let device_id = capabilities.is_some_and(|capabilities| capabilities["deviceID"] == true);
        device_id && !self.raw.contains_key("resources")
    }

    /// Parses a configuration, and checks all of its values, as ADD does.
    ///
    /// # Errors
    /// A value is wrong.
    pub fn parse(raw: Map<String, Value>) -> Result<Self, ConfError> {
        Self::read(raw, &BTreeMap::new(), &mut Mistakes::refused())
    }

    /// Reads a configuration with the `CNI_ARGS` in `args`. If `mistakes` ignores a wrong value, the field counts as
    /// missing.
    ///
    /// # Errors
    /// A value is wrong, and `mistakes` does not ignore it.
    pub fn read(
        raw: Map<String, Value>,
        args: &BTreeMap<String, String>,
        mistakes: &mut Mistakes,
    ) -> Result<Self, ConfError> {
        let file = &Field::root(&raw);
        let mut network = Network::parse(&raw, mistakes)?;
        let is_first = network.prev_result.is_none();
        let plugin: Option<String> = mistakes.or(file.get("type"), None)?;
        let drop_in = plugin.as_deref() == Some("rdma");
        if drop_in && mistakes.or(debug(file), false)? {
            network.log.level = LevelFilter::Debug;
        }
        let mut path = |name: &str, default: &str| -> Result<PathBuf, ConfError> {
            let path = mistakes.or(file.get(name), None)?;
            Ok(path.map_or_else(|| default.into(), |AbsolutePath(path)| path))
        };
        let socket = path(
            "podResourcesSocket",
            "/var/lib/kubelet/pod-resources/kubelet.sock",
        )?;
        let state_dir = path("stateDir", STATE_DIR)?;
        let arguments = PodArguments::parse(file, plugin.as_deref(), args, is_first);
        let arguments = mistakes.or(arguments, PodArguments::default())?;
        Ok(Self {
            network,
            drop_in,
            devices: match mistakes.or(devices(file), None)? {
                None if drop_in => None,
                None => Some(resources::by_default()),
                devices => devices,
            },
            pod_resources_socket: socket,
            mode: mistakes.or(file.get("mode"), None)?.unwrap_or_default(),
            child: mistakes.or(child::parse(file), None)?,
            vf: mistakes.or(vf::parse(file, &arguments), vec![])?,
            ib_kubernetes: mistakes.or(ib_kubernetes::parse(file), IbKubernetes::Off)?,
            pkey: mistakes.or(pkey::parse(file), None)?,
            routing: mistakes
                .or(RoutingFields::parse(file), RoutingFields::default())?
                .over(Routing::default()),
            result_ips: mistakes.or(file.get("resultIPs"), None)?,
            interface_name: mistakes.or(interface_name(file), NamePattern::default())?,
            names_are_known: !mistakes.has("interfaceName"),
            attachment: None,
            require_rdma: mistakes.or(file.get("requireRdma"), None)?.unwrap_or(true),
            rebind_driver: mistakes
                .or(file.get("rebindDriver"), None)?
                .unwrap_or_default(),
            ipam: mistakes.or(ipam(file), None)?,
            probe: mistakes
                .or(file.choice("probe", &ON_OFF), None)?
                .unwrap_or(true),
            ipv6: mistakes.or(ipv6(file), Ipv6::default())?,
            mtu: mistakes
                .or(file.get("mtu"), None)?
                .map(|Number::<68, 65535>(mtu)| mtu),
            pod_annotations: mistakes.or(PodAnnotations::parse(file), PodAnnotations::default())?,
            unheard_arguments: mistakes.or(arguments.disallowed(file), vec![])?,
            rails: None,
            state_dir,
            detect: mistakes.or(file.get("detect"), None)?.unwrap_or_default(),
            smc: mistakes.or(Smc::parse(file), Smc::off())?,
            raw,
        })
    }
}

/// Returns true if `args.cni.debug` is true and `log` has no `level`. `debug` is a field of k8snetworkplumbingwg's
/// rdma-cni.
fn debug(file: &Field<'_>) -> Result<bool, Wrong> {
    let debug: Option<bool> = file.object("args")?.at("cni").get("debug")?;
    let has_level = file.object("log")?.at("level").is_there();
    Ok(debug == Some(true) && !has_level)
}

const ON_OFF: [(&str, bool); 2] = [("on", true), ("off", false)];

fn devices(file: &Field<'_>) -> Result<Option<Devices>, Wrong> {
    // reads `resources` first: a wrong value is an error even if another field takes precedence
    let resources = resources::parse(file)?;
    let runtime = file.object("runtimeConfig")?;
    for field in [runtime.at("deviceID"), file.at("deviceID")] {
        if let Some(text) = field.text()? {
            let address = DeviceAddress::try_from(text);
            let address = address.map_err(|error| field.wrong(error.to_string()))?;
            return Ok(Some(Devices::Address(address)));
        }
    }
    let list = file.objects("devices")?;
    if list.is_empty() {
        return match file.at("devices") {
            field if field.is_there() => Err(field.wrong("must have at least one selector")),
            _ => Ok(resources.map(Devices::Resources)),
        };
    }
    let selectors: Result<_, _> = list.iter().map(Selector::parse).collect();
    Ok(Some(Devices::Selectors(selectors?)))
}

fn interface_name(file: &Field<'_>) -> Result<NamePattern, Wrong> {
    let pattern = file
        .get("interfaceName")?
        .map_or_else(NamePattern::default, NamePattern);
    // 999 makes the longest name, because no node has a thousand rails
    match pattern.try_name(999) {
        Ok(_) => Ok(pattern),
        Err(error) => Err(file.at("interfaceName").wrong(error.to_string())),
    }
}

impl Default for NamePattern {
    fn default() -> Self {
        Self("rdma%d".to_owned())
    }
}

impl NamePattern {
    /// Returns the text with which all names of the pattern begin.
    pub fn prefix(&self) -> &str {
        self.0.split("%d").next().unwrap_or_default()
    }

    /// Returns the name in the pod of rail number `rail`.
    pub fn name(&self, rail: usize) -> Option<InterfaceName> {
        self.try_name(rail).ok()
    }

    /// Returns true if the pattern gives different names to several rails.
    pub fn counts(&self) -> bool {
        self.0.contains("%d")
    }

    fn try_name(&self, rail: usize) -> Result<InterfaceName, rdma_netns::name::InvalidName> {
        InterfaceName::try_from(self.0.replacen("%d", &rail.to_string(), 1))
    }
}

fn ipam(file: &Field<'_>) -> Result<Option<String>, Wrong> {
    let field = file.object("ipam")?.at("type");
    match field.text()? {
        Some(name) if name.contains('/') || name == "." || name == ".." => {
            Err(field.wrong("must be the file name of a plugin in CNI_PATH"))
        }
        name => Ok(name),
    }
}

fn ipv6(file: &Field<'_>) -> Result<Ipv6, Wrong> {
    let ipv6 = file.object("ipv6")?;
    Ok(Ipv6 {
        dad: ipv6.get("dad")?.unwrap_or_default(),
        accept_ra: ipv6.get("acceptRA")?.unwrap_or_default(),
    })
}
