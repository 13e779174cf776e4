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
    /// A thread in `netns`, and what its `first` work there found.
    pub(super) fn enter<T: Send + 'static>(
        netns: &Netns,
        first: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<(Self, T)> {
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
        let resident = Self { jobs, done };
        let (answer, answered) = mpsc::channel();
        let job = move || {
            let entered = setns(netns, CloneFlags::CLONE_NEWNET).map_err(io::Error::from);
            // who asked waits
            let _ = answer.send(entered.and_then(|()| first()));
        };
        resident.give(Box::new(job))?;
        thread::Builder::new()
            .name("netns".to_owned())
            .spawn(stay)?;
        let found = resident.wait(&answered)?;
        Ok((resident, found))
    }

    /// Has `work` done there, and waits for it.
    pub(super) fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let (answer, answered) = mpsc::channel();
        let job = move || {
            // who asked waits
            let _ = answer.send(work());
        };
        self.give(Box::new(job))?;
        self.wait(&answered)
    }

    fn give(&self, job: Job) -> io::Result<()> {
        self.jobs.send(job).map_err(|_| has_ended())
    }

    fn wait<T>(&self, answered: &Receiver<io::Result<T>>) -> io::Result<T> {
        self.done.recv().map_err(|_| has_ended())?;
        answered.recv().map_err(|_| has_ended())?
    }
}

fn has_ended() -> io::Error {
    io::Error::other("the thread in the namespace has ended")
}
