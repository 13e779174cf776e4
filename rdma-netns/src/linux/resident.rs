// SPDX-License-Identifier: Apache-2.0
//! A thread that stays in a namespace, for what is done there many times: to start a thread for each setting of each
//! rail took a tenth of ADD's processor time.

use super::Space;
use crate::netns::{Netns, own_cookie};
use nix::sched::{CloneFlags, setns};
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::mpsc::{self, Receiver, Sender},
    thread,
};

/// The thread, which ends with this. It never comes back from the namespace.
#[derive(Debug)]
pub(super) struct Resident {
    jobs: Sender<Job>,
    done: Receiver<()>,
}

type Job = Box<dyn FnOnce() + Send>;

impl Resident {
    /// A thread in `netns`.
    pub(super) fn enter(netns: &Netns) -> io::Result<Self> {
        let netns = netns.as_fd().try_clone_to_owned()?;
        let (jobs, given) = mpsc::channel::<Job>();
        let (tell, done) = mpsc::channel();
        let stay = move || {
            for job in given {
                job();
                if tell.send(()).is_err() {
                    return;
                }
            }
        };
        thread::Builder::new()
            .name("netns".to_owned())
            .spawn(stay)?;
        let resident = Self { jobs, done };
        resident.run(move || Ok(setns(netns, CloneFlags::CLONE_NEWNET)?))?;
        Ok(resident)
    }

    /// Has `work` done there, and waits for it.
    pub(super) fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let has_ended = || io::Error::other("the thread in the namespace has ended");
        let (answer, answered) = mpsc::channel();
        let job = move || {
            // who asked waits
            let _ = answer.send(work());
        };
        self.jobs.send(Box::new(job)).map_err(|_| has_ended())?;
        self.done.recv().map_err(|_| has_ended())?;
        answered.recv().map_err(|_| has_ended())?
    }
}

/// A thread that looks into one namespace after the other, and is at home in between: no namespace lives
/// longer by it.
#[derive(Debug)]
pub(super) struct Visitor {
    thread: Resident,
    home: OwnedFd,
}

impl Visitor {
    /// One that is at home in `host`.
    pub(super) fn at_home_in(host: &Space) -> io::Result<Self> {
        Ok(Self {
            thread: Resident::enter(host.netns())?,
            home: host.netns().as_fd().try_clone_to_owned()?,
        })
    }

    /// The cookie of `netns`; 0 where the kernel has none.
    pub(super) fn cookie(&self, netns: &Netns) -> io::Result<u64> {
        let (there, back) = (netns.as_fd().try_clone_to_owned()?, self.home.try_clone()?);
        self.thread.run(move || {
            setns(there, CloneFlags::CLONE_NEWNET)?;
            let cookie = own_cookie();
            setns(back, CloneFlags::CLONE_NEWNET)?;
            cookie
        })
    }
}
