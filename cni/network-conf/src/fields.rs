// SPDX-License-Identifier: Apache-2.0
//! Names of the fields that a user can write. The daemon uses the names to report unknown fields as mistakes. A plugin
//! itself ignores unknown fields, as the CNI specification requires.

/// The fields of a network configuration.
pub const TOP: &[&str] = &[
    "args",
    "capabilities",
    "child",
    "deviceID",
    "devices",
    "disableCheck",
    "dns",
    "guid",
    "ibKubernetesEnabled",
    "infinibandGUID",
    "interfaceName",
    "ipam",
    "ipv6",
    "link_state",
    "log",
    "mac",
    "max_tx_rate",
    "min_tx_rate",
    "mode",
    "mtu",
    "pkey",
    "podAnnotations",
    "podArguments",
    "podResourcesSocket",
    "probe",
    "rebindDriver",
    "requireRdma",
    "resources",
    "resultIPs",
    "routing",
    "runtimeConfig",
    "smcUeid",
    "smcr",
    "spoofchk",
    "stateDir",
    "trust",
    "vlan",
    "vlanProto",
    "vlanQoS",
];

/// The fields of four objects in a network configuration.
pub const INNER: [(&str, &[&str]); 4] = [
    ("child", &["type", "mode"]),
    ("ipv6", &["dad", "acceptRA"]),
    ("log", &["level", "file"]),
    ("routing", &["metric", "tableBase"]),
];
