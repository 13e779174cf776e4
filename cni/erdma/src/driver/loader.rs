// SPDX-License-Identifier: Apache-2.0
//! Loads and unloads kernel modules.
//!
//! - Unloading uses `delete_module(2)`. It fails with EWOULDBLOCK while the module is in use, and never removes another
//!   module.
//! - Loading runs `modprobe` by its path, without a shell. `modprobe` knows a module's dependencies, its compression
//!   (kernels before 5.17 do not decompress modules), and the administrator's settings in `/etc/modprobe.d`.
//!
//! A container needs `CAP_SYS_MODULE`. For loading, it also needs `kmod` in the image, and the host's `/lib/modules`.

use nix::{
    errno::Errno,
    kmod::{DeleteModuleFlags, delete_module},
};
use std::{
    ffi::CString,
    io,
    path::Path,
    process::{Command, Stdio},
};

/// Paths at which distributions install `modprobe`.
const MODPROBE: [&str; 4] = [
    "/sbin/modprobe",
    "/usr/sbin/modprobe",
    "/usr/bin/modprobe",
    "/bin/modprobe",
];

/// Error of loading or unloading a module.
#[derive(Debug, thiserror::Error)]
#[error("{why}")]
pub struct LoadError {
    /// Sentence about the error.
    pub why: String,
    /// True if the kernel refused to unload the module because it is in use. The use may be temporary.
    pub is_in_use: bool,
}

impl From<String> for LoadError {
    fn from(why: String) -> Self {
        Self {
            why,
            is_in_use: false,
        }
    }
}

/// Loads and unloads kernel modules.
pub trait Loader {
    /// Checks that `module` can be loaded.
    ///
    /// # Errors
    /// The module cannot be loaded. The error contains the reason.
    fn check(&mut self, module: &str) -> Result<(), LoadError>;

    /// Loads `module` with a parameter such as `compat_mode=Y`.
    ///
    /// # Errors
    /// The module cannot be loaded.
    fn load(&mut self, module: &str, parameter: &str) -> Result<(), LoadError>;

    /// Unloads `module` if it is not in use.
    ///
    /// # Errors
    /// The module is still loaded.
    fn unload(&mut self, module: &str) -> Result<(), LoadError>;
}

/// Loader for the kernel of this node.
#[derive(Clone, Copy, Debug, Default)]
pub struct Modprobe;

impl Modprobe {
    fn program() -> Option<&'static Path> {
        let mut paths = MODPROBE.into_iter().map(Path::new);
        paths.find(|path| path.exists())
    }

    /// Runs `modprobe`. If it fails, the error is `failed` and the output of `modprobe`.
    fn run(arguments: &[&str], failed: String) -> Result<(), LoadError> {
        const MISSING: &str = "there is no modprobe here: the container needs an image with kmod, and the host's \
                               /lib/modules";
        let program = Self::program().ok_or_else(|| MISSING.to_owned())?;
        let done = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .env_clear()
            .output();
        let done = done.map_err(|error| format!("cannot run {program:?}: {error}"))?;
        let words = String::from_utf8_lossy(&done.stderr);
        match words.trim() {
            _ if done.status.success() => Ok(()),
            "" => Err(failed.into()),
            words => Err(format!("{failed}: {}", words.replace('\n', "; ")).into()),
        }
    }
}

impl Loader for Modprobe {
    fn check(&mut self, module: &str) -> Result<(), LoadError> {
        let failed = format!(
            "there is no module {module} for this kernel: install Alibaba Cloud's eRDMA driver (erdma_installer)"
        );
        Self::run(&["--dry-run", module], failed)
    }

    fn load(&mut self, module: &str, parameter: &str) -> Result<(), LoadError> {
        let failed = format!("modprobe {module} {parameter} failed");
        Self::run(&[module, parameter], failed)
    }

    fn unload(&mut self, module: &str) -> Result<(), LoadError> {
        let name = CString::new(module).map_err(|error| error.to_string())?;
        let errno = match delete_module(&name, DeleteModuleFlags::O_NONBLOCK) {
            // ENOENT: the module is no longer loaded
            Ok(()) | Err(Errno::ENOENT) => return Ok(()),
            Err(errno) => errno,
        };
        let why = match errno {
            Errno::EWOULDBLOCK => "it is in use".to_owned(),
            Errno::EPERM => "this program lacks CAP_SYS_MODULE".to_owned(),
            errno => io::Error::from(errno).to_string(),
        };
        Err(LoadError {
            why: format!("the kernel does not unload {module}: {why}"),
            is_in_use: errno == Errno::EWOULDBLOCK,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The test passes on machines with and without `modprobe`.
    #[test]
    fn a_module_that_there_is_not() {
        let module = "rdma_no_such_module";
        let why = Modprobe
            .check(module)
            .expect_err("there is none")
            .to_string();
        let words = match Modprobe::program() {
            Some(_) => "there is no module rdma_no_such_module for this kernel: install",
            None => "there is no modprobe here",
        };
        assert!(why.contains(words), "{why}");
        assert!(Modprobe.load(module, "x=Y").is_err());
        // if the module is not loaded, unloading succeeds, or fails because the kernel has no modules or the caller has
        // no permission
        if let Err(error) = Modprobe.unload(module) {
            let unsupported = io::Error::from(Errno::ENOSYS).to_string();
            let known = [unsupported.as_str(), "CAP_SYS_MODULE"];
            assert!(known.iter().any(|it| error.why.ends_with(it)), "{error}");
        }
    }
}
