// SPDX-License-Identifier: Apache-2.0
//! SMC: pnet tables, user EIDs, and the SMC connections of processes.

use crate::{
    smc_state::{Settings, Smc},
    world::{HOST, Refusal, World, refuse},
};
use nix::errno::Errno;
use rdma_netns::{
    NetnsId,
    smc::{HeldConnections, PnetEntry, PnetId, SmcState, missing},
};

/// `SMC_MAX_UEID` (`include/uapi/linux/smc.h`)
const MAX_UEID: usize = 4;
/// `SMC_MAX_EID_LEN`
const MAX_EID_LEN: usize = 32;
/// `SMC_MAX_PORTS` (`net/smc/smc_ib.h`)
const MAX_PORTS: u8 = 2;
/// `SMC_LINKS_PER_LGR_MAX_PREFER` (`net/smc/smc_core.h`)
const MAX_LINKS: u8 = 2;

impl World {
    /// Returns SMC's settings of the host and of a pod.
    pub fn smc(&self, pod: Option<NetnsId>) -> Option<SmcState> {
        let smc = self.smc.as_ref()?;
        let settings = |id| self.namespaces.iter().find(|n| n.id == id).map(|n| &n.smc);
        let held = settings(pod.unwrap_or(HOST)).map(|it| it.held.clone());
        let pod = pod.and_then(settings);
        Some(SmcState {
            host: settings(HOST)?.pnet.clone(),
            pod: pod.map(|pod| pod.pnet.clone()).unwrap_or_default(),
            ueids: smc.ueids.clone(),
            tcp2smc: pod.map(|pod| pod.tcp2smc).filter(|_| smc.has_tcp2smc),
            max_links: pod
                .map(|pod| pod.max_links.unwrap_or(MAX_LINKS))
                .filter(|_| !smc.lacks_max_links),
            erdma_compat: smc.erdma_compat,
            devices: Some(self.used_by_smc(smc)),
            held: held.unwrap_or_default(),
        })
    }

    fn used_by_smc(&self, smc: &Smc) -> Vec<String> {
        let names = self.hcas.iter().map(|it| it.name.clone());
        names.filter(|it| !smc.ignores.contains(it)).collect()
    }

    /// Sets the number of open SMC connections that processes of `netns` have over `device`.
    pub fn hold_connections(&mut self, netns: NetnsId, device: &str, count: u32) {
        let held = &mut self.smc_of(netns).expect("a namespace").held;
        held.retain(|held| held.device != device);
        if count > 0 {
            let device = device.to_owned();
            held.push(HeldConnections { device, count });
            held.sort_by(|one, other| one.device.cmp(&other.device));
        }
    }

    /// Panics if processes have open SMC connections over `device`. On Linux, a program that moves the device waits in
    /// state D, without a limit, until they are closed (`smc_smcr_terminate_all()`, `net/smc/smc_core.c`).
    pub(crate) fn must_not_be_held(&self, device: &str) {
        let mut held = self.namespaces.iter().flat_map(|n| &n.smc.held);
        if let Some(HeldConnections { count, .. }) = held.find(|held| held.device == device) {
            panic!("the move of {device} hangs: processes hold {count} SMC connections over it");
        }
    }

    /// Adds an entry to the pnet table: `smc_pnet -a ID -I NETDEV -D DEVICE -P PORT`. The netdev or device need not
    /// exist. A present entry is no error. Each netdev name and each device name can have one entry, whatever the port.
    /// Only the initial namespace has entries of ports (`smc_pnet_enter()`, `net/smc/smc_pnet.c`).
    pub(crate) fn add_pnet(&mut self, netns: NetnsId, entry: &PnetEntry) -> Result<(), Refusal> {
        self.has_smc()?;
        if netns != HOST && entry.rdma.is_some() {
            return refuse(
                Errno::EEXIST,
                "the kernel keeps pnet ids of RDMA ports in its initial network namespace only",
            );
        }
        let port = entry.rdma.as_ref().map_or(1, |(_, port)| *port);
        if !(1..=MAX_PORTS).contains(&port) {
            return Err(Errno::EINVAL.into());
        }
        let table = &mut self.smc_of(netns)?.pnet;
        match missing(table, entry) {
            Ok(halves) => table.extend(halves),
            Err(_) => return refuse(Errno::EEXIST, "the object has another pnet id already"),
        }
        Ok(())
    }

    /// Removes the namespace's entries with this id: `smc_pnet -d ID` (`smc_pnet_remove_by_pnetid()`). A missing id is
    /// no error.
    pub(crate) fn remove_pnet(&mut self, netns: NetnsId, id: &PnetId) -> Result<(), Refusal> {
        self.smc_of(netns)?.pnet.retain(|entry| entry.name != *id);
        Ok(())
    }

    /// Adds a user EID: `smcr ueid add UEID`. A present EID is no error. A full table returns ERANGE
    /// (`smc_clc_ueid_add()`, `net/smc/smc_clc.c`).
    pub(crate) fn add_ueid(&mut self, ueid: &str) -> Result<(), Refusal> {
        self.has_smc()?;
        let other = |c: char| !matches!(c, 'A'..='Z' | '0'..='9' | '.' | '-');
        let invalid = ueid.len() > MAX_EID_LEN
            || ueid.is_empty()
            || ueid.contains(other)
            || ueid.starts_with(['.', '-']);
        if invalid {
            return refuse(
                Errno::EINVAL,
                "a user EID consists of A-Z, 0-9, '.' and '-', and begins with a letter or a digit",
            );
        }
        let ueids = &mut self.has_smc()?.ueids;
        if ueids.iter().any(|other| other == ueid) {
            return Ok(());
        }
        if ueids.len() >= MAX_UEID {
            return refuse(Errno::ERANGE, "the kernel's table of user EIDs is full");
        }
        ueids.push(ueid.to_owned());
        Ok(())
    }

    /// Removes a user EID: `smcr ueid del UEID`. A missing EID is no error.
    pub(crate) fn remove_ueid(&mut self, ueid: &str) -> Result<(), Refusal> {
        if let Some(smc) = &mut self.smc {
            smc.ueids.retain(|other| other != ueid);
        }
        Ok(())
    }

    /// Runs `sysctl -w net.smc.tcp2smc=0|1`. ENOENT if the kernel lacks this file.
    pub(crate) fn set_tcp2smc(&mut self, netns: NetnsId, on: bool) -> Result<(), Refusal> {
        if !self.smc.as_ref().is_some_and(|smc| smc.has_tcp2smc) {
            return refuse(Errno::ENOENT, "this kernel has no net.smc.tcp2smc");
        }
        self.smc_of(netns)?.tcp2smc = on;
        Ok(())
    }

    /// Runs `sysctl -w net.smc.smcr_max_links_per_lgr=LINKS`. ENOENT if the kernel lacks this file.
    pub(crate) fn set_max_links(&mut self, netns: NetnsId, links: u8) -> Result<(), Refusal> {
        if self.has_smc()?.lacks_max_links {
            return refuse(
                Errno::ENOENT,
                "this kernel has no net.smc.smcr_max_links_per_lgr",
            );
        }
        self.smc_of(netns)?.max_links = Some(links).filter(|links| *links != MAX_LINKS);
        Ok(())
    }

    fn has_smc(&mut self) -> Result<&mut Smc, Refusal> {
        match &mut self.smc {
            Some(smc) => Ok(smc),
            None => refuse(Errno::ENOENT, "this kernel has no SMC"),
        }
    }

    fn smc_of(&mut self, netns: NetnsId) -> Result<&mut Settings, Refusal> {
        let found = self.namespaces.iter_mut().find(|n| n.id == netns);
        Ok(&mut found.ok_or(Errno::EINVAL)?.smc)
    }
}
