// SPDX-License-Identifier: Apache-2.0
//! The cloud's metadata service: addresses come of what it says, so that nothing odd may.

use crate::assert_one_line;
use erdma::metadata::{Base, answers};

/// Answers, one a line: a word, an address, its network, the router, a hardware address; and a base address.
///
/// # Panics
/// A message has several lines; an address is not in its network, or none that a NIC can have.
pub fn metadata(input: &[u8]) {
    match answers::line("instance-id", input) {
        Ok(line) => assert!(line.bytes().all(|it| it.is_ascii_graphic())),
        Err(error) => assert_one_line(&error),
    }
    let text = String::from_utf8_lossy(input);
    let mut lines = text.split('\n');
    let mut next = || lines.next().unwrap_or_default();
    let (ip, cidr, router, mac) = (next(), next(), next(), next());
    match answers::address(("primary-ip-address", ip), ("vswitch-cidr-block", cidr)) {
        Err(error) => assert_one_line(&error),
        Ok(address) => {
            assert_eq!(address.ip().to_string(), ip);
            assert_eq!(answers::unusable(address, None), None);
            match answers::gateway(address, ("gateway", router)) {
                Err(error) => assert_one_line(&error),
                Ok(gateway) => assert!(address.contains(gateway) && gateway != address.ip()),
            }
        }
    }
    match answers::mac("mac", mac) {
        Err(error) => assert_one_line(&error),
        Ok(mac) => assert_eq!(mac.to_string().parse(), Ok(mac)),
    }
    for text in [&*text, ip] {
        if let Ok(base) = text.parse::<Base>() {
            assert_eq!(
                base.to_string()
                    .parse::<Base>()
                    .map(|it| it.to_string())
                    .ok(),
                Some(base.to_string())
            );
        }
    }
}
