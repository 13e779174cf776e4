//! In the lab, with a driver whose devices cannot be moved:
//! `integration/lab/vm --tier full --exclusive --stock-rxe`.

use integration::{Attachment, Conflist, Snapshot, lab::Lab};

#[test]
fn a_driver_that_cannot_move_is_told_with_a_remedy_and_the_host_is_as_before() {
    let lab = Lab::new(1);
    lab.give_addresses();
    let pod = lab.pod("pod");
    let before = Snapshot::of(&lab.host);
    let list = Conflist::new("1.1.0", vec![lab.configuration(0)]);
    let attachment = Attachment::new("a", pod.path(), "eth0");
    let text = lab
        .runtime()
        .add(&list, &attachment)
        .expect_err("it cannot work")
        .error(102);
    for words in [lab.rails(0)[0].rdma.as_str(), "driver", "cannot be moved"] {
        assert!(text.contains(words), "{words:?} is missing: {text}");
    }
    before.assert_restored(&lab.host);
    lab.runtime()
        .del(&list, &attachment)
        .unwrap_or_else(|outcome| panic!("{outcome}"));
    before.assert_restored(&lab.host);
}
