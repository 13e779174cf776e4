// SPDX-License-Identifier: Apache-2.0
//! Delegation to an IPAM plugin (CNI specification, section 4). `rdma-cni` calls the plugin once for each rail, with
//! the rail's name in the pod as `CNI_IFNAME` and its netdev on the host as `master`.

mod built_in;
mod error;
mod master;

use built_in::BuiltIn;
pub use error::IpamError;
pub use master::{Known, Master};

use attachments::DesiredLink;
use cni_protocol::{Command, Environment, ValidAttachment, run};
use rdma_ipam::store::Deferred;
use rdma_netns::{Address, Route, link::SCOPE_LINK};
use serde_json::{Map, Value, json};
use std::{
    io,
    net::IpAddr,
    path::PathBuf,
    process,
    time::{Duration, Instant},
};

/// Time limit of one call. The reference plugin `dhcp` tries for about a minute.
pub const LIMIT: Duration = Duration::from_secs(90);

/// Returns the current time, for time limits of IPAM calls. IPAM programs take real time, so this is not
/// [`rdma_netns::Kernel::now`], which tests control.
#[expect(
    clippy::disallowed_methods,
    reason = "an IPAM plugin is a process, which no fake kernel can hurry"
)]
pub fn now() -> Instant {
    Instant::now()
}

/// An IPAM plugin whose program was found.
#[derive(Debug)]
pub struct Ipam<'a> {
    name: &'a str,
    program: PathBuf,
    built_in: Option<BuiltIn>,
    environment: &'a Environment,
    config: &'a Map<String, Value>,
    deadline: Option<Instant>,
    later: Option<&'a Rails>,
}

/// The IPAM calls of one verb, one for each rail. The built-in IPAM syncs all its files in one step after the calls,
/// which is possible because `rdma-cni` uses no address before this step. An IPAM program syncs its files in each
/// call.
#[derive(Debug, Default)]
pub struct Rails(Deferred);

impl Rails {
    /// Syncs the directories of leases. Afterwards all assigned and released addresses are on disk.
    ///
    /// # Errors
    /// A directory cannot be synced.
    pub fn settle(&self) -> Result<(), IpamError> {
        self.0.settle().map_err(IpamError::Unsettled)
    }
}

/// The answer of an IPAM plugin to ADD.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Desired state of the rail's netdev.
    pub desired: DesiredLink,
    /// `ips`, unchanged.
    pub ips: Vec<Value>,
    /// `routes`, unchanged.
    pub routes: Vec<Value>,
    /// `dns`, unchanged.
    pub dns: Option<Value>,
}

impl<'a> Ipam<'a> {
    /// Finds the plugin `name` in `CNI_PATH`. Its calls get `config` on standard input.
    pub fn find(
        name: &'a str,
        environment: &'a Environment,
        config: &'a Map<String, Value>,
    ) -> Result<Self, IpamError> {
        let program = program(name, environment)?;
        Ok(Self {
            name,
            built_in: BuiltIn::of(name, &program),
            program,
            environment,
            config,
            deadline: None,
            later: None,
        })
    }

    /// Sets a common `deadline` for all calls, in place of [`LIMIT`] for each call.
    pub fn until(self, deadline: Instant) -> Self {
        Self {
            deadline: Some(deadline),
            ..self
        }
    }

    /// Makes the built-in IPAM leave its syncs to [`Rails::settle`] of `rails`.
    pub fn among(self, rails: &'a Rails) -> Self {
        Self {
            later: Some(rails),
            ..self
        }
    }

    /// Requests addresses for the rail with the name `pod_name` in the pod. `master` describes the rail's netdev in its
    /// host state. The netdev itself may already be in the pod. Requested addresses in `assigned`, which the pod
    /// already has, are not requested for this rail.
    pub fn add(
        &self,
        pod_name: &str,
        master: &Master<'_>,
        assigned: &[IpAddr],
    ) -> Result<Answer, IpamError> {
        let config = master.handed_on(self.config, assigned);
        let args = self.environment.all.get("CNI_ARGS");
        let args = args.map(|args| master.args(args, assigned));
        let mut variables = vec![("CNI_IFNAME", pod_name)];
        variables.extend(args.as_deref().map(|args| ("CNI_ARGS", args)));
        let output = self.call(Command::Add, &variables, &config)?;
        Answer::parse(self.name, &output)
    }

    /// Calls DEL or CHECK for `rail`. DEL releases the rail's addresses, CHECK checks that the rail has them.
    pub fn rail(&self, command: Command, rail: RailCall<'_>) -> Result<(), IpamError> {
        let netns = rail.netns.unwrap_or_default();
        let variables = [
            ("CNI_CONTAINERID", rail.container),
            ("CNI_NETNS", netns),
            ("CNI_IFNAME", rail.pod_name),
            // the attachment's own arguments: in GC and recovery the environment belongs to another pod
            ("CNI_ARGS", rail.args.unwrap_or_default()),
        ];
        let mut config = self.config.clone();
        config.insert("master".into(), rail.master.into());
        if !rail.conflicts.is_empty() {
            let conflicts = rail.conflicts.iter().map(|ip| ip.to_string().into());
            config.insert("conflicts".into(), Value::Array(conflicts.collect()));
        }
        self.call(command, &variables, &config).map(drop)
    }

    /// Calls GC. In `valid`, a rail's name in the pod replaces `CNI_IFNAME`.
    pub fn gc(&self, valid: &[ValidAttachment]) -> Result<(), IpamError> {
        let valid = valid
            .iter()
            .map(|it| json!({ "containerID": it.container, "ifname": it.interface }));
        let mut config = self.config.clone();
        config.remove("cni.dev/attachments");
        config.insert("cni.dev/valid-attachments".into(), valid.collect());
        self.call(Command::Gc, &[], &config).map(drop)
    }

    /// Calls STATUS, with the rail's `master` if it is known.
    pub fn status(&self, master: Option<&Master<'_>>) -> Result<(), IpamError> {
        let config = match master {
            Some(master) => master.handed_on(self.config, &[]),
            None => self.config.clone(),
        };
        self.call(Command::Status, &[], &config).map(drop)
    }

    fn call(
        &self,
        command: Command,
        variables: &[(&str, &str)],
        config: &Map<String, Value>,
    ) -> Result<Vec<u8>, IpamError> {
        let failed = |source| IpamError::Run {
            program: self.program.clone(),
            source,
        };
        let input = serde_json::to_vec(config).unwrap_or_default();
        let deadline = self.deadline.unwrap_or_else(|| now() + LIMIT);
        if let Some(built_in) = &self.built_in {
            if now() >= deadline {
                return Err(failed(io::ErrorKind::TimedOut.into()));
            }
            let mut all = self.environment.all.clone();
            let command = ("CNI_COMMAND", command.as_str());
            let own = [command].into_iter().chain(variables.iter().copied());
            all.extend(own.map(|(name, value)| (name.to_owned(), value.to_owned())));
            let later = self.later.map(|it| &it.0);
            let answered = built_in.call(all, &input, deadline, later);
            return answered.map_err(|output| {
                let without = "the plugin ended without a CNI error";
                IpamError::refused(self.name, command.1, &output, without)
            });
        }
        let mut program = process::Command::new(&self.program);
        program
            .env_clear()
            .envs(&self.environment.all)
            .env("CNI_COMMAND", command.as_str())
            .envs(variables.iter().copied());
        let (status, output) = run::until(deadline, program, &input).map_err(failed)?;
        if status.success() {
            return Ok(output);
        }
        if status.code().is_none() {
            return Err(IpamError::Killed {
                name: self.name.to_owned(),
                command: command.as_str(),
                status,
            });
        }
        let without = format!("the plugin ended with {status} and without a CNI error");
        Err(IpamError::refused(
            self.name,
            command.as_str(),
            &output,
            &without,
        ))
    }
}

/// Returns the path of the plugin `name` in the first directory of `CNI_PATH` that contains it.
///
/// # Errors
/// No directory of `CNI_PATH` contains the program.
pub fn program(name: &str, environment: &Environment) -> Result<PathBuf, IpamError> {
    let mut places = environment
        .path
        .iter()
        .map(|directory| directory.join(name));
    places
        .find(|path| path.is_file())
        .ok_or_else(|| IpamError::NotFound {
            name: name.to_owned(),
            path: environment.all.get("CNI_PATH").cloned().unwrap_or_default(),
        })
}

impl Answer {
    /// Parses the `output` of ADD by the plugin `name`.
    ///
    /// # Errors
    /// The output is no valid result with addresses.
    pub fn parse(name: &str, output: &[u8]) -> Result<Self, IpamError> {
        let wrong = |field, value: String| IpamError::Answer {
            name: name.to_owned(),
            field,
            value: error::shown(&value),
        };
        let result: Value = serde_json::from_slice(output)
            .map_err(|_| wrong("result", String::from_utf8_lossy(output).trim().to_owned()))?;
        let list = |field: &'static str| match &result[field] {
            Value::Null => Ok(vec![]),
            Value::Array(list) => Ok(list.clone()),
            other => Err(wrong(field, other.to_string())),
        };
        let (ips, routes) = (list("ips")?, list("routes")?);
        if ips.is_empty() {
            return Err(wrong("ips", "there is no address".into()));
        }
        let mut desired = DesiredLink::default();
        for ip in &ips {
            let address = ip["address"].as_str().and_then(prefix);
            let (ip_address, length) = address.ok_or_else(|| wrong("ips", ip.to_string()))?;
            desired.addresses.push(Address::new(ip_address, length));
            desired.gateways.extend(
                ip["gateway"]
                    .as_str()
                    .and_then(|text| text.parse::<IpAddr>().ok()),
            );
        }
        let mut by_gateway = vec![];
        for route in &routes {
            let parsed = self::route(route, &desired.gateways)
                .ok_or_else(|| wrong("routes", route.to_string()))?;
            match parsed.gateway {
                None => desired.routes.push(parsed),
                Some(_) => by_gateway.push(parsed),
            }
        }
        desired.routes.append(&mut by_gateway);
        let dns = result
            .get("dns")
            .filter(|dns| dns.as_object().is_some_and(|d| !d.is_empty()));
        Ok(Self {
            desired,
            ips,
            routes,
            dns: dns.cloned(),
        })
    }
}

/// The rail whose addresses IPAM releases or checks.
#[derive(Clone, Copy, Debug)]
pub struct RailCall<'a> {
    /// Container id of the attachment. In GC and recovery it is not the environment's container id.
    pub container: &'a str,
    /// Value of `CNI_NETNS`, if the namespace still exists.
    pub netns: Option<&'a str>,
    /// Value of `CNI_ARGS` at the attachment's ADD.
    pub args: Option<&'a str>,
    /// The rail's name in the pod.
    pub pod_name: &'a str,
    /// The netdev's name on the host.
    pub master: &'a str,
    /// Addresses of the rail that a probe found on another machine.
    pub conflicts: &'a [IpAddr],
}

/// Parses an address with a prefix length. `ipnetwork` would also accept `10.0.0.1` and `10.0.0.1/255.0.0.0`, but an
/// IPAM plugin must return a prefix length.
fn prefix(text: &str) -> Option<(IpAddr, u8)> {
    let (address, length) = text.split_once('/')?;
    let address: IpAddr = address.parse().ok()?;
    let length: u8 = length.parse().ok()?;
    let network = ipnetwork::IpNetwork::new(address, length).ok()?;
    Some((network.ip(), network.prefix()))
}

/// Parses a route. A route without `gw` gets the gateway of an address of the same family, as in the reference plugins
/// (`ipam.ConfigureIface`). A route with an empty `gw` gets no gateway.
fn route(value: &Value, gateways: &[IpAddr]) -> Option<Route> {
    let (address, length) = prefix(value["dst"].as_str()?)?;
    let network = ipnetwork::IpNetwork::new(address, length).ok()?.network();
    let number = |name: &str| match &value[name] {
        Value::Null => Some(None),
        number => Some(Some(u32::try_from(number.as_u64()?).ok()?)),
    };
    let gateway = match &value["gw"] {
        Value::Null => gateways
            .iter()
            .find(|gw| gw.is_ipv4() == network.is_ipv4())
            .copied(),
        Value::String(text) if text.is_empty() => None,
        text => Some(text.as_str()?.parse().ok()?),
    };
    let mut route = Route::new(network, length);
    route.gateway = gateway;
    let scope = match number("scope")? {
        Some(scope) => u8::try_from(scope).ok()?,
        None if gateway.is_none() && network.is_ipv4() => SCOPE_LINK,
        None => 0,
    };
    route.scope = scope;
    route.metric = number("priority")?.filter(|metric| *metric != 0);
    if let Some(table) = number("table")? {
        route.table = table;
    }
    route.mtu = number("mtu")?.filter(|mtu| *mtu != 0);
    route.advmss = number("advmss")?.filter(|advmss| *advmss != 0);
    Some(route)
}
