// SPDX-License-Identifier: Apache-2.0
//! What fuzzing has found to be worth a look is looked at in every run: `corpora/TARGET/`, and the repository's own
//! configurations, lists and messages.
//!
//! `UPDATE_CORPORA=1 cargo test -p fuzz --test corpora` writes the latter into the corpora, where fuzzing begins with
//! them; `scripts/fuzz --merge` leaves what says something new.

use fuzz::{TARGETS, Target, find};
use std::{
    env,
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn corpus(target: &Target) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpora")
        .join(target.name)
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap_or_else(|error| panic!("{directory:?}: {error}"));
    let mut files: Vec<PathBuf> = entries.map(|it| it.expect("an entry").path()).collect();
    files.retain(|it| it.is_file());
    files.sort();
    files
}

#[test]
fn every_input_that_was_found_is_read_as_it_has_to_be() {
    for target in TARGETS {
        let inputs = files(&corpus(&target));
        assert!(!inputs.is_empty(), "{} has no corpus", target.name);
        for input in inputs {
            let bytes = fs::read(&input).expect("an input");
            // what panics says of which
            eprintln!("{}: {}", target.name, input.display());
            (target.run)(&bytes);
        }
    }
}

#[test]
fn every_corpus_is_a_targets() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpora");
    for entry in fs::read_dir(directory).expect("the corpora") {
        let name = entry.expect("a corpus").file_name();
        let name = name.to_str().expect("a text");
        assert!(find(name).is_some(), "corpora/{name} is no target's");
    }
}

/// Texts of the repository, each for the targets that read its like.
fn own_texts() -> Vec<(&'static str, Vec<u8>)> {
    let mut texts = vec![];
    let mut add = |targets: &[&'static str], text: &[u8]| {
        texts.extend(targets.iter().map(|it| (*it, text.to_vec())));
    };
    let messages = [
        ("cni/network-conf/tests/messages", &["network-conf"][..]),
        ("ipam/tests/binary/messages", &["ipam-conf"]),
        (
            "cni/rdma-device-plugin/tests/nodes/messages",
            &["device-plugin-conf"],
        ),
    ];
    for (directory, targets) in messages {
        for file in files(&root().join(directory)) {
            let text = fs::read_to_string(file).expect("messages");
            let inputs = text
                .lines()
                .filter(|it| !it.starts_with([' ', '#']) && !it.is_empty());
            for input in inputs {
                let whole = match input.strip_prefix('{') {
                    Some(rest) if targets != ["device-plugin-conf"] => {
                        let comma = if rest.starts_with('}') { "" } else { "," };
                        format!("{{\"cniVersion\":\"1.1.0\",\"name\":\"net\"{comma}{rest}")
                    }
                    _ => input.to_owned(),
                };
                add(targets, whole.as_bytes());
            }
        }
    }
    for (directory, targets) in [
        ("conf", &["conflist"][..]),
        ("conf/device-plugin", &["device-plugin-conf"]),
        ("cni/conflist/tests/corpus", &["conflist"]),
    ] {
        for file in files(&root().join(directory)) {
            let text = fs::read(&file).expect("a file");
            add(targets, &text);
            let name = file.file_name().expect("a name").to_string_lossy();
            let listed = [name.as_bytes(), b"\n", &text].concat();
            add(&["conflist-directory"], &listed);
        }
    }
    texts
}

#[test]
fn the_repositorys_own_texts_are_read_as_they_have_to_be() {
    let texts = own_texts();
    assert!(texts.len() > 300, "{} texts", texts.len());
    for (number, (name, text)) in texts.into_iter().enumerate() {
        let target = find(name).unwrap_or_else(|| panic!("{name} is no target"));
        (target.run)(&text);
        if env::var_os("UPDATE_CORPORA").is_some() {
            fs::create_dir_all(corpus(&target)).expect("made");
            let file = corpus(&target).join(format!("own-{number:04}"));
            let mut file = File::create(file).expect("a file");
            file.write_all(&text).expect("written");
        }
    }
}
