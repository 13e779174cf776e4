// SPDX-License-Identifier: Apache-2.0
//! Expected content of each file with a DaemonSet.

use crate::{claims, fabric, monitoring, platforms, refused, report};

/// Expected content of a file.
pub(crate) struct Wanted {
    pub(crate) file: &'static str,
    pub(crate) resources: &'static [&'static str],
    /// Capabilities in addition to `NET_ADMIN` and `NET_BROADCAST`.
    pub(crate) capabilities: &'static [&'static str],
    /// Capabilities of all containers that write to the directories of the lists and plugins.
    pub(crate) chain_capabilities: &'static [&'static str],
    pub(crate) remarks: usize,
}

const fn wanted(
    file: &'static str,
    resources: &'static [&'static str],
    capabilities: &'static [&'static str],
) -> Wanted {
    Wanted {
        file,
        resources,
        capabilities,
        chain_capabilities: &[],
        remarks: 0,
    }
}

/// Manifest with other values of the settings that depend on the cluster.
pub(crate) const OTHER_NODES: &str = "integration/manifests/rendered/other-nodes.yaml";

/// Manifest from the page for users of ack-rdma-device-plugin.
pub(crate) const BONDS: &str = "integration/manifests/rendered/bonds-of-one-pod-each.yaml";

/// Manifest in which one pod gets all physical functions.
pub(crate) const WHOLE_NICS: &str = "conf/manifests/whole-nics.yaml";

const EXCLUSIVE: &[&str] = &["SYS_ADMIN"];
pub(crate) const LOADING: &[&str] = &["SYS_MODULE", "SYS_PTRACE", "DAC_READ_SEARCH"];

pub(crate) const ALL: [Wanted; 49] = [
    wanted("conf/manifests/erdma.yaml", &["aliyun/erdma"], &[]),
    wanted("conf/manifests/hca.yaml", &["rdma/hca"], &[]),
    wanted("conf/manifests/lingjun.yaml", &["rdma/hca"], &[]),
    wanted("conf/manifests/roce-ipv4.yaml", &["rdma/hca"], &[]),
    wanted("conf/manifests/vf.yaml", &["rdma/vf"], &[]),
    wanted(WHOLE_NICS, &["rdma/nic"], &[]),
    wanted(
        "integration/manifests/rendered/another-format-chained.yaml",
        &["rdma/hca_shared"],
        &[],
    ),
    Wanted {
        // a remark about periodicUpdateInterval
        remarks: 1,
        ..wanted(
            "integration/manifests/rendered/another-format.yaml",
            &["rdma/hca_shared"],
            EXCLUSIVE,
        )
    },
    wanted(
        "integration/manifests/rendered/another-name-of-nics.yaml",
        &["example.com/nic"],
        &[],
    ),
    wanted(
        "integration/manifests/rendered/another-name.yaml",
        &["example.com/hca_8"],
        &[],
    ),
    wanted(BONDS, &["rdma/hca"], &[]),
    wanted(claims::OF_ANOTHER_NAME, &["example.com/hca_8"], &[]),
    wanted(claims::OF_ERDMA, &["aliyun/erdma"], &[]),
    wanted(claims::OF_MOVED_VFS, &["rdma/vf"], &[]),
    wanted(claims::OF_VFS, &["rdma/vf"], &[]),
    wanted(claims::OF_WHOLE_NICS, &["rdma/nic"], &[]),
    wanted(claims::SHARED, &["rdma/hca"], &[]),
    Wanted {
        chain_capabilities: &["CHOWN", "DAC_OVERRIDE"],
        ..wanted(
            "integration/manifests/rendered/crio-and-other-places.yaml",
            &["rdma/hca"],
            &[],
        )
    },
    wanted(
        "integration/manifests/rendered/device-info.yaml",
        &["intel.com/sriov_rdma"],
        &[],
    ),
    wanted(
        "integration/manifests/rendered/erdma-all-loading.yaml",
        &["aliyun/erdma"],
        LOADING,
    ),
    wanted(fabric::FILE, &["rdma/hca"], &[]),
    wanted(
        "integration/manifests/rendered/limits.yaml",
        &["rdma/hca"],
        &[],
    ),
    wanted(monitoring::FILE, &["rdma/hca"], &[]),
    wanted(
        "integration/manifests/rendered/no-chain-said.yaml",
        &["rdma/hca"],
        &[],
    ),
    wanted(
        "integration/manifests/rendered/node-features.yaml",
        &["rdma/hca"],
        &[],
    ),
    Wanted {
        chain_capabilities: &["CHOWN", "DAC_OVERRIDE"],
        ..wanted(platforms::OPENSHIFT_REFUSED, &["aliyun/erdma"], LOADING)
    },
    wanted(OTHER_NODES, &["rdma/hca"], &[]),
    wanted(platforms::GKE, &["rdma/vf"], &[]),
    wanted(platforms::K0S, &["rdma/vf"], &[]),
    wanted(platforms::K3S, &["rdma/vf"], &[]),
    Wanted {
        chain_capabilities: &["CHOWN", "DAC_OVERRIDE"],
        ..wanted(platforms::KUBESPRAY, &["rdma/vf"], &[])
    },
    wanted(platforms::MICROK8S, &["rdma/vf"], &[]),
    wanted(platforms::OPENSHIFT, &["rdma/vf"], &[]),
    wanted(platforms::SELINUX, &["rdma/vf"], &[]),
    wanted(platforms::TALOS, &["rdma/vf"], &[]),
    wanted(
        "integration/manifests/rendered/pod-policy-of-two-resources.yaml",
        &["rdma/hca_a", "rdma/hca_b"],
        &[],
    ),
    wanted(
        "integration/manifests/rendered/pod-policy.yaml",
        &["rdma/hca"],
        &[],
    ),
    wanted(refused::BY_ANOTHER_ACCOUNT, &["rdma/hca"], &[]),
    wanted(refused::FILE, &["rdma/hca"], &[]),
    wanted(report::BY_ANOTHER_ACCOUNT, &["rdma/hca"], &[]),
    wanted(report::FILE, &["rdma/hca"], &[]),
    wanted(
        "integration/manifests/rendered/shared-by-name.yaml",
        &["rdma/hca"],
        &[],
    ),
    wanted(
        "integration/manifests/rendered/shared-with-environment.yaml",
        &["rdma/hca"],
        &[],
    ),
    wanted(
        "integration/manifests/rendered/switches-in-a-config.yaml",
        &["rdma/hca"],
        &[],
    ),
    wanted(
        "integration/manifests/rendered/switches-of-a-file.yaml",
        &["rdma/hca"],
        &[],
    ),
    wanted(
        "integration/manifests/rendered/switches.yaml",
        &["rdma/hca"],
        &[],
    ),
    wanted(
        "integration/manifests/rendered/the-chain-as-it-comes.yaml",
        &["rdma/hca"],
        &[],
    ),
    wanted(
        "integration/manifests/rendered/the-environment-as-it-was.yaml",
        &["rdma/hca"],
        &[],
    ),
    wanted(
        "integration/manifests/rendered/two-kinds-of-vfs.yaml",
        &["rdma/vf", "rdma/vf-storage"],
        EXCLUSIVE,
    ),
];
