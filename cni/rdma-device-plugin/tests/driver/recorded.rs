// SPDX-License-Identifier: Apache-2.0
//! Loader that records its calls, and changes a made-up sysfs tree as the kernel would.

use ::erdma::driver::{LoadError, Loader};
use integration::Machine;
use std::io;

/// Step at which the loader fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fails {
    Nowhere,
    Check,
    Unload,
    /// Loading fails the first `times` times.
    Load {
        times: usize,
    },
    /// Loading reports success, but the module is not loaded.
    Silently,
    /// Loading succeeds, but the parameter has no effect.
    Parameter,
    /// Loading succeeds, but the module has no parameter `compat_mode`.
    Mainline,
}

pub(crate) struct Recorded {
    pub(crate) machine: Machine,
    pub(crate) calls: Vec<String>,
    fails: Fails,
    loads: usize,
}

impl Recorded {
    pub(crate) fn new(machine: Machine, fails: Fails) -> Self {
        Self {
            machine,
            calls: vec![],
            fails,
            loads: 0,
        }
    }
}

impl Loader for Recorded {
    fn check(&mut self, module: &str) -> Result<(), LoadError> {
        self.calls.push("check".to_owned());
        match self.fails {
            Fails::Check => Err(LoadError::NoModule {
                module: module.to_owned(),
                words: String::new(),
            }),
            _ => Ok(()),
        }
    }

    fn load(&mut self, module: &str, parameters: &[String]) -> Result<(), LoadError> {
        assert_eq!(module, "erdma");
        let parameters = parameters.join(" ");
        self.calls.push(format!("load {parameters}"));
        self.loads += 1;
        let compat = parameters == "compat_mode=Y";
        match self.fails {
            Fails::Load { times } if self.loads <= times => {
                return Err(LoadError::Load {
                    arguments: format!("{module} {parameters}"),
                    words: "no\n".to_owned(),
                });
            }
            Fails::Silently => {}
            Fails::Parameter => self.machine.erdma_module(Some(Some(!compat))),
            Fails::Mainline => self.machine.erdma_module(Some(None)),
            _ => self.machine.erdma_module(Some(Some(compat))),
        }
        Ok(())
    }

    fn unload(&mut self, module: &str) -> Result<(), LoadError> {
        self.calls.push("unload".to_owned());
        if self.fails == Fails::Unload {
            return Err(LoadError::Unload {
                module: module.to_owned(),
                source: io::Error::from_raw_os_error(nix::errno::Errno::EWOULDBLOCK as i32),
            });
        }
        self.machine.erdma_module(None);
        Ok(())
    }
}
