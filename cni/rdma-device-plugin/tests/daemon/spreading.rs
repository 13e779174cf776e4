// SPDX-License-Identifier: Apache-2.0
//! Tests of pods that start one after the other, and of the NICs that kubelet allocates to them.

use crate::{Machine, start};
use integration::{
    Daemon,
    kubelet::{Allocation, AllocationRequest, DeviceManager},
    machine::Nic,
};

const SHARED: &str = r#"{"resources":[
    {"name":"rdma/nic","kind":"shared","count":400,"allocate":"numa"}
]}"#;

const PER_NIC: &str = r#"{"resources":[
    {"name":"rdma/nic","kind":"perNic","count":50,"allocate":"numa"}
]}"#;

/// Configuration of ACK's exclusive mode: each NIC of `rdma/hca` is exclusive.
const EXCLUSIVE: &str = r#"{"resources":[
    {"name":"rdma/hca","kind":"exclusive","devices":[{"netdev":"rail*"}]}
]}"#;

/// A node with eight NICs. The last four are on NUMA node 1.
struct Rails {
    _daemon: Daemon,
    kubelet: DeviceManager,
    _machine: Machine,
}

impl Rails {
    fn new(configuration: &str, gpu: bool) -> Self {
        Self::with(configuration, gpu, ("rdma/nic", 400))
    }

    /// Starts the daemon, and waits until kubelet has `ids` ids of `resource`.
    fn with(configuration: &str, gpu: bool, (resource, ids): (&str, usize)) -> Self {
        let machine = Machine::with(&[]);
        for number in 0..8 {
            machine.plug(&Nic {
                address: &format!("0000:{:02x}:00.0", 0x10 + number),
                rdma: &format!("mlx5_{number}"),
                netdev: &format!("rail{number}"),
                numa_node: i32::from(number >= 4),
                number,
            });
        }
        if gpu {
            machine.accelerator("0000:9f:00.0", 1);
        }
        machine.configure(configuration);
        let kubelet = DeviceManager::started(&machine.path("kubelet"));
        let daemon = start(&machine);
        kubelet.wait_for(resource, "its ids", |it| it.healthy().len() == ids);
        Self {
            _daemon: daemon,
            kubelet,
            _machine: machine,
        }
    }

    /// Returns the NIC of a new pod with one id.
    #[track_caller]
    fn pod(&self, name: &str, numa_node: Option<i64>) -> usize {
        let request = AllocationRequest::new(name, "main", "rdma/nic", 1);
        let request = match numa_node {
            Some(node) => request.on_numa_node(node),
            None => request,
        };
        let allocation = self.kubelet.allocate(&request).expect("allocated");
        match nics(&allocation).as_slice() {
            [nic] => *nic,
            nics => panic!("{nics:?}"),
        }
    }
}

/// Returns the allocated NICs, as the numbers of their `uverbs` devices.
fn nics(allocation: &Allocation) -> Vec<usize> {
    let devices = allocation.given.devices.iter();
    let numbers = devices.filter_map(|it| it.host_path.strip_prefix("/dev/infiniband/uverbs"));
    numbers.map(|it| it.parse().expect("a number")).collect()
}

#[test]
fn pods_with_one_id_each_are_spread_over_all_nics() {
    for configuration in [SHARED, PER_NIC] {
        for gpu in [false, true] {
            let rails = Rails::new(configuration, gpu);
            let mut used = [0; 8];
            for pod in 0..8 {
                used[rails.pod(&format!("pod-{pod}"), None)] += 1;
            }
            assert_eq!(used, [1; 8], "{configuration}, GPU {gpu}");
            // one pod ends, and the next pod gets its NIC
            rails.kubelet.free("pod-3");
            rails.pod("pod-3", None);
            for pod in 8..24 {
                used[rails.pod(&format!("pod-{pod}"), None)] += 1;
            }
            assert_eq!(used, [3; 8], "{configuration}, GPU {gpu}");
        }
    }
}

#[test]
fn with_a_gpu_the_first_pods_are_near_to_it() {
    for configuration in [SHARED, PER_NIC] {
        let rails = Rails::new(configuration, true);
        let mut first: Vec<_> = (0..4)
            .map(|pod| rails.pod(&format!("pod-{pod}"), None))
            .collect();
        first.sort_unstable();
        assert_eq!(first, [4, 5, 6, 7], "{configuration}");
    }
}

#[test]
fn pods_of_one_numa_node_are_spread_over_its_nics() {
    for configuration in [SHARED, PER_NIC] {
        let rails = Rails::new(configuration, false);
        let mut used = [0; 8];
        for pod in 0..8 {
            used[rails.pod(&format!("near-{pod}"), Some(1))] += 1;
        }
        assert_eq!(used, [0, 0, 0, 0, 2, 2, 2, 2], "{configuration}");
        // pods that kubelet does not align get NICs of the other NUMA node until both NUMA nodes have equally many pods
        for pod in 0..8 {
            used[rails.pod(&format!("any-{pod}"), None)] += 1;
        }
        assert_eq!(used, [2; 8], "{configuration}");
    }
}

/// Kubelet aligns NICs with CPUs and GPUs by the NUMA nodes of their ids. If kubelet leaves a choice, the daemon
/// prefers NICs of one NUMA node.
#[test]
fn nics_that_are_a_pods_alone_are_allocated_by_numa_node() {
    let rails = || Rails::with(EXCLUSIVE, false, ("rdma/hca", 8));
    let all = rails();
    let known = all.kubelet.resource("rdma/hca").expect("known");
    let nodes = known.devices.iter().map(|id| {
        let topology = id.topology.as_ref().expect("a NUMA node");
        topology.nodes.iter().map(|it| it.id).collect::<Vec<_>>()
    });
    let expected = (0..8).map(|number| vec![i64::from(number >= 4)]);
    assert_eq!(nodes.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    let pod = |rails: &Rails, name: &str, count: usize, node: Option<i64>| {
        let request = AllocationRequest::new(name, "main", "rdma/hca", count);
        let request = node.map_or(request.clone(), |node| request.on_numa_node(node));
        let allocation = rails.kubelet.allocate(&request);
        allocation.map(|it| nics(&it))
    };
    // a NIC belongs to one pod, and a pod with eight ids gets all NICs
    assert_eq!(
        pod(&all, "all", 8, None).expect("all"),
        [0, 1, 2, 3, 4, 5, 6, 7]
    );
    pod(&all, "another", 1, None).expect_err("none is left");
    // kubelet aligns these pods with one NUMA node
    let aligned = rails();
    assert_eq!(pod(&aligned, "near", 2, Some(1)).expect("two"), [4, 5]);
    assert_eq!(pod(&aligned, "as-near", 2, Some(1)).expect("two"), [6, 7]);
    // kubelet does not align this pod: its four NICs are on the NUMA node that has four free NICs
    let packed = rails();
    assert_eq!(pod(&packed, "one", 1, Some(0)).expect("one").len(), 1);
    assert_eq!(pod(&packed, "four", 4, None).expect("four"), [4, 5, 6, 7]);
    assert_eq!(pod(&packed, "three", 3, None).expect("three").len(), 3);
}
