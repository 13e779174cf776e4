// SPDX-License-Identifier: Apache-2.0

use super::{super::condition::tests::tenants, *};

#[test]
fn a_resources_own_fault_is_not_the_devices() {
    let mut node = tenants(["rdma/a", "rdma/b"]);
    let address = node.offers[0].devices[0].address.clone();
    let places = ["rdma/a", "rdma/b"].map(|it| (it.to_owned(), address.clone()));
    let found = troubles(&node);
    let lost = |troubles: &Troubles| {
        let losses = troubles.losses.iter().cloned();
        Vec::from_iter(losses.map(|it| (it.resource, it.address)))
    };
    let [own, _] = &places;
    assert_eq!(lost(&found), [(Some(own.0.clone()), own.1.clone())]);
    assert_eq!(Vec::from_iter(&found.usable), [&places[1]]);
    // a fault of the device itself: no resource can use it
    let carrier = "its netdev ens1 has no carrier".to_owned();
    for offer in &mut node.offers {
        offer.devices[0].fault = Some(carrier.clone());
    }
    node.unhealthy.insert(address.clone(), carrier);
    let found = troubles(&node);
    assert_eq!(lost(&found), [(None, address)]);
    assert!(found.usable.is_empty(), "{found:?}");
}
