// SPDX-License-Identifier: Apache-2.0
//! In the lab, a driver whose devices cannot be moved:
//! `integration/lab/vm --tier fast --exclusive --stock-rxe`.

use integration::{Netns, Node, Snapshot};

#[test]
fn a_driver_that_cannot_move_is_reported_with_a_remedy_and_the_host_is_as_before() {
    assert!(
        std::path::Path::new("/sys/module/rdma_rxe").exists(),
        "rdma_rxe is not loaded: this test runs in the lab, by integration/lab/vm --stock-rxe"
    );
    let node = Node::on(Netns::own());
    node.add_rail("eth1");
    node.host.ip("address add 192.0.2.5/24 dev eth1");
    node.host.run("rdma link add stock0 type rxe netdev eth1");
    let pod = node.pod("pod");
    let before = Snapshot::of(&node.host);
    let mut configuration = node.configuration(&["eth1"]);
    configuration["requireRdma"] = true.into();
    let call = node.invoke("ADD", "a", pod.path());
    let text = call.input(&configuration).run().error(102);
    for words in ["stock0", "the driver supports no move"] {
        assert!(text.contains(words), "{words:?} is missing: {text}");
    }
    before.assert_restored(&node.host);
    node.del(&configuration, "a", &pod);
    before.assert_restored(&node.host);
    assert!(node.records().is_empty());
}
