// SPDX-License-Identifier: Apache-2.0
//! Fields of sriov-cni and ib-sriov-cni that set a function up. This version does not, and drops none
//! of them: a tenant without its VLAN would be on the untagged network.

use cni_protocol::ConfError;
use conf_reader::Field;

const FUNCTION: [&str; 12] = [
    "vlan",
    "vlanQoS",
    "vlanProto",
    "mac",
    "spoofchk",
    "trust",
    "min_tx_rate",
    "max_tx_rate",
    "link_state",
    "guid",
    "pkey",
    "infinibandGUID",
];

/// Capabilities.
const RUNTIME: [(&str, &str); 2] = [
    ("mac", "runtimeConfig.mac"),
    ("infinibandGUID", "runtimeConfig.infinibandGUID"),
];

/// What a pod asks for, by Multus (`cni-args`) or ib-kubernetes.
const ARGUMENTS: [(&str, &str); 2] = [("mac", "args.cni.mac"), ("guid", "args.cni.guid")];

const REMEDY: &str = "this version does not set it, and the pod would start without; set it on the \
                      host (ip link set PF vf N ...), or have sriov-cni do it, in front of this \
                      plugin, and leave it out here";

/// Refuses what would be dropped. `args` are those of the whole attachment: behind another plugin they
/// are that one's.
///
/// # Errors
/// A field is there that this version does not do.
pub(super) fn check(file: &Field<'_>, is_first: bool) -> Result<(), ConfError> {
    for field in FUNCTION {
        refuse(file, field, field)?;
    }
    let runtime = file.object("runtimeConfig")?;
    for (name, field) in RUNTIME {
        refuse(&runtime, name, field)?;
    }
    let args = file.object("args")?.at("cni");
    for (name, field) in ARGUMENTS.into_iter().filter(|_| is_first) {
        refuse(&args, name, field)?;
    }
    Ok(())
}

/// An empty text is none, as for Go's decoders.
fn refuse(object: &Field<'_>, name: &str, field: &'static str) -> Result<(), ConfError> {
    match object.at(name).value().filter(|value| *value != "") {
        None => Ok(()),
        Some(value) => Err(ConfError::Unsupported {
            field,
            value: value.to_string(),
            remedy: REMEDY,
        }),
    }
}
