// SPDX-License-Identifier: Apache-2.0
//! Nodes on which the daemon is measured.

use integration::{Machine, machine::Nic};

const HCAS: usize = 8;
const PHYSICAL: usize = 2;
/// Virtual functions of each physical function.
const VIRTUAL: usize = 128;

/// A node, and the resource and number of ids that its daemon offers.
pub(super) struct Case {
    pub(super) title: &'static str,
    pub(super) machine: Machine,
    pub(super) resource: &'static str,
    pub(super) ids: usize,
}

/// Returns all cases.
pub(super) fn cases() -> Vec<Case> {
    let shared =
        r#"{"resources":[{"name":"rdma/hca","kind":"shared","count":1000,"allocate":"numa"}]}"#;
    let per_nic =
        r#"{"resources":[{"name":"rdma/hca","kind":"perNic","count":1000,"allocate":"numa"}]}"#;
    vec![
        hcas("8 HCAs, hca", r#"{"mode":"hca"}"#, 1000),
        hcas("8 HCAs, numa", shared, 1000),
        hcas("8 HCAs, perNic", per_nic, 8000),
        virtual_functions(),
    ]
}

fn hcas(title: &'static str, configuration: &str, ids: usize) -> Case {
    let machine = Machine::with(&[]);
    for number in 0..HCAS {
        Place::physical(number, number / 4).plug(&machine);
    }
    machine.configure(configuration);
    Case {
        title,
        machine,
        resource: "rdma/hca",
        ids,
    }
}

fn virtual_functions() -> Case {
    let machine = Machine::with(&[]);
    for number in 0..PHYSICAL {
        Place::physical(number, number).plug(&machine);
    }
    for of in 0..PHYSICAL {
        for index in 0..VIRTUAL {
            Place::virtual_one(of, index).plug(&machine);
        }
    }
    machine.configure(
        r#"{"resources":[{"name":"rdma/vf","kind":"exclusive","devices":[{"pf":["rail0","rail1"]}]}]}"#,
    );
    Case {
        title: "256 VFs",
        machine,
        resource: "rdma/vf",
        ids: PHYSICAL * VIRTUAL,
    }
}

struct Place {
    address: String,
    number: usize,
    numa_node: usize,
    /// For a virtual function: number of its physical function, and its own number on that function.
    of: Option<(usize, usize)>,
}

impl Place {
    fn physical(number: usize, numa_node: usize) -> Self {
        Self {
            address: format!("0000:{number:02x}:00.0"),
            number,
            numa_node,
            of: None,
        }
    }

    fn virtual_one(of: usize, index: usize) -> Self {
        // a slot has eight functions
        let place = index + 8;
        Self {
            address: format!("0000:{of:02x}:{:02x}.{}", place / 8, place % 8),
            number: PHYSICAL + of * VIRTUAL + index,
            numa_node: of,
            of: Some((of, index)),
        }
    }

    fn nic<T>(&self, then: impl FnOnce(&Nic<'_>) -> T) -> T {
        let number = self.number;
        then(&Nic {
            address: &self.address,
            rdma: &format!("mlx5_{number}"),
            netdev: &format!("rail{number}"),
            numa_node: i32::try_from(self.numa_node).expect("a small number"),
            number: u64::try_from(number).expect("a small number"),
        })
    }

    fn plug(&self, machine: &Machine) {
        self.nic(|nic| {
            machine.plug(nic);
            if let Some((of, index)) = self.of {
                Self::physical(of, of).nic(|physical| machine.is_virtual(nic, physical, index));
            }
        });
    }
}
