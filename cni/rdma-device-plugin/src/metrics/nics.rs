// SPDX-License-Identifier: Apache-2.0
//! Metrics of the errors that drivers and PCI links of NICs report.

use super::{Labels, collect::Snapshot, scrape::Scrape};
use rdma_netns::linux::devlink::Reporter;
use std::collections::BTreeMap;

pub(super) fn add(snapshot: &Snapshot, scrape: &mut Scrape) {
    let Some(reports) = &snapshot.reports else {
        return;
    };
    for function in &snapshot.node.inventory.functions {
        let address = &function.device.address;
        let reporters = reports.reporters.iter().flatten();
        let reporters = by_name(reporters.filter(|it| it.is_of(address)));
        for hca in &function.hcas {
            let with = |label: &'static str, value: &str| -> Labels {
                vec![("device", hca.name.clone()), (label, value.to_owned())]
            };
            for (name, (is_error, errors, recoveries)) in &reporters {
                let labels = with("reporter", name);
                let is_error = u64::from(*is_error);
                let help = "1 if devlink's health reporter is in the state error";
                scrape.gauge("rdma_nic_reporter_error", help, labels.clone(), is_error);
                let help = "Errors of devlink's health reporter";
                scrape.counter("rdma_nic_reporter_errors", help, &labels, *errors);
                let help = "Recoveries of devlink's health reporter";
                scrape.counter("rdma_nic_reporter_recoveries", help, &labels, *recoveries);
            }
            let Some(pci) = reports.pci.get(address) else {
                continue;
            };
            for (kind, count) in [
                ("correctable", pci.correctable),
                ("nonfatal", pci.nonfatal),
                ("fatal", pci.fatal),
            ] {
                let help = "PCI errors that Advanced Error Reporting counted";
                let labels = with("kind", kind);
                scrape.counter("rdma_nic_pci_errors", help, &labels, count);
            }
        }
    }
}

/// Returns state, errors and recoveries by name of the reporter. Adds up reporters with the same name on several ports.
fn by_name<'a>(
    reporters: impl Iterator<Item = &'a Reporter>,
) -> BTreeMap<&'a str, (bool, u64, u64)> {
    let mut all: BTreeMap<&str, (bool, u64, u64)> = BTreeMap::new();
    for it in reporters {
        let (is_error, errors, recoveries) = all.entry(&it.name).or_default();
        *is_error |= it.is_error;
        *errors += it.errors;
        *recoveries += it.recoveries;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reporters_of_ports_are_one() {
        let reporter = |port, is_error, errors| Reporter {
            bus: "pci".into(),
            device: "0000:3b:00.0".into(),
            port,
            name: "tx".into(),
            is_error,
            errors,
            recoveries: 1,
        };
        let all = [reporter(Some(0), true, 3), reporter(Some(1), false, 1)];
        assert_eq!(by_name(all.iter()), [("tx", (true, 4, 2))].into());
    }
}
