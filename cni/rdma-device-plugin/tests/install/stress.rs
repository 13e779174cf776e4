// SPDX-License-Identifier: Apache-2.0
//! Test of two hundred rewrites of a list, in all ways in which programs write files, while the
//! daemon keeps the entry in the list.

use crate::{
    FLANNEL, Node,
    keeping::{SOON, daemon},
};
use conflist::{List, Position};
use integration::{
    stopwatch,
    wait::{TIMEOUT, within},
};
use std::{
    fs::{self, File, OpenOptions},
    io::Write,
    path::Path,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::Duration,
};

const FILE: &str = "10-flannel.conflist";

/// Bit of the generation that is set while the other program is writing the file.
const UNFINISHED: u64 = 1;

/// Ways in which network programs write their file.
#[derive(Clone, Copy, Debug)]
enum Style {
    Rename,
    Truncate,
    InPlace,
    DeleteAndCreate,
}

const STYLES: [Style; 4] = [
    Style::Rename,
    Style::Truncate,
    Style::InPlace,
    Style::DeleteAndCreate,
];

impl Style {
    /// Writes the file slowly. Each style except `Rename` writes the file in two pieces.
    fn write(self, path: &Path, text: &str, pause: Duration) {
        let pieces = |mut file: File| {
            let (first, second) = text.as_bytes().split_at(text.len() / 2);
            file.write_all(first).expect("written");
            thread::sleep(pause);
            file.write_all(second).expect("written");
            file.set_len(text.len() as u64).expect("cut");
        };
        let open = |truncate: bool| {
            let mut options = OpenOptions::new();
            let options = options.write(true).create(true).truncate(truncate);
            options.open(path).expect("opened")
        };
        match self {
            Self::Rename => {
                let temporary = path.with_extension("tmp");
                fs::write(&temporary, text).expect("written");
                thread::sleep(pause);
                fs::rename(&temporary, path).expect("renamed");
            }
            Self::Truncate => pieces(open(true)),
            Self::InPlace => {
                let file = open(false);
                thread::sleep(pause);
                pieces(file);
            }
            Self::DeleteAndCreate => {
                fs::remove_file(path).expect("removed");
                thread::sleep(pause);
                pieces(open(true));
            }
        }
    }
}

/// Number of nodes, each with one network. `ROUNDS` is the number of rewrites of each network's list.
const NODES: u64 = 4;
const ROUNDS: u64 = 50;

#[test]
fn two_hundred_rewrites_end_with_ours_within_a_second_each_and_no_reader_sees_half_of_ours() {
    thread::scope(|scope| {
        for first in 0..NODES {
            scope.spawn(move || rewrites(first * ROUNDS));
        }
    });
}

fn rewrites(first: u64) {
    let node = Node::with_list(FLANNEL);
    node.install();
    let daemon = daemon(&node);
    let path = node.path("etc/cni/net.d").join(FILE);
    let (over, reads) = (AtomicBool::new(false), AtomicU64::new(0));
    // odd while the other program is writing
    let generation = AtomicU64::new(0);
    let mut missing = vec![];
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut wrong = vec![];
            while !over.load(Ordering::Relaxed) {
                let before = generation.load(Ordering::SeqCst);
                let text = fs::read_to_string(&path);
                let after = generation.load(Ordering::SeqCst);
                let whole = text.as_deref().is_ok_and(|text| List::parse(text).is_ok());
                let alone = before == after && before & UNFINISHED == 0;
                let twice = text
                    .as_deref()
                    .unwrap_or_default()
                    .matches("\"rdma-cni\"")
                    .count()
                    > 1;
                if (alone && !whole) || twice {
                    wrong.push(text);
                }
                reads.fetch_add(1, Ordering::Relaxed);
                thread::sleep(Duration::from_micros(300));
            }
            wrong
        });
        for round in first..first + ROUNDS {
            let style = STYLES[round as usize % 4];
            let text = FLANNEL.replace("cbr0", &format!("cbr{round}"));
            generation.fetch_add(1, Ordering::SeqCst);
            style.write(&path, &text, Duration::from_millis(round * 7 % 23));
            generation.fetch_add(1, Ordering::SeqCst);
            let is_in = stopwatch::within(SOON, || {
                let text = fs::read_to_string(&path).unwrap_or_default();
                List::parse(&text).is_ok_and(|list| {
                    let ours = list.ours();
                    list.name() == format!("cbr{round}")
                        && ours.is_some_and(|ours| ours.place == Position::Plugin(2))
                })
            });
            if !is_in {
                missing.push((round, style, fs::read_to_string(&path)));
            }
            // sometimes the next rewrite begins while the daemon is still working
            thread::sleep(Duration::from_millis(round * 11 % 37));
        }
        over.store(true, Ordering::Relaxed);
        let wrong = reader.join().expect("the reader");
        assert!(
            wrong.is_empty(),
            "{} times: {:?}",
            wrong.len(),
            wrong.first()
        );
    });
    assert!(
        missing.is_empty(),
        "{} times: {:?}",
        missing.len(),
        missing.first()
    );
    assert!(reads.into_inner() > 500);
    drop(daemon);
    let last = FLANNEL.replace("cbr0", &format!("cbr{}", first + ROUNDS - 1));
    node.uninstall();
    assert_eq!(node.read("etc/cni/net.d/10-flannel.conflist"), last);
    let left = fs::read_dir(node.path("etc/cni/net.d"))
        .expect("the directory")
        .count();
    assert_eq!(left, 1, "nothing else is left there");
}

#[test]
fn a_write_to_a_file_that_was_replaced_meanwhile_counts() {
    let node = Node::with_list(FLANNEL);
    node.install();
    let _daemon = daemon(&node);
    let path = node.path("etc/cni/net.d").join(FILE);
    for round in 0..5 {
        let (first, second) = (format!("first{round}"), format!("second{round}"));
        let text = |name: &str| FLANNEL.replace("cbr0", name);
        let has_ours = |name: &str| {
            within(TIMEOUT, || {
                let text = fs::read_to_string(&path).unwrap_or_default();
                List::parse(&text).is_ok_and(|list| list.name() == name && list.ours().is_some())
            })
        };
        Style::Rename.write(&path, &text(&first), Duration::ZERO);
        let mut late = OpenOptions::new().write(true).open(&path).expect("opened");
        assert!(has_ours(&first), "{round}: the first");
        late.set_len(0).expect("cut");
        late.write_all(text(&second).as_bytes()).expect("written");
        drop(late);
        assert!(has_ours(&second), "{round}: the second is lost");
    }
}
