// SPDX-License-Identifier: Apache-2.0
//! Unbinds and binds drivers through sysfs (`unbind_store()` and `bind_store()`, `drivers/base/bus.c`). Each write
//! returns when the driver has finished. A driver that waits for users of its devices may never finish. In some drivers
//! no signal ends this wait. For example, unbinding erdma waits in `unregister_netdevice()` while an RDMA device keeps
//! a reference to the netdev.

use super::devices;
use crate::DeviceAddress;
use nix::{
    libc,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        signal::{Signal, kill},
        wait::waitpid,
    },
    unistd::{ForkResult, fork},
};
use std::{
    ffi::OsString,
    fs,
    io::{self, Read},
    os::fd::{AsFd, AsRawFd},
    path::Path,
};

/// Time limit of each write (one unbind or one bind) in milliseconds. mlx5 takes up to 5 s for each.
const LIMIT: u16 = 20_000;

/// Unbinds `driver` from `device` and binds it again.
///
/// # Errors
/// - The device has sub-functions, which the unbinding would remove.
/// - Another driver is bound to the device, or no driver (`ENODEV`).
/// - The driver does not finish.
/// - The driver fails. Then no driver is bound.
pub(super) fn rebind(sysfs: &Path, device: &DeviceAddress, driver: &str) -> io::Result<()> {
    // `mlx5_core.sf.4`: the directory of a sub-function is below its function's directory (`mlx5_sf_dev_add()`)
    let is_sub_function = |name: &OsString| name.to_str().is_some_and(|it| it.contains(".sf."));
    let mut names = devices::names(&device.directory(sysfs))?.into_iter();
    if let Some(name) = names.find(is_sub_function) {
        let why = format!(
            "the unbinding would remove the device's sub-function {}",
            name.display()
        );
        return Err(io::Error::new(io::ErrorKind::ResourceBusy, why));
    }
    write(sysfs, device, driver, "unbind")?;
    bind(sysfs, device, driver)
}

/// Binds `driver` to `device`. Does nothing if `driver` is bound already.
///
/// # Errors
/// The driver fails or does not finish, or another driver is bound to the device.
pub(super) fn bind(sysfs: &Path, device: &DeviceAddress, driver: &str) -> io::Result<()> {
    let bound = devices::link_name(&device.directory(sysfs), "driver");
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
    // the call must not create a missing file
    let mut options = fs::OpenOptions::new();
    let file = options.write(true).open(file)?;
    within_limit(&file, device.as_bytes())
}

/// Writes `bytes` to `file` in a child process, and kills the child if the write has not ended after [`LIMIT`]. A child
/// whose write no signal interrupts continues to run. The child has the lock of `file` until the child ends, so only
/// one child at a time writes to a file.
fn within_limit(file: &fs::File, bytes: &[u8]) -> io::Result<()> {
    if file.try_lock().is_err() {
        let why = "an earlier bind or unbind of this driver has not ended";
        return Err(io::Error::new(io::ErrorKind::ResourceBusy, why));
    }
    let (mut answer, end) = io::pipe()?;
    // SAFETY: the child makes only system calls, and then exits
    let child = match unsafe { fork() }? {
        ForkResult::Parent { child } => child,
        // SAFETY: the descriptors are open, and `bytes` is in the child's own memory
        ForkResult::Child => unsafe {
            // close all other descriptors in the child: otherwise the child would keep locks, and the runtime's
            // standard output, open
            libc::dup2(file.as_raw_fd(), 0);
            libc::dup2(end.as_raw_fd(), 1);
            libc::syscall(libc::SYS_close_range, 2, libc::c_uint::MAX, 0);
            let written = libc::write(0, bytes.as_ptr().cast(), bytes.len());
            let errno = if written < 0 {
                *libc::__errno_location()
            } else {
                0
            };
            libc::write(1, (&raw const errno).cast(), size_of_val(&errno));
            libc::_exit(0)
        },
    };
    drop(end);
    let mut ends = [PollFd::new(answer.as_fd(), PollFlags::POLLIN)];
    if poll(&mut ends, PollTimeout::from(LIMIT))? == 0 {
        // SIGKILL ends a child whose wait can be interrupted
        let _ = kill(child, Signal::SIGKILL);
        let why = "the driver did not unbind or bind the function within 20 s; a program may still use the function's \
                   devices";
        return Err(io::Error::new(io::ErrorKind::TimedOut, why));
    }
    let mut errno = [0; 4];
    let answered = answer.read_exact(&mut errno);
    waitpid(child, None)?;
    answered?;
    match i32::from_ne_bytes(errno) {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    const FUNCTION: &str = "0000:5e:00.2";

    fn address() -> DeviceAddress {
        FUNCTION.to_owned().try_into().expect("an address")
    }

    /// Returns a sysfs with a function of `mlx5_core`. Its files are regular files that keep the written text.
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
        // in a real sysfs the write unbinds the driver and removes the link
        fs::remove_file(&link).expect("a link");
        rebind(sysfs.path(), &address(), "mlx5_core").expect("bound anew");
        assert_eq!(written(sysfs.path(), "unbind"), FUNCTION);
        assert_eq!(written(sysfs.path(), "bind"), FUNCTION);
    }

    /// A record may lack the sub-function: an administrator can make a sub-function while a pod has the function.
    #[test]
    fn a_function_with_a_sub_function_keeps_its_driver() {
        let sysfs = sysfs();
        let function = sysfs.path().join("bus/pci/devices").join(FUNCTION);
        fs::create_dir(function.join("mlx5_core.sf.4")).expect("a directory");
        let error = rebind(sysfs.path(), &address(), "mlx5_core").expect_err("refused");
        assert!(error.to_string().contains("mlx5_core.sf.4"), "{error}");
        assert_eq!(written(sysfs.path(), "unbind"), "");
    }

    /// A full pipe without a reader models a driver that does not finish.
    #[test]
    fn a_driver_that_does_not_end_is_left_and_held_off() {
        let sysfs = sysfs();
        let file = sysfs.path().join("bus/pci/drivers/mlx5_core/unbind");
        fs::remove_file(&file).expect("a file");
        nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
        let open = || fs::OpenOptions::new().read(true).write(true).open(&file);
        let held = open().expect("a pipe");
        io::Write::write_all(&mut &held, &[0; 65536]).expect("it is full");
        let begun = std::time::Instant::now();
        let rebound = || rebind(sysfs.path(), &address(), "mlx5_core").expect_err("not done");
        let error = rebound();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(begun.elapsed().as_secs() < 30, "{:?}", begun.elapsed());
        // a killed child releases the lock; the test then has the lock, like a child that no signal ends
        let lock = open().expect("a pipe");
        lock.lock().expect("the process is gone");
        let begun = std::time::Instant::now();
        assert_eq!(rebound().kind(), io::ErrorKind::ResourceBusy);
        assert!(begun.elapsed().as_secs() < 10, "{:?}", begun.elapsed());
    }

    #[test]
    fn the_kernels_refusal_is_returned() {
        let file = fs::OpenOptions::new().write(true).open("/dev/full");
        let error = within_limit(&file.expect("a file"), b"1").expect_err("no room");
        assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
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
