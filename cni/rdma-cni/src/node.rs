// SPDX-License-Identifier: Apache-2.0
//! Inputs of a verb: kernel, environment, configuration, state directory.

use crate::{error::Error, kubelet};
use attachments::{Attachment, Key, Rail, Store};
use cni_protocol::{Environment, EnvironmentError, Target};
use network_conf::{Conf, Devices};
use plan::select::{self, Choice};
use rdma_netns::{Kernel, ObserveError, Observed, OpenPodError, Pod};
use std::time::Duration;

/// Inputs of a verb.
#[derive(Debug)]
pub struct Node<'a, K> {
    /// The kernel.
    pub kernel: &'a K,
    /// The environment.
    pub environment: &'a Environment,
    /// The configuration.
    pub conf: &'a Conf,
    /// The state directory.
    pub store: Store,
}

impl<'a, K: Kernel> Node<'a, K> {
    /// Returns a node with the state directory of `conf`.
    pub fn new(kernel: &'a K, environment: &'a Environment, conf: &'a Conf) -> Self {
        Self {
            kernel,
            environment,
            conf,
            store: Store::new(&conf.state_dir),
        }
    }

    /// Returns this node with a longer time limit for locks: at least `least` from now on.
    pub fn with_lock_deadline(&self, least: Duration) -> Self {
        let lock_deadline = self.store.lock_deadline().at_least(least);
        Self {
            store: Store::within(self.store.root(), lock_deadline),
            ..*self
        }
    }

    pub(crate) fn with_conf<'b>(&self, conf: &'b Conf) -> Node<'b, K>
    where
        'a: 'b,
    {
        Node {
            kernel: self.kernel,
            environment: self.environment,
            conf,
            store: self.store.clone(),
        }
    }

    /// Returns the parts of the node that SMC-R needs.
    pub(crate) fn smcr(&self) -> smcr::apply::Node<'_, K> {
        smcr::apply::Node {
            kernel: self.kernel,
            conf: self.conf,
            store: &self.store,
        }
    }

    /// Returns the attachment of the verb.
    pub fn target(&self) -> Result<(&'a Target, Key), Error> {
        let environment = self.environment;
        let target = environment
            .target
            .as_ref()
            .ok_or(EnvironmentError::Missing {
                command: Some(environment.command),
                variables: vec!["CNI_CONTAINERID", "CNI_IFNAME"],
            })?;
        let key = Key {
            network: self.conf.network.name.clone(),
            container: target.container.clone(),
            interface: target.interface.clone(),
        };
        Ok((target, key))
    }

    /// Returns the source from which the pod's devices are chosen. Returns `None` if kubelet allocated nothing
    /// to the pod. Queries kubelet, but observes nothing and takes no lock.
    pub fn choice(&self) -> Result<Option<Choice<'a>>, Error> {
        Ok(match self.conf.required_devices()? {
            Devices::Address(address) => Some(Choice::Address(address)),
            Devices::Selectors(selectors) => Some(Choice::Selectors(selectors)),
            Devices::Resources(resources) => {
                let meanings = kubelet::allocated(self.conf, self.environment, resources)?;
                (!meanings.is_empty()).then_some(Choice::Allocated(meanings))
            }
        })
    }

    /// Observes the present state, and marks hardware that manages NVLink ([`select::ask_for_rails`]).
    pub fn observe(
        &self,
        choice: &Choice<'_>,
        pod: Option<&K::Pod>,
    ) -> Result<Observed, ObserveError> {
        let mut observed = self.kernel.observe(pod)?;
        select::ask_for_rails(self.kernel, choice, &mut observed);
        Ok(observed)
    }

    /// Opens the pod's namespace, for verbs that need it.
    pub fn pod(&self) -> Result<K::Pod, Error> {
        let (target, _) = self.target()?;
        let path = target.netns.as_deref().ok_or(EnvironmentError::Missing {
            command: Some(self.environment.command),
            variables: vec!["CNI_NETNS"],
        })?;
        Ok(self.kernel.open_pod(path)?)
    }

    /// Opens the pod's namespace. Returns `None` if `path` does not exist, or leads to no namespace or to the host's.
    pub fn pod_if_there(&self, path: &std::path::Path) -> Result<Option<K::Pod>, Error> {
        match self.kernel.open_pod(path) {
            Ok(pod) => Ok(Some(pod)),
            Err(
                OpenPodError::Missing(_)
                | OpenPodError::NotNamespace(_)
                | OpenPodError::HostNamespace(_),
            ) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns a record of `rails` in `pod`, with the settings of the configuration.
    pub fn record(
        &self,
        key: &Key,
        pod: &K::Pod,
        observed: &Observed,
        rails: Vec<Rail>,
    ) -> Attachment {
        Attachment {
            pod: self.environment.pod(),
            args: self.environment.all.get("CNI_ARGS").cloned(),
            ..Attachment::new(
                key.clone(),
                (pod.path(), pod.id()),
                self.conf,
                observed,
                rails,
            )
        }
    }
}
