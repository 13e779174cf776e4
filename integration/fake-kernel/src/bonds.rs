// SPDX-License-Identifier: Apache-2.0
//! Bonds of two ports with one RDMA device, as mlx5 makes them.

use crate::{
    Nic,
    world::{HOST, World},
};
use rdma_netns::{Address, InterfaceName, LinkChange, NetnsSide, Op};
use std::net::IpAddr;

impl World {
    /// Plugs in the bond `bond<number>` (number below 100), which is up, with
    ///
    /// - its ports `eth<2 * number>` and `eth<2 * number + 1>`, the two functions of `0000:<number + 1>:00`,
    /// - the first function's RDMA device `mlx5_bond_<number>`, which reports the first port as its netdev,
    /// - the addresses `10.<number>.0.1/16` and `fd00:<number>::1/64`.
    pub fn plug_bond(&mut self, number: u8) {
        let bond = format!("bond{number}");
        let ports = [2 * number, 2 * number + 1].map(|number| format!("eth{number}"));
        let function = |function| format!("0000:{:02x}:00.{function}", number + 1);
        let rdma = format!("mlx5_bond_{number}");
        self.plug(Nic::physical(&function(0), &ports[0], &rdma));
        self.plug(Nic::physical(&function(1), &ports[1], "").without_rdma());
        self.plug(Nic::virtual_link(&bond, "bond"));
        for port in &ports {
            self.enslave(port, &bond);
        }
        let name = |text: &str| InterfaceName::try_from(text).expect("an interface name");
        for link in ports.iter().chain([&bond]) {
            self.execute_on_host(Op::Link {
                at: NetnsSide::Host,
                link: name(link),
                change: LinkChange::Up(true),
            });
        }
        let ipv4 = IpAddr::from([10, number, 0, 1]);
        let ipv6 = IpAddr::from([0xfd00, u16::from(number), 0, 0, 0, 0, 0, 1]);
        for (ip, prefix) in [(ipv4, 16), (ipv6, 64)] {
            self.execute_on_host(Op::Link {
                at: NetnsSide::Host,
                link: name(&bond),
                change: LinkChange::AddAddress(Address::new(ip, prefix)),
            });
        }
        (0..self.detection).for_each(|_| self.pass_time());
    }

    /// `ip link set dev PORT master BOND`: the port gets the hardware address of the first port, and no link-local
    /// address when it goes up (`bond_enslave()`, `drivers/net/bonding/bond_main.c`).
    pub fn enslave(&mut self, port: &str, bond: &str) {
        let found = |name| self.position(HOST, name).expect("a netdev of the host");
        let (port, bond) = (found(port), found(bond));
        let index = self.netdevs[bond].link.index;
        let first = !self
            .netdevs
            .iter()
            .any(|n| n.netns == HOST && n.link.master == Some(index));
        if first {
            self.netdevs[bond].link.mac = self.netdevs[port].link.mac.clone();
        }
        let mac = self.netdevs[bond].link.mac.clone();
        let link = &mut self.netdevs[port].link;
        (link.master, link.mac) = (Some(index), mac);
    }

    fn execute_on_host(&mut self, op: Op) {
        let done = self.execute(&op, None);
        done.unwrap_or_else(|refusal| panic!("{op}: {refusal}"));
    }
}
