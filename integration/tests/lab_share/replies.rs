// SPDX-License-Identifier: Apache-2.0
//! The interfaces by which replies of an ipvlan child leave. Kernels of container hosts often lack ipvlan.

use integration::replies::with_rails;

#[test]
fn an_ipvlan_rail_attracts_no_reply_of_another_interface() {
    for rails in [1, 2] {
        with_rails(rails, &[("share", "ipvlan")]);
    }
}
