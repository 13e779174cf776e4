// SPDX-License-Identifier: Apache-2.0
//! Errors that a PCI function reported by Advanced Error Reporting (`drivers/pci/pcie/aer.c`).

use crate::DeviceAddress;
use std::{fs, path::Path};

/// Numbers of errors since the kernel found the function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PciErrors {
    /// Errors that the hardware corrected.
    pub correctable: u64,
    /// Errors by which a transaction was lost.
    pub nonfatal: u64,
    /// Errors after which the link is unreliable.
    pub fatal: u64,
}

/// Returns the PCI errors of the function at `address`, below `sysfs`. Returns `None` if the function counts no errors
/// (virtual functions do not), or if the kernel does not handle PCI errors.
pub fn pci_errors(sysfs: &Path, address: &DeviceAddress) -> Option<PciErrors> {
    let directory = sysfs.join("bus/pci/devices").join(&**address);
    let total = |file: &str, name: &str| -> Option<u64> {
        let text = fs::read_to_string(directory.join(file)).ok()?;
        let mut lines = text.lines().filter_map(|line| line.split_once(' '));
        lines.find_map(|(key, value)| (key == name).then(|| value.trim().parse().ok())?)
    };
    Some(PciErrors {
        correctable: total("aer_dev_correctable", "TOTAL_ERR_COR")?,
        nonfatal: total("aer_dev_nonfatal", "TOTAL_ERR_NONFATAL")?,
        fatal: total("aer_dev_fatal", "TOTAL_ERR_FATAL")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_read_of_all_three_files() {
        let sysfs = tempfile::tempdir().expect("a directory");
        let directory = sysfs.path().join("bus/pci/devices/0000:3b:00.0");
        fs::create_dir_all(&directory).expect("made");
        let address = DeviceAddress::try_from("0000:3b:00.0".to_owned()).expect("an address");
        assert_eq!(pci_errors(sysfs.path(), &address), None);
        for (file, text) in [
            (
                "aer_dev_correctable",
                "RxErr 7\nBadTLP 2\nTOTAL_ERR_COR 9\n",
            ),
            ("aer_dev_nonfatal", "Undefined 0\nTOTAL_ERR_NONFATAL 1\n"),
        ] {
            fs::write(directory.join(file), text).expect("written");
        }
        assert_eq!(pci_errors(sysfs.path(), &address), None);
        fs::write(
            directory.join("aer_dev_fatal"),
            "TLP 3\nTOTAL_ERR_FATAL 3\n",
        )
        .expect("written");
        let errors = PciErrors {
            correctable: 9,
            nonfatal: 1,
            fatal: 3,
        };
        assert_eq!(pci_errors(sysfs.path(), &address), Some(errors));
    }
}
