// SPDX-License-Identifier: Apache-2.0
//! Checks whether the runtime calls `rdma-cni`, and whether the programs that the list names exist.

use super::{
    super::facts::{BinaryState, Facts, ModuleState, Part, Picked, Skipped},
    Findings, Severity, named,
};
use cni_protocol::{SpecVersion, version::SUPPORTED};
use conflist::fields;
use network_conf::{ANNOTATIONS, Conf, Smcr};
use serde_json::{Map, Value};

const INSTALL: &str = "run rdma-device-plugin install (docs/install.md)";

/// Returns the checked configuration. `None`: the runtime does not call `rdma-cni`, the configuration is invalid, or
/// this program cannot see it.
pub(super) fn examine(facts: &Facts, findings: &mut Findings<'_>) -> Option<Conf> {
    let conf = configuration(facts, findings);
    binaries(facts, conf.is_some(), findings);
    conf
}

fn configuration(facts: &Facts, findings: &mut Findings<'_>) -> Option<Conf> {
    if facts.hidden.contains(&Part::Chain) {
        return None;
    }
    let chain = &facts.chain;
    for skipped in &chain.skipped {
        findings.note(format!(
            "the runtime skips {}: {}",
            skipped.file.display(),
            skipped.why
        ));
    }
    if let Some(Skipped { file, why }) = &chain.blocked {
        let (file, remedy) = (file.display(), "correct the file, or remove it");
        match facts.hidden.contains(&Part::Runtimes) {
            true => findings.warning(
                format!(
                    "{file} cannot be used ({why}): containerd then gives no pod a network, CRI-O ignores the file, \
                     and this container cannot see which of them the node has"
                ),
                remedy,
            ),
            false => findings.error(
                format!("the runtime cannot use {file}, and gives no pod a network: {why}"),
                remedy,
            ),
        }
        return None;
    }
    let Some(picked) = &chain.picked else {
        let directory = chain.directory.display();
        match &chain.network {
            Some(network) => findings.error(
                format!("no file in {directory} defines the network {network}"),
                "create the network (podman network create; nerdctl network create; CRI-O: install the cluster's \
                 network, or correct cni_default_network), and run rdma-device-plugin install; or pass another network \
                 by --network, or another directory by --cni-conf-dir",
            ),
            None => findings.error(
                format!("no network is configured in {directory}: no pod gets a network"),
                "install the cluster's network, or pass another directory by --cni-conf-dir",
            ),
        }
        return None;
    };
    let file = picked.file.display();
    let (Some(place), Some(ours)) = (picked.place, &picked.ours) else {
        let plugins = picked.plugins.join(", ");
        findings.warning(
            match &chain.network {
                Some(network) => format!(
                    "{file} does not call rdma-cni (plugins: {plugins}): containers of network {network} have no rails"
                ),
                None => format!(
                    "{file}, which the runtime uses, does not call rdma-cni (plugins: {plugins}): pods get no rails"
                ),
            },
            match SpecVersion::parse(&picked.cni_version) {
                Some(_) => INSTALL.to_owned(),
                None => format!(
                    "set cniVersion of that file to one of {}, then run rdma-device-plugin install",
                    SUPPORTED.map(SpecVersion::as_str).join(", ")
                ),
            },
        );
        return None;
    };
    chained(picked, place, findings);
    match Conf::parse(ours.clone()) {
        Err(error) => {
            findings.error(
                format!("{file}: {error}"),
                "correct the field: until then no pod starts on this node",
            );
            None
        }
        Ok(conf) => {
            if let Err(error) = conf.smc.check_ueid() {
                findings.error(format!("{file}: {error}"), "correct the field");
            }
            if let Some(wrong) = fields::misspelt(ours) {
                findings.warning(
                    format!("{file}: {wrong}"),
                    "correct the field: the plugin ignores it",
                );
            }
            if let Err(error) = fields::ipam(ours) {
                findings.error(
                    format!("{file}: {error}"),
                    "correct ipam: until then no pod with a rail starts (104)",
                );
            }
            annotations(facts, &conf, findings);
            Some(conf)
        }
    }
}

fn chained(picked: &Picked, place: usize, findings: &mut Findings<'_>) {
    let last = picked.plugins.len().saturating_sub(1);
    let file = picked.file.display();
    let whose = match picked.delegated {
        true => format!(
            "by {}",
            picked.plugins.get(place).map_or("", String::as_str)
        ),
        false => format!("plugin {} of {}", place + 1, picked.plugins.len()),
    };
    let if_read = match picked.in_directory {
        true => ", if the runtime's libcni is 1.3 or later (containerd 2.1)",
        false => "",
    };
    findings.ok(format!(
        "{file} (network {}) calls rdma-cni, {whose}{if_read}",
        picked.network
    ));
    let first = picked.ours.clone().map(Conf::parse);
    let is_like_the_first = |again: &Map<String, Value>| match (&first, Conf::parse(again.clone()))
    {
        (Some(Ok(first)), Ok(again)) => has_same_devices(first, &again),
        _ => false,
    };
    let remedy = "keep only one of the entries";
    match picked.again.iter().all(is_like_the_first) {
        _ if picked.again.is_empty() => {}
        true => findings.warning(
            format!("{file} calls rdma-cni more than once: only the first call has an effect"),
            remedy,
        ),
        false => findings.error(
            format!(
                "{file} calls rdma-cni more than once, with different devices or interface names: if the first call \
                 attaches devices, a later ADD fails, and the pod does not start"
            ),
            remedy,
        ),
    }
    if place == 0 && !picked.delegated && last > 0 {
        findings.warning(
            format!(
                "rdma-cni is the first plugin of {file}: it attaches the rails before the pod has its primary \
                 interface, so that this interface gets no table and rules"
            ),
            "move the entry of rdma-cni to the end of the list",
        );
    }
    // ignore a wrong version, because ADD reports it
    let is_known = SpecVersion::parse(&picked.cni_version).is_some();
    if is_known && picked.cni_version != "1.1.0" {
        let before_0_4 = picked.cni_version.starts_with("0.3.");
        findings.note(format!(
            "cniVersion {}: the runtime does not call {}GC or STATUS; the next ADD restores devices of pods that ended \
             without DEL",
            picked.cni_version,
            if before_0_4 { "CHECK, " } else { "" },
        ));
    }
}

/// Returns true if ADD treats both configurations as one attachment (`verb/add/second_call.rs` of `rdma-cni`).
fn has_same_devices(one: &Conf, other: &Conf) -> bool {
    one.devices == other.devices && one.interface_name == other.interface_name
}

fn annotations(facts: &Facts, conf: &Conf, findings: &mut Findings<'_>) {
    let capabilities = conf.raw.get("capabilities").and_then(Value::as_object);
    let has = capabilities.is_some_and(|it| it.get(ANNOTATIONS) == Some(&Value::Bool(true)));
    if has || conf.smc.smcr == Smcr::Off {
        return;
    }
    let what = format!(
        "capabilities does not have {ANNOTATIONS}: the runtime passes no annotations of pods to rdma-cni, such as the \
         annotation for SMC-R"
    );
    let remedy = format!(
        "add \"capabilities\": {{ \"{ANNOTATIONS}\": true }} to the entry of rdma-cni (chain.plugin)"
    );
    match conf.raw.contains_key("smcr") {
        true => findings.warning(what, remedy),
        // ignore the missing capability: the kernel has no SMC, and the configuration does not request it
        false if facts.module("smc") == ModuleState::Missing => {}
        false => findings.advice(what, format!("{remedy}, if pods need SMC-R")),
    }
}

fn binaries(facts: &Facts, is_called: bool, findings: &mut Findings<'_>) {
    if facts.hidden.contains(&Part::Programs) {
        return;
    }
    let mut fit = vec![];
    for binary in &facts.binaries {
        let path = binary.path.display();
        let name = binary
            .path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy();
        let is_ours = matches!(&*name, "rdma-cni" | "rdma-ipam");
        let remedy = match is_ours {
            true => INSTALL.to_owned(),
            false => {
                format!("install the plugin {name}, or pass another directory by --cni-bin-dir")
            }
        };
        let severity = match is_called || !is_ours {
            true => Severity::Error,
            false => Severity::Warning,
        };
        match &binary.state {
            BinaryState::Absent => {
                findings.add(severity, format!("there is no {path}"), Some(remedy))
            }
            BinaryState::NotExecutable => findings.add(
                severity,
                format!("{path} is not an executable file"),
                Some(remedy),
            ),
            BinaryState::There => {}
            BinaryState::Version { version } if *version == facts.version => {
                fit.push(format!("{name} {version}"));
            }
            BinaryState::Version { version } => findings.warning(
                format!(
                    "{path} is version {version}, and this program {}",
                    facts.version
                ),
                "install one release on the node",
            ),
            BinaryState::Mute { why } if is_ours => findings.warning(
                format!("{path} does not report its version: {why}"),
                INSTALL,
            ),
            BinaryState::Mute { why } => {
                findings.warning(format!("cannot examine {path}: {why}"), remedy);
            }
        }
    }
    if let Some(fit) = named(fit) {
        findings.ok(fit);
    }
}
