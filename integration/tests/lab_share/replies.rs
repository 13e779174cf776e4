// SPDX-License-Identifier: Apache-2.0
//! Interfaces by which replies leave that are sent from an ipvlan child. Kernels of containers' hosts often lack ipvlan.

use integration::replies::with_rails;

#[test]
fn an_ipvlan_rail_attracts_no_reply_of_another_interface() {
    for rails in [1, 2] {
        with_rails(rails, &[("share", "ipvlan")]);
    }
}
