//! The primary interface's address on the rail that is to carry its connections: set, with its
//! GID, before the choice is final, and taken away where the choice is another then.

use super::{ROUNDS, SmcError};
use crate::{
    apply::ApplyError,
    attachment::{Attachment, Lent, Smc, Standing},
    gids,
    plan::{drift, smc::lend},
    verb::Node,
};
use rdma_netns::{Kernel, ObserveError, Observed, Op};

/// Sets the address, and waits for its GID: as long as it is not there, nobody knows its place.
pub(super) fn set<K: Kernel>(
    node: &Node<'_, K>,
    pod: &K::Pod,
    attachment: &Attachment,
    lent: &Lent,
    observed: &Observed,
) -> Result<(), SmcError> {
    if let Some(op) = lend::missing(lent, observed) {
        log::debug!("{op}");
        node.kernel.execute(&op, Some(pod))?;
    }
    let mut rails = attachment.rails.iter();
    if let (Some(rail), Some(ip)) = (rails.find(|it| it.pod_name == lent.rail), lent.ip()) {
        gids::wait_for(node.kernel, pod, attachment, rail, ip.into())?;
    }
    Ok(())
}

/// Takes the address away, and tells what is left of it.
pub(super) fn take_back<K: Kernel>(
    node: &Node<'_, K>,
    pod: &K::Pod,
    lent: &Lent,
) -> Result<(), String> {
    let mut refused = String::new();
    for _ in 0..=ROUNDS {
        match surplus(node, pod, lent) {
            Err(error) => refused = error.to_string(),
            Ok(None) => return Ok(()),
            Ok(Some(op)) => {
                log::debug!("{op}");
                refused = match node.kernel.execute(&op, Some(pod)) {
                    Ok(()) => format!("done, and yet undone again by somebody else: {op}"),
                    Err(error) => error.to_string(),
                };
            }
        }
    }
    Err(refused)
}

fn surplus<K: Kernel>(
    node: &Node<'_, K>,
    pod: &K::Pod,
    lent: &Lent,
) -> Result<Option<Op>, ObserveError> {
    let observed = node.kernel.observe(Some(pod))?;
    Ok(lend::surplus(lent, &observed))
}

/// Whether all that was meant to be carried with the address is, now that the GIDs tell.
pub(super) fn is_of_use(chosen: &Smc, meant: &Smc) -> bool {
    let mut interfaces = meant.interfaces.iter();
    interfaces.all(|it| chosen.interfaces.contains(it))
}

/// What of it is not as the record says, in words.
pub(super) fn drift(attachment: &Attachment, observed: &Observed) -> Option<String> {
    let smc = attachment.smc.as_ref();
    let smc = smc.filter(|smc| smc.state == Standing::Active)?;
    let lent = smc.lent.as_ref()?;
    if let Some(op) = lend::missing(lent, observed) {
        return Some(drift::words(&op, observed));
    }
    let reason = lend::astray(attachment, lent, observed)?;
    Some(format!("SMC-R of {}: {reason}", lent.ip()?))
}

/// What ADD would do, as a command, or tell where only IPAM knows.
pub(super) fn preview(
    attachment: &Attachment,
    chosen: &Smc,
    observed: &Observed,
    name: &str,
) -> Option<String> {
    if let Some(lent) = &chosen.lent {
        let op = lend::missing(lent, observed)?;
        return Some(format!("{}\n", op.command(name)));
    }
    attachment.ipam.as_ref()?;
    Some(
        "# and, if no address of a rail has that of the primary interface in its prefix, the rail's \
         own once more, with that one as its peer/32\n"
            .to_owned(),
    )
}

/// To which peers such connections are right, and what becomes of those to others.
pub(super) fn tell(attachment: &Attachment, lent: &Lent, observed: &Observed) {
    let (Some(ip), own) = (lent.ip(), lent.address.ip) else {
        return;
    };
    let reach = lend::reach(attachment, lent, observed);
    log::warn!(
        "SMC-R: connections from {ip} go by the GID of {own} ({}), which is right to peers whose rail \
         addresses are in {reach}; RDMA to others would be addressed to another interface's router, \
         so that connections wait for 5 s, and their data can be corrupt: if there are such, have \
         IPAM give the rail a route to their rail addresses",
        lent.rail
    );
}

impl From<ApplyError> for SmcError {
    fn from(error: ApplyError) -> Self {
        Self::Gid(Box::new(error))
    }
}
