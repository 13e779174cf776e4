// SPDX-License-Identifier: Apache-2.0
//! A thread that stays in a namespace, for what is done there many times: to start a thread for each setting of each
//! rail took a tenth of ADD's processor time.

use crate::netns::Netns;
use nix::sched::{CloneFlags, setns};
use std::{
    io,
    os::fd::AsFd,
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
