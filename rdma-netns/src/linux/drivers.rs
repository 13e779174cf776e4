// SPDX-License-Identifier: Apache-2.0
//! Drivers that are taken off a device and bound to it, by sysfs (`unbind_store()` and `bind_store()`,
//! `drivers/base/bus.c`). Both writes return when the driver is done.

use super::devices;
use crate::DeviceAddress;
use std::{fs, io, path::Path};

/// Takes `driver` off `device` and binds it again.
///
/// # Errors
/// Another driver is bound to it, or none (`ENODEV`); or the driver fails, and none is bound then.
pub(super) fn rebind(sysfs: &Path, device: &DeviceAddress, driver: &str) -> io::Result<()> {
    write(sysfs, device, driver, "unbind")?;
    bind(sysfs, device, driver)
}

/// Binds `driver` to `device`, if it is not bound to it.
///
/// # Errors
/// The driver fails, or another one is bound to it.
pub(super) fn bind(sysfs: &Path, device: &DeviceAddress, driver: &str) -> io::Result<()> {
    let directory = sysfs.join("bus").join(device.bus()).join("devices");
    let bound = devices::link_name(&directory.join(&**device), "driver");
    match bound.as_deref() == Some(driver) {
        true => Ok(()),
        false => write(sysfs, device, driver, "bind"),
    }
}

fn write(sysfs: &Path, device: &DeviceAddress, driver: &str, file: &str) -> io::Result<()> {
    let drivers = sysfs.join("bus").join(device.bus()).join("drivers");
    if driver.is_empty() || driver.contains('/') || driver.starts_with('.') {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let file = drivers.join(driver).join(file);
    // one that is not there is not to be made
    let mut options = fs::OpenOptions::new();
    let mut file = options.write(true).open(file)?;
    io::Write::write_all(&mut file, device.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    const FUNCTION: &str = "0000:5e:00.2";

    fn address() -> DeviceAddress {
        FUNCTION.to_owned().try_into().expect("an address")
    }

    /// A function of `mlx5_core`, whose files keep what was written.
    fn sysfs() -> tempfile::TempDir {
        let sysfs = tempfile::tempdir().expect("a directory");
        let bus = sysfs.path().join("bus/pci");
        for directory in ["devices/0000:5e:00.2", "drivers/mlx5_core"] {
            fs::create_dir_all(bus.join(directory)).expect("a directory");
        }
        for file in ["unbind", "bind"] {
            fs::write(bus.join("drivers/mlx5_core").join(file), "").expect("a file");
        }
        symlink(
            "../../drivers/mlx5_core",
            bus.join("devices/0000:5e:00.2/driver"),
        )
        .expect("a link");
        sysfs
    }

    fn written(sysfs: &Path, file: &str) -> String {
        let file = sysfs.join("bus/pci/drivers/mlx5_core").join(file);
        fs::read_to_string(file).expect("a file")
    }

    #[test]
    fn a_driver_is_taken_off_and_bound_by_the_functions_address() {
        let sysfs = sysfs();
        let link = sysfs.path().join("bus/pci/devices/0000:5e:00.2/driver");
        // that is what writing it does
        fs::remove_file(&link).expect("a link");
        rebind(sysfs.path(), &address(), "mlx5_core").expect("bound anew");
        assert_eq!(written(sysfs.path(), "unbind"), FUNCTION);
        assert_eq!(written(sysfs.path(), "bind"), FUNCTION);
    }

    #[test]
    fn one_that_is_bound_is_not_bound_again() {
        let sysfs = sysfs();
        bind(sysfs.path(), &address(), "mlx5_core").expect("bound");
        assert_eq!(written(sysfs.path(), "bind"), "");
    }

    #[test]
    fn no_file_is_made_and_none_elsewhere_is_written() {
        let sysfs = sysfs();
        let error = bind(sysfs.path(), &address(), "mlx4_core").expect_err("no such driver");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        for driver in ["", "..", "../drivers/mlx5_core"] {
            let error = rebind(sysfs.path(), &address(), driver).expect_err("no driver");
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        }
        assert_eq!(written(sysfs.path(), "unbind"), "");
    }
}
