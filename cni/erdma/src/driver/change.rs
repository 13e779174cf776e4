// SPDX-License-Identifier: Apache-2.0
//! Changes the driver's mode. If loading fails, loads the driver in its earlier mode again.

use super::{Change, LoadError, Loader, Problem, User, mode, plan::parameter};
use crate::conf::{DRIVER, DriverMode};
use rdma_netns::ErdmaModule;

/// Makes `change`. `observe` returns the module's present state.
///
/// # Errors
/// The change failed or had no effect.
pub fn apply(
    change: &Change,
    loader: &mut dyn Loader,
    observe: &dyn Fn() -> Option<ErdmaModule>,
) -> Result<(), Problem> {
    let wanted = change.to;
    // check first: if the module cannot be loaded again, it must not be unloaded
    if let Err(error) = loader.check(DRIVER) {
        let why = error.to_string();
        return Err(Problem::NotLoadable { wanted, why });
    }
    let failed = |why: String| Err(Problem::Failed { wanted, why });
    if let Some(before) = &change.from
        && let Err(error) = loader.unload(DRIVER)
    {
        return match error.is_in_use {
            true => Err(Problem::InUse {
                loaded: mode(before),
                wanted,
                users: vec![User::Unknown(error.to_string())],
            }),
            false => failed(error.to_string()),
        };
    }
    if let Err(error) = loader.load(DRIVER, &assignment(wanted)) {
        return failed(match &change.from {
            None => error.to_string(),
            Some(before) => restore(&error, mode(before), loader),
        });
    }
    let now = observe();
    match now.map(|module| module.compat) {
        Some(Some(compat)) if compat == (parameter(wanted) == 'Y') => Ok(()),
        // the driver supports only one mode
        Some(None) if wanted == DriverMode::Default => Ok(()),
        Some(None) => Err(Problem::OneMode { wanted }),
        Some(Some(_)) => failed("its parameter compat_mode did not change".to_owned()),
        None => failed("modprobe succeeded, but the module is not loaded".to_owned()),
    }
}

fn restore(error: &LoadError, before: DriverMode, loader: &mut dyn Loader) -> String {
    match loader.load(DRIVER, &assignment(before)) {
        Ok(()) => format!("{error}; the driver is loaded again in mode {before}"),
        Err(again) => format!(
            "{error}; the driver could not be loaded again in mode {before}: {again}; this node has no eRDMA until the \
             driver is loaded (modprobe erdma)"
        ),
    }
}

/// Returns the module's parameters for a mode. The driver of mainline Linux has no parameter `compat_mode`. The kernel
/// loads it nevertheless, and logs a line (`unknown_module_param_cb()`, `kernel/module/main.c`).
fn assignment(mode: DriverMode) -> String {
    format!("compat_mode={}", parameter(mode))
}
