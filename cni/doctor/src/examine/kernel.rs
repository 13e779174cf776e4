// SPDX-License-Identifier: Apache-2.0
//! Examines the kernel's release and modules, the mode of the RDMA subsystem now and at the next boot, and udev's
//! names.

use super::{
    super::facts::{Facts, ModuleState, Part},
    Findings, Severity, named,
};
use network_conf::{Conf, Devices, Smcr};
use rdma_netns::RdmaMode;
use serde_json::Value;

pub(super) const AT_BOOT: &str = "set exclusive mode at boot: write `options ib_core netns_mode=0` into a \
                       .conf file below /etc/modprobe.d, or use the unit of docs/node.md";

pub(super) fn examine(facts: &Facts, conf: Option<&Conf>, findings: &mut Findings<'_>) {
    release(&facts.release, findings);
    modules(facts, findings);
    smc_modules(facts, conf, findings);
    mode(facts, conf, findings);
    naming(facts, conf, findings);
}

/// Oldest kernel on which this project's tests ran in the lab.
const OLDEST: (u32, u32) = (5, 10);

/// Checks the kernel's version in `release`, such as `5.10.0-46-amd64` or
/// `4.18.0-553.el8_10.x86_64`.
fn release(release: &str, findings: &mut Findings<'_>) {
    let mut numbers = release.split(['.', '-', '+']).map(str::parse);
    let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else {
        return;
    };
    let (oldest_major, oldest_minor) = OLDEST;
    if (major, minor) < OLDEST {
        findings.warning(
            format!(
                "kernel {release} is older than {oldest_major}.{oldest_minor}, the oldest kernel on which rdma-cni \
                 was tested"
            ),
            "use a later kernel; or test ADD, CHECK and DEL with one pod first: a distribution's kernel can have the \
             needed functions (docs/node.md)",
        );
    }
}

fn modules(facts: &Facts, findings: &mut Findings<'_>) {
    let needed = [
        ("ib_core", Severity::Error, "there is no RDMA"),
        (
            "ib_uverbs",
            Severity::Error,
            "programs cannot open an RDMA device",
        ),
        (
            "rdma_ucm",
            Severity::Warning,
            "programs that connect by rdma_cm fail",
        ),
    ];
    let mut loaded = vec![];
    let mut missing = vec![];
    for (module, severity, without) in needed {
        match facts.module(module) {
            ModuleState::Loaded => loaded.push(module),
            ModuleState::Missing => missing.push(module),
            ModuleState::Available | ModuleState::Unknown => findings.add(
                severity,
                format!("module {module} is not loaded: {without}"),
                Some(format!(
                    "modprobe {module}; to load it at every boot, add a line {module} to a .conf file below \
                     /etc/modules-load.d"
                )),
            ),
        }
    }
    if let Some(missing) = named(missing) {
        findings.error(
            format!("the running kernel has no module {missing}"),
            "install the modules of that kernel, or the NIC vendor's RDMA stack",
        );
    }
    if let Some(loaded) = named(loaded) {
        findings.ok(loaded);
    }
}

fn smc_modules(facts: &Facts, conf: Option<&Conf>, findings: &mut Findings<'_>) {
    let smcr = conf.map_or(Smcr::Off, |conf| conf.smc.smcr);
    let is_hidden = facts.hidden.contains(&Part::Modules);
    let can_be = |state| match state {
        ModuleState::Loaded | ModuleState::Available => true,
        ModuleState::Unknown => is_hidden,
        ModuleState::Missing => false,
    };
    match (smcr, facts.module("smc")) {
        (Smcr::Off, _) => {}
        (Smcr::On, state) if !can_be(state) => findings.error(
            "smcr is \"on\", and this node has no module smc: a pod with rails starts only if its annotation refuses \
             SMC-R",
            "install a kernel with CONFIG_SMC, or set smcr to \"annotation\"",
        ),
        (Smcr::Annotation, ModuleState::Missing) => {
            findings.note("this kernel has no SMC: pods that request SMC-R get TCP");
        }
        (_, ModuleState::Loaded) if !can_be(facts.module("smc_diag")) => findings.warning(
            "this node has no module smc_diag: rdma-cni cannot detect SMC connections over an RDMA device, and a move \
             of a device with such connections would hang",
            "install the module smc_diag (CONFIG_SMC_DIAG)",
        ),
        (_, ModuleState::Loaded) => findings.ok("smc"),
        _ => {}
    }
    let smc = facts.smc.as_ref().filter(|_| smcr != Smcr::Off);
    if smc.and_then(|smc| smc.erdma_compat) == Some(true) {
        findings.warning(
            "the erdma driver is in compat mode, which has no SMC-R and no rdma_cm",
            "load the erdma driver with compat_mode=N, or set erdma.preferDriver of rdma-device-plugin to default",
        );
    }
}

fn mode(facts: &Facts, conf: Option<&Conf>, findings: &mut Findings<'_>) {
    let Some(mode) = facts.observed.as_ref().and_then(|it| it.rdma_mode) else {
        return;
    };
    let last = facts.boot_modes.last();
    let at_boot = last.map_or(RdmaMode::Shared, |it| it.mode);
    let by = match last {
        Some(last) => format!("by {}", last.file.display()),
        None => "no file sets the mode".to_owned(),
    };
    if at_boot == mode || facts.hidden.contains(&Part::Boot) {
        findings.ok(format!("RDMA netns mode {mode}"));
    } else {
        let what = format!(
            "the RDMA subsystem is in {mode} mode, and will be in {at_boot} mode after the next boot ({by})"
        );
        match mode {
            RdmaMode::Exclusive => findings.warning(what, AT_BOOT),
            RdmaMode::Shared => findings.warning(
                what,
                "reboot if exclusive mode is intended, else remove this setting; if the mode is still shared after a \
                 boot, rebuild the initramfs, or use the unit of docs/node.md",
            ),
        }
    }
    // `pods` reports rails that do not work in this mode
    if conf.is_some_and(|conf| conf.drop_in) && mode == RdmaMode::Shared {
        findings.error(
            "type \"rdma\" moves RDMA devices, so ADD fails while the RDMA subsystem is in shared mode",
            AT_BOOT,
        );
    }
}

fn naming(facts: &Facts, conf: Option<&Conf>, findings: &mut Findings<'_>) {
    let by_name = match conf.and_then(|conf| conf.devices.as_ref()) {
        Some(Devices::Selectors(_)) => conf.is_some_and(|conf| {
            let selectors = conf.raw.get("devices").and_then(Value::as_array);
            let mut selectors = selectors.into_iter().flatten();
            selectors.any(|selector| selector.get("rdma").is_some())
        }),
        _ => false,
    };
    match &facts.naming {
        Some(naming) if naming.policy != "NAME_KERNEL" => findings.ok(format!(
            "udev names RDMA devices ({}, {})",
            naming.policy,
            naming.file.display()
        )),
        _ if by_name && !facts.hidden.contains(&Part::Naming) => findings.warning(
            "devices selects by the RDMA device's name, which the kernel assigns in the order of probing: after a \
             boot another device can have it",
            "select by pci or netdev, or have udev name RDMA devices by their PCI address (docs/node.md)",
        ),
        _ => {}
    }
}
