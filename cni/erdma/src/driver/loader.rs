// SPDX-License-Identifier: Apache-2.0
//! Loading and unloading of modules.
//!
//! A module is unloaded by the system call: it answers EWOULDBLOCK while somebody has it, and never
//! takes another module with it. It is loaded by `modprobe`, run by its path and without a shell:
//! that knows what a module depends on, how it is compressed (kernels before 5.17 do not unpack it
//! themselves) and what the node's administrator wrote into `/etc/modprobe.d`. In a container both
//! need `CAP_SYS_MODULE`, and the second the image's `kmod` and the host's `/lib/modules`.

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

/// Where distributions have it.
const MODPROBE: [&str; 4] = [
    "/sbin/modprobe",
    "/usr/sbin/modprobe",
    "/usr/bin/modprobe",
    "/bin/modprobe",
];

/// A module could not be loaded or unloaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// There is nothing to load it with.
    #[error(
        "there is no modprobe here: the container image needs kmod, and the host's /lib/modules"
    )]
    NoModprobe,
    /// The module is not installed for this kernel.
    #[error(
        "there is no module {module} for this kernel: install Alibaba Cloud's eRDMA driver \
         (erdma_installer){}",
        said(words)
    )]
    NoModule {
        /// The module.
        module: String,
        /// What `modprobe` said.
        words: String,
    },
    /// `modprobe` failed.
    #[error("modprobe {arguments} failed{}", said(words))]
    Load {
        /// What it was told.
        arguments: String,
        /// What it said.
        words: String,
    },
    /// `modprobe` could not be run.
    #[error("cannot run {program:?}: {source}")]
    Run {
        /// The program.
        program: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The kernel keeps the module.
    #[error("the kernel does not unload {module}: {}", unloading(source))]
    Unload {
        /// The module.
        module: String,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl LoadError {
    /// Whether it was not unloaded as somebody has it, which can pass.
    pub fn is_in_use(&self) -> bool {
        let Self::Unload { source, .. } = self else {
            return false;
        };
        source.raw_os_error() == Some(Errno::EWOULDBLOCK as i32)
    }
}

fn said(words: &str) -> String {
    match words.trim() {
        "" => String::new(),
        words => format!(": {}", words.replace('\n', "; ")),
    }
}

fn unloading(source: &io::Error) -> String {
    match source.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EWOULDBLOCK) => "it is in use".to_owned(),
        Some(Errno::EPERM) => "it needs CAP_SYS_MODULE".to_owned(),
        _ => source.to_string(),
    }
}

/// Whatever loads and unloads modules.
pub trait Loader {
    /// Whether `module` could be loaded now.
    ///
    /// # Errors
    /// Why not.
    fn check(&mut self, module: &str) -> Result<(), LoadError>;

    /// Loads it, with parameters as `compat_mode=Y`.
    ///
    /// # Errors
    /// It is not loaded.
    fn load(&mut self, module: &str, parameters: &[String]) -> Result<(), LoadError>;

    /// Unloads it, unless somebody has it.
    ///
    /// # Errors
    /// It is still loaded.
    fn unload(&mut self, module: &str) -> Result<(), LoadError>;
}

/// The node's own kernel.
#[derive(Clone, Copy, Debug, Default)]
pub struct Modprobe;

impl Modprobe {
    fn program() -> Result<&'static Path, LoadError> {
        let mut paths = MODPROBE.into_iter().map(Path::new);
        paths
            .find(|path| path.exists())
            .ok_or(LoadError::NoModprobe)
    }

    /// What it said; an error if it did not succeed.
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
        let told = Self::run(&["--dry-run", module])?;
        told.map_err(|words| LoadError::NoModule {
            module: module.to_owned(),
            words,
        })
    }

    fn load(&mut self, module: &str, parameters: &[String]) -> Result<(), LoadError> {
        let mut arguments = vec![module];
        arguments.extend(parameters.iter().map(String::as_str));
        let told = Self::run(&arguments)?;
        told.map_err(|words| LoadError::Load {
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
            // somebody else has unloaded it
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(errno) => Err(failed(errno.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether there is a `modprobe` here or not.
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
        // what is gone is no error, unless the kernel has no modules, or this is not allowed
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
