// SPDX-License-Identifier: Apache-2.0
//! The CNI verbs.

pub mod add;
pub mod check;
pub mod del;
pub mod gc;
mod pools;
pub mod status;

use crate::{
    conf::Place,
    store::{Disk, Owner, Store},
};
use cni_protocol::{Environment, EnvironmentError, lock::LockDeadline};
use rdma_netns::Linux;
use serde_json::{Map, Value};

/// The input of a verb.
#[derive(Debug)]
pub struct Node<'a> {
    disk: &'a dyn Disk,
    linux: &'a Linux,
    environment: &'a Environment,
    place: &'a Place,
    raw: &'a Map<String, Value>,
    store: Store<'a>,
}

impl<'a> Node<'a> {
    /// Returns the input of a verb for the network of `place`. `raw` is the network's configuration. `lock_deadline`
    /// limits the wait for the lock of the leases.
    pub fn new(
        (disk, linux): (&'a dyn Disk, &'a Linux),
        environment: &'a Environment,
        place: &'a Place,
        raw: &'a Map<String, Value>,
        lock_deadline: LockDeadline,
    ) -> Self {
        Self {
            disk,
            linux,
            environment,
            place,
            raw,
            store: Store::new(disk, &place.data_dir, &place.network.name, lock_deadline),
        }
    }

    fn owner(&self) -> Result<Owner, EnvironmentError> {
        let target = self.environment.target.as_ref();
        let target = target.ok_or_else(|| EnvironmentError::Missing {
            command: Some(self.environment.command),
            variables: vec!["CNI_CONTAINERID", "CNI_IFNAME"],
        })?;
        Ok(Owner::new(&target.container, &target.interface))
    }
}
