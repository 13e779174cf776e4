// SPDX-License-Identifier: Apache-2.0
//! Fuzz targets. A target gives any bytes to a parser that reads data of other programs, and asserts properties of the
//! result. `scripts/fuzz` runs the targets under libFuzzer. Every test run gives them the inputs that libFuzzer found
//! (`tests/corpora.rs`).
//!
//! | module | reads |
//! |---|---|
//! | [`configurations`] | network configurations, pods' annotations, the daemon's configuration in its four formats |
//! | [`protocol`] | the environment with `CNI_ARGS`, `prevResult`, the answers of IPAM plugins |
//! | [`records`] | the records of attachments, installations, claims and NICs, libcni's cache |
//! | [`leases`] | leases, names of notes, resolv.conf, kubeconfig, labels of the node |
//! | [`conflists`] | CNI lists, single configurations, directories of them |
//! | [`resources`] | `resources.json`, grants, the CDI file |
//! | [`cluster`] | kubelet's pod-resources, the API server's answers, watches and objects, claims with their parameters, tokens |
//! | [`hardware`] | writes of a guest to the modelled eRDMA function |
//! | [`kubelet`] | kubelet's requests |
//! | [`lldp`](mod@lldp) | LLDP frames, and lldpd's output |
//! | [`metadata`] | the cloud's metadata service, and its HTTP |
//! | [`mlx5`] | writes of a guest to the modelled mlx5 card |
//! | [`netlink`] | netlink's datagrams, rtnetlink, RDMA netlink, SMC's families, packets and uevents |
//! | [`node`] | a pod's `rails.json`, vital product data, texts of the kernel, systemd, udev, modprobe |
//! | [`sysfs`] | trees of files in the place of `/sys` and `/proc` |
//! | [`verbs`] | `prevResult`, by verbs of `rdma-cni` and `rdma-ipam` that only read it |
//!
//! A target panics if an assertion fails. libFuzzer limits its time and memory.

pub mod cluster;
pub mod configurations;
pub mod conflists;
pub mod hardware;
pub mod kubelet;
pub mod leases;
pub mod lldp;
pub mod metadata;
pub mod mlx5;
pub mod netlink;
pub mod node;
pub mod protocol;
pub mod records;
pub mod resources;
pub mod sysfs;
pub mod verbs;

/// A parser, or several parsers of the same input, with its assertions.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The name for `scripts/fuzz`. The corpus is `corpora/NAME.tar.gz`.
    pub name: &'static str,
    /// Reads one input.
    pub run: fn(&[u8]),
}

/// All targets.
pub const TARGETS: [Target; 39] = [
    target("annotations", configurations::annotations),
    target("api-objects", cluster::objects),
    target("api-server", cluster::api_server),
    target("attachment-record", records::attachment),
    target("cdi", resources::cdi),
    target("chain-record", records::chain),
    target("checked-result", verbs::checked_result),
    target("claim", cluster::claim),
    target("claim-record", records::claim),
    target("cni-cache", records::cni_cache),
    target("conflist", conflists::list),
    target("conflist-directory", conflists::directory),
    target("device-plugin-conf", configurations::device_plugin),
    target("environment", protocol::environment),
    target("erdma-guest", hardware::guest),
    target("erdma-record", records::erdma),
    target("ipam-answer", protocol::ipam_answer),
    target("ipam-conf", configurations::ipam),
    target("kubelet-requests", kubelet::requests),
    target("leases", leases::leases),
    target("lldp", lldp::neighbours),
    target("metadata", metadata::metadata),
    target("metadata-http", metadata::http),
    target("mlx5-guest", mlx5::guest),
    target("netlink-datagram", netlink::datagram),
    target("network-conf", configurations::network),
    target("node-texts", leases::node_texts),
    target("others-texts", node::texts),
    target("packets", netlink::packets),
    target("pod-resources", cluster::pod_resources),
    target("prev-result", protocol::prev_result),
    target("rails-file", node::rails_file),
    target("rdma-netlink", netlink::rdma),
    target("resources", resources::published),
    target("rtnetlink", netlink::rtnetlink),
    target("smc-netlink", netlink::smc),
    target("sysfs", sysfs::tree),
    target("vital-product-data", node::vital_product_data),
    target("watch", cluster::watch),
];

const fn target(name: &'static str, run: fn(&[u8])) -> Target {
    Target { name, run }
}

/// Returns the target called `name`.
pub fn find(name: &str) -> Option<Target> {
    TARGETS.into_iter().find(|target| target.name == name)
}

/// Asserts that a message is one line without characters that control a terminal, although other programs wrote a part
/// of it.
///
/// # Panics
/// The message has several lines, or such a character.
#[track_caller]
pub(crate) fn assert_one_line(message: &dyn std::fmt::Display) {
    let message = message.to_string();
    let steers = message.chars().find(|it| conf_reader::steers(*it));
    assert!(steers.is_none(), "{steers:?} in {message:?}");
}

/// Asserts that `read` is the same after it is written and read again.
///
/// # Panics
/// The value differs.
#[track_caller]
pub(crate) fn assert_comes_back<T>(read: &T)
where
    T: serde::Serialize + serde::de::DeserializeOwned + PartialEq + std::fmt::Debug,
{
    let text = serde_json::to_vec_pretty(read).expect("it can be written");
    let again: T = serde_json::from_slice(&text).expect("it can be read again");
    assert_eq!(*read, again);
}
