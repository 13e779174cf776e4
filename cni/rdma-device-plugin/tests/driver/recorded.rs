// SPDX-License-Identifier: Apache-2.0
//! Loader that records its calls, and changes a made-up sysfs tree as the kernel would.

use ::erdma::driver::{LoadError, Loader};
use integration::Machine;

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
            Fails::Check => {
                Err(format!("there is no module {module} for this kernel: install it").into())
            }
            _ => Ok(()),
        }
    }

    fn load(&mut self, module: &str, parameter: &str) -> Result<(), LoadError> {
        assert_eq!(module, "erdma");
        self.calls.push(format!("load {parameter}"));
        self.loads += 1;
        let compat = parameter == "compat_mode=Y";
        match self.fails {
            Fails::Load { times } if self.loads <= times => {
                return Err(format!("modprobe {module} {parameter} failed: no").into());
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
            return Err(LoadError {
                why: format!("the kernel does not unload {module}: it is in use"),
                is_in_use: true,
            });
        }
        self.machine.erdma_module(None);
        Ok(())
    }
}
