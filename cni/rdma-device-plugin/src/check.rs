//! `--check-config`: what this node would advertise.

use crate::{
    cli::Arguments,
    conf::Conf,
    daemon::{StartError, known_before},
    hardware::Hardware,
    health,
    offer::{Unhealthy, offers, table},
};
use rdma_netns::Inventory;
use std::io::Write;

/// Prints the table, and what came to nothing below it.
///
/// # Errors
/// A wrong configuration; no sysfs; nobody reads the output.
pub fn check(arguments: &Arguments) -> Result<(), StartError> {
    let parsed = Conf::read(&arguments.config)?;
    let inventory = Hardware::new(&arguments.sysfs, &arguments.dev).look()?;
    let unhealthy = unhealthy(arguments, &inventory)?;
    let known = known_before(&arguments.state_dir);
    let (offers, remarks) = offers(&parsed.conf, &inventory, &unhealthy, &known);
    let remarks = [parsed.remarks, remarks].concat();
    let text = table(&offers, &inventory, &unhealthy, &remarks);
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|source| StartError::System {
            what: "print",
            source,
        })
}

/// What is not healthy now, as the daemon would see it at its start.
fn unhealthy(arguments: &Arguments, inventory: &Inventory) -> Result<Unhealthy, StartError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| StartError::System {
            what: "start",
            source,
        })?;
    let _entered = runtime.enter();
    Ok(health::Watch::still(&arguments.sysfs, &arguments.state_dir).unhealthy(inventory))
}
