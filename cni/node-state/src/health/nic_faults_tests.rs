// SPDX-License-Identifier: Apache-2.0

use super::*;

const PF: &str = "0000:3b:00.0";
const VF: &str = "0000:3b:00.2";

fn device(address: &str, physical_function: Option<&str>) -> Device {
    let value = serde_json::json!({"address": address, "physical_function": physical_function});
    serde_json::from_value(value).expect("a device")
}

fn reporter(name: &str, port: Option<u32>, is_error: bool) -> Reporter {
    Reporter {
        bus: "pci".into(),
        device: PF.into(),
        port,
        name: name.into(),
        is_error,
        errors: 1,
        recoveries: 0,
    }
}

fn reporters(reporters: impl Into<Vec<Reporter>>) -> Reports {
    Reports {
        reporters: Some(reporters.into()),
        ..Reports::default()
    }
}

fn pci(fatal: u64, nonfatal: u64, correctable: u64) -> Reports {
    let errors = PciErrors {
        correctable,
        nonfatal,
        fatal,
    };
    Reports {
        reporters: None,
        pci: [(device(PF, None).address, errors)].into(),
    }
}

#[track_caller]
fn is(faults: &NicFaults, expected: Option<&str>) {
    assert_eq!(faults.fault(&device(PF, None)).as_deref(), expected);
    let inherited = expected.map(|it| format!("its physical function: {it}"));
    assert_eq!(faults.fault(&device(VF, Some(PF))), inherited);
    assert_eq!(faults.fault(&device("0000:5e:00.0", None)), None);
}

/// Returns a `NicFaults` for which only the reporters with these names decide on health.
fn judged_by(names: &[&str]) -> NicFaults {
    let mut faults = NicFaults::default();
    faults.judge_by(names.iter().map(|it| (*it).to_owned()).collect());
    faults
}

#[test]
fn a_reporter_in_error_is_a_fault_until_it_recovers() {
    let mut faults = judged_by(&["fw", "tx"]);
    let now = Instant::now();
    let well = || reporters([reporter("fw", None, false), reporter("tx", Some(1), false)]);
    assert!(!faults.take(now, well()));
    is(&faults, None);
    let stuck = || reporters([reporter("fw", None, false), reporter("tx", Some(1), true)]);
    assert!(faults.take(now, stuck()));
    let reason = "devlink's reporter tx has an error without recovery \
                  (devlink health show pci/0000:3b:00.0/1 reporter tx)";
    is(&faults, Some(reason));
    assert!(!faults.take(now, stuck()), "the same");
    assert!(!faults.take(now, Reports::default()), "no answer");
    is(&faults, Some(reason));
    assert!(faults.take(now, well()));
    is(&faults, None);
    // the driver is gone, and with it its reporters
    faults.take(now, stuck());
    assert!(faults.take(now, reporters([])));
    is(&faults, None);
    // the failed reporter no longer decides on health
    faults.take(now, stuck());
    assert!(faults.judge_by(vec!["fw".into()]));
    is(&faults, None);
    assert!(!faults.judge_by(vec![]), "nothing ended");
}

#[test]
fn a_reporter_that_does_not_judge_is_no_fault() {
    let mut faults = judged_by(&["fw", "fw_fatal"]);
    let queues = || ["tx", "rx", "vnic"].map(|it| reporter(it, Some(1), true));
    assert!(!faults.take(Instant::now(), reporters(queues())));
    is(&faults, None);
    let all = reporters(
        queues()
            .into_iter()
            .chain([reporter("fw_fatal", None, true)])
            .collect::<Vec<_>>(),
    );
    assert!(faults.take(Instant::now(), all));
    assert!(
        faults
            .fault(&device(PF, None))
            .expect("a fault")
            .contains("reporter fw_fatal has an error")
    );
}

#[test]
fn fatal_pci_errors_are_a_fault_for_a_while() {
    let mut faults = NicFaults::default();
    let begin = Instant::now();
    assert!(!faults.take(begin, pci(1, 1, 1)), "from before");
    assert!(!faults.take(begin, pci(1, 1, 9)), "corrected");
    is(&faults, None);
    assert_eq!(faults.end(), None);

    assert!(!faults.take(begin, pci(1, 2, 9)), "non-fatal");
    is(&faults, None);

    assert!(faults.take(begin, pci(2, 2, 9)));
    let reason = "its PCI link had a fatal error (aer_dev_fatal)";
    is(&faults, Some(reason));
    let later = begin + Duration::from_secs(60);
    assert!(!faults.take(later, pci(3, 2, 9)), "another one prolongs it");
    assert_eq!(faults.end(), Some(later + PCI_HOLD));
    is(&faults, Some(reason));
    faults.expire(begin + PCI_HOLD);
    assert!(faults.end().is_some());
    faults.expire(later + PCI_HOLD);
    is(&faults, None);
    // another device in the slot has counters that start at zero
    assert!(!faults.take(later, pci(0, 0, 0)));
    assert!(faults.take(later, pci(1, 0, 0)));
    faults.keep(|address| **address != *PF);
    is(&faults, None);
}
