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
    path::{Path, PathBuf},
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
pub enum LoadError {
    /// No `modprobe` is installed.
    #[error(
        "there is no modprobe here: the container needs an image with kmod, and the host's /lib/modules"
    )]
    NoModprobe,
    /// The module is not installed for this kernel.
    #[error(
        "there is no module {module} for this kernel: install Alibaba Cloud's eRDMA driver \
         (erdma_installer){}",
        suffix(words)
    )]
    NoModule {
        /// Name of the module.
        module: String,
        /// Output of `modprobe`.
        words: String,
    },
    /// `modprobe` failed.
    #[error("modprobe {arguments} failed{}", suffix(words))]
    Load {
        /// Arguments of `modprobe`.
        arguments: String,
        /// Output of `modprobe`.
        words: String,
    },
    /// `modprobe` could not be started.
    #[error("cannot run {program:?}: {source}")]
    Run {
        /// Path of the program.
        program: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The kernel refused to unload the module.
    #[error("the kernel does not unload {module}: {}", unloading(source))]
    Unload {
        /// Name of the module.
        module: String,
        /// Error of the kernel.
        source: io::Error,
    },
}

impl LoadError {
    /// Returns true if the kernel refused to unload the module because it is in use. The use may be temporary.
    pub fn is_in_use(&self) -> bool {
        let Self::Unload { source, .. } = self else {
            return false;
        };
        source.raw_os_error() == Some(Errno::EWOULDBLOCK as i32)
    }
}

fn suffix(words: &str) -> String {
    match words.trim() {
        "" => String::new(),
        words => format!(": {}", words.replace('\n', "; ")),
    }
}

fn unloading(source: &io::Error) -> String {
    match source.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EWOULDBLOCK) => "it is in use".to_owned(),
        Some(Errno::EPERM) => "this program lacks CAP_SYS_MODULE".to_owned(),
        _ => source.to_string(),
    }
}

/// Loads and unloads kernel modules.
pub trait Loader {
    /// Checks that `module` can be loaded.
    ///
    /// # Errors
    /// The module cannot be loaded. The error contains the reason.
    fn check(&mut self, module: &str) -> Result<(), LoadError>;

    /// Loads `module` with parameters such as `compat_mode=Y`.
    ///
    /// # Errors
    /// The module cannot be loaded.
    fn load(&mut self, module: &str, parameters: &[String]) -> Result<(), LoadError>;

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
    fn program() -> Result<&'static Path, LoadError> {
        let mut paths = MODPROBE.into_iter().map(Path::new);
        paths
            .find(|path| path.exists())
            .ok_or(LoadError::NoModprobe)
    }

    /// Runs `modprobe`. The inner error is the output of a `modprobe` that failed.
    fn run(arguments: &[&str]) -> Result<Result<(), String>, LoadError> {
        let program = Self::program()?;
        let done = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .env_clear()
            .output();
        let done = done.map_err(|source| LoadError::Run {
            program: program.to_owned(),
            source,
        })?;
        let words = String::from_utf8_lossy(&done.stderr).into_owned();
        Ok(done.status.success().then_some(()).ok_or(words))
    }
}

impl Loader for Modprobe {
    fn check(&mut self, module: &str) -> Result<(), LoadError> {
        let outcome = Self::run(&["--dry-run", module])?;
        outcome.map_err(|words| LoadError::NoModule {
            module: module.to_owned(),
            words,
        })
    }

    fn load(&mut self, module: &str, parameters: &[String]) -> Result<(), LoadError> {
        let mut arguments = vec![module];
        arguments.extend(parameters.iter().map(String::as_str));
        let outcome = Self::run(&arguments)?;
        outcome.map_err(|words| LoadError::Load {
            arguments: arguments.join(" "),
            words,
        })
    }

    fn unload(&mut self, module: &str) -> Result<(), LoadError> {
        let failed = |source: io::Error| LoadError::Unload {
            module: module.to_owned(),
            source,
        };
        let name = CString::new(module).map_err(|error| failed(error.into()))?;
        let done = delete_module(&name, DeleteModuleFlags::O_NONBLOCK);
        match done {
            // ENOENT: the module is no longer loaded
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(errno) => Err(failed(errno.into())),
        }
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
            Ok(_) => "there is no module rdma_no_such_module for this kernel: install",
            Err(_) => "there is no modprobe here",
        };
        assert!(why.contains(words), "{why}");
        assert!(Modprobe.load(module, &[]).is_err());
        // if the module is not loaded, unloading succeeds, or fails because the kernel has no modules or the caller has
        // no permission
        if let Err(error) = Modprobe.unload(module) {
            let LoadError::Unload { source, .. } = &error else {
                panic!("{error}");
            };
            let errno = source.raw_os_error().map(Errno::from_raw);
            let known = [Some(Errno::ENOSYS), Some(Errno::EPERM)];
            assert!(known.contains(&errno), "{error}");
        }
    }
}
