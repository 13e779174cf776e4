// SPDX-License-Identifier: Apache-2.0
//! Fields of ib-sriov-cni that set an InfiniBand function up. This version does not, and drops none of them: a tenant
//! without its P_Key would be in the default partition.

use cni_protocol::ConfError;
use conf_reader::Field;

const FUNCTION: [&str; 3] = ["guid", "pkey", "infinibandGUID"];

const REMEDY: &str = "this version does not set it, and the pod would start without; set it on the \
                      host (ip link set PF vf N ...), or have ib-sriov-cni do it, in front of this \
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
    refuse(&runtime, "infinibandGUID", "runtimeConfig.infinibandGUID")?;
    // what ib-kubernetes asks for
    let args = file.object("args")?.at("cni");
    match is_first {
        true => refuse(&args, "guid", "args.cni.guid"),
        false => Ok(()),
    }
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
