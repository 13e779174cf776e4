// SPDX-License-Identifier: Apache-2.0
//! Environment variables by which NCCL and UCX find the RDMA devices and GIDs of a container, from kubelet's
//! allocation. The variables leave out shared NICs that are down, or that the pod did not select: ADD does not attach
//! them, although kubelet gave their character devices to the container.

use crate::{Attachment, Id, Rail};
use rdma_netns::Kernel;
use rdma_resources::{
    container::LibraryFile,
    grant::GrantedDevice,
    nccl::{Port, Undecided},
};

/// Port number of a device whose port is unknown.
const FIRST_PORT: u32 = 1;

type PodRail<'a> = (&'a Attachment, &'a Rail);

/// Kubelet's allocation to containers, for which a file with variables is written.
#[derive(Debug)]
pub struct Allocation<'a, K> {
    /// The kernel.
    pub kernel: &'a K,
    /// Attachments of the pod. A pod with `hostNetwork` has none.
    pub attachments: Vec<&'a Attachment>,
    /// Allocated ids, with their devices.
    pub ids: Vec<(Id, &'a [GrantedDevice])>,
}

/// The variables of a file.
#[derive(Debug)]
pub struct Variables {
    /// Names and values.
    pub all: Vec<(&'static str, String)>,
    /// Reason why NCCL gets no GID variables.
    pub undecided: Option<Undecided>,
}

impl<K: Kernel> Allocation<'_, K> {
    /// Returns the variables of `file`. `port` returns the number of a device's first port, and true for an InfiniBand
    /// port. `attaches` returns true for a resource whose devices ADD attaches.
    pub fn variables(
        &self,
        file: LibraryFile,
        port: impl Fn(&Id, &GrantedDevice) -> Option<(u32, bool)>,
        attaches: impl Fn(&str) -> bool,
    ) -> Variables {
        let devices = self.devices(port, attaches);
        let (mut all, mut undecided) = (vec![], None);
        match file {
            LibraryFile::Nccl => {
                all.push(("NCCL_IB_HCA", self.nccl_devices(&devices)));
                match self.gids() {
                    Ok(gids) => all.extend(gids),
                    Err(why) => undecided = Some(why),
                }
            }
            // leave out the variable: UCX would use all devices if the list were empty
            LibraryFile::Ucx if devices.is_empty() => {}
            LibraryFile::Ucx => {
                let ports = devices.iter().map(|(name, port)| format!("{name}:{port}"));
                all.push(("UCX_NET_DEVICES", ports.collect::<Vec<_>>().join(",")));
            }
        }
        Variables { all, undecided }
    }

    /// Returns the value of `NCCL_IB_HCA` that selects exactly these `devices`. If there are no devices, the value
    /// excludes all allocated devices.
    fn nccl_devices(&self, devices: &[(String, u32)]) -> String {
        if devices.is_empty() {
            let allocated = self.ids.iter().flat_map(|(_, devices)| *devices);
            let allocated: Vec<&str> = allocated.map(|it| it.rdma.as_str()).collect();
            return format!("^={}", allocated.join(","));
        }
        let names: Vec<&str> = devices.iter().map(|(name, _)| name.as_str()).collect();
        format!("={}", names.join(","))
    }

    fn rails(&self) -> impl Iterator<Item = PodRail<'_>> {
        let all = self.attachments.iter();
        all.flat_map(|it| it.rails.iter().map(move |rail| (*it, rail)))
    }

    /// Returns the rails of the allocated ids.
    fn own_rails(&self) -> impl Iterator<Item = PodRail<'_>> {
        let is_own = |it: &Id| self.ids.iter().any(|(id, _)| id == it);
        self.rails().filter(move |(_, rail)| ids(rail).any(is_own))
    }

    /// Returns the RDMA devices of the allocated ids, each with its port. First are the devices of rails, in the order
    /// of the rails. Then follow the devices that need no rail. For a pod without rails (`hostNetwork`), returns all
    /// allocated devices.
    fn devices(
        &self,
        first_port: impl Fn(&Id, &GrantedDevice) -> Option<(u32, bool)>,
        attaches: impl Fn(&str) -> bool,
    ) -> Vec<(String, u32)> {
        let mut devices: Vec<(String, u32)> = vec![];
        for found in self.own_rails().filter_map(|(_, rail)| port(rail)) {
            if !devices.contains(&found) {
                devices.push(found);
            }
        }
        let has_ipoib = self.own_rails().any(|(_, rail)| rail.has_ipoib_child());
        let is_attached = |resource: &str| {
            let mut of_pod = self.rails().flat_map(|(_, rail)| ids(rail));
            of_pod.any(|it| it.resource == resource)
                || self.rails().next().is_some() && attaches(resource)
        };
        for (id, allocated) in &self.ids {
            for device in *allocated {
                let is_its = |rail: &Rail| {
                    let mut rdma = rail.rdma.iter();
                    rdma.any(|it| it.parent.as_ref() == Some(&device.address))
                };
                let is_known = devices.iter().any(|(name, _)| *name == device.rdma);
                if is_known || self.own_rails().any(|(_, rail)| is_its(rail)) {
                    continue;
                }
                let (port, is_infiniband) = first_port(id, device).unwrap_or((FIRST_PORT, false));
                // if no rail of these ids has an IPoIB child, ADD made no rails for shared InfiniBand devices
                let by_verbs_alone = is_infiniband && !has_ipoib;
                if by_verbs_alone || !is_attached(&id.resource) {
                    devices.push((device.rdma.clone(), port));
                }
            }
        }
        devices
    }

    /// Returns NCCL's GID variables for the rails of the allocated ids.
    ///
    /// # Errors
    /// No single value is right for all rails.
    fn gids(&self) -> Result<Vec<(&'static str, String)>, Undecided> {
        let mut ports: Vec<((String, u32), Port)> = vec![];
        for (attachment, rail) in self.own_rails() {
            let Some(port) = port(rail) else {
                continue;
            };
            let own = rail.gids.iter().map(|it| (it.index, it.gid));
            // two rails can have the same port, for example as VLANs of one NIC
            if let Some((_, known)) = ports.iter_mut().find(|(other, _)| *other == port) {
                known.own.extend(own);
                continue;
            }
            let index = match rail.infiniband_port() {
                Some(_) => Some(crate::PORTS_OWN_GID),
                None => rail.gids.first().map(|it| it.index),
            };
            let known = Port {
                device: port.0.clone(),
                index,
                own: own.collect(),
                shared: (!attachment.moves_rdma()).then(|| {
                    let table = self.kernel.gids(None, &port.0, port.1);
                    table.map_err(|error| error.to_string())
                }),
            };
            ports.push((port, known));
        }
        let ports: Vec<Port> = ports.into_iter().map(|(_, port)| port).collect();
        rdma_resources::nccl::variables(&ports)
    }
}

/// Returns the ids by which kubelet allocated `rail`.
fn ids(rail: &Rail) -> impl Iterator<Item = &Id> {
    rail.allocated.iter().flat_map(|it| &it.ids)
}

/// Returns the RDMA device of `rail`, with the port that the rail uses.
fn port(rail: &Rail) -> Option<(String, u32)> {
    let rdma = rail.rdma.as_ref()?;
    let of_gid = rail.gids.first().map(|gid| gid.port);
    let port = of_gid.or_else(|| rail.infiniband_port());
    let port = port.or_else(|| Some(rdma.ports.first()?.number));
    Some((rdma.name.clone(), port.unwrap_or(FIRST_PORT)))
}
