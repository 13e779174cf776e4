//! ADD and DEL that nothing disturbs.

use crate::node::{Node, name};
use rdma_netns::RdmaMode;

#[test]
fn two_rails_go_and_come_home() {
    for mode in [RdmaMode::Exclusive, RdmaMode::Shared] {
        let node = Node::new(mode);
        let pod = node.pod("a");
        let before = node.snapshot();
        let result = node.add(&pod, &node.two_rails()).must_succeed();
        let names: Vec<_> = result["interfaces"]
            .as_array()
            .unwrap()
            .iter()
            .map(|i| &i["name"])
            .collect();
        assert_eq!(names, ["rdma0", "rdma1"]);
        let netns = node.netns(&pod);
        node.kernel.with(|world| {
            assert_eq!(world.link(netns, "rdma0").unwrap().addresses.len(), 3);
            assert_eq!(world.link(netns, "rdma1").unwrap().name, name("rdma1"));
            if mode == RdmaMode::Exclusive {
                assert_eq!(world.place_of_rdma("mlx5_2"), Some(netns));
            }
        });
        node.run("CHECK", Some(&pod), &{
            let mut config = node.two_rails();
            config["prevResult"] = result;
            config
        })
        .must_succeed();
        node.del(&pod, &node.two_rails()).must_succeed();
        node.must_be(&before, "after DEL");
        node.del(&pod, &node.two_rails()).must_succeed();
        node.must_be(&before, "after another DEL");
    }
}
