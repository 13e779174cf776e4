// SPDX-License-Identifier: Apache-2.0
//! Gives each target the inputs of its corpus (`corpora/TARGET.tar.gz`), and the repository's own configurations, lists
//! and messages.
//!
//! `OWN_TEXTS=DIRECTORY cargo test -p fuzz --test corpora` writes the repository's own texts to `DIRECTORY/TARGET/`.
//! `scripts/fuzz --merge` runs this command, and adds texts that reach new code to the corpora.

use fuzz::{TARGETS, Target, find};
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn corpora() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpora")
}

/// Returns the inputs of the target's corpus, by name.
fn corpus(target: &Target) -> Vec<(String, Vec<u8>)> {
    let archive = corpora().join(format!("{}.tar.gz", target.name));
    let directory = tempfile::tempdir().expect("a directory");
    let status = Command::new("tar")
        .arg("-xzf")
        .arg(&archive)
        .arg("-C")
        .arg(directory.path())
        .status()
        .expect("tar starts");
    assert!(status.success(), "{archive:?} cannot be unpacked: {status}");
    let inputs = files(directory.path()).into_iter();
    let inputs = inputs.map(|path| {
        let name = path.file_name().expect("a name").to_string_lossy();
        (name.into_owned(), fs::read(&path).expect("an input"))
    });
    inputs.collect()
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
        let inputs = corpus(&target);
        assert!(!inputs.is_empty(), "{} has no corpus", target.name);
        for (name, input) in inputs {
            // after a panic, this line names the input
            eprintln!("{}: {name}", target.name);
            (target.run)(&input);
        }
    }
}

/// One character of each kind that controls a terminal or changes the direction of text. Messages escape these
/// characters. A fuzzer would not soon find them.
const STEERS: &str = "\u{7f}\u{85}\u{9b}2J\u{61c}\u{2028}\u{202e}\u{2066}";

/// Returns copies of `input`, at most `most`, each with [`STEERS`] inserted at one place: at the beginning of a string
/// in quotation marks, after an equals sign, or at the beginning of a line.
fn steering(input: &[u8], most: usize) -> Vec<Vec<u8>> {
    let mut is_inside = false;
    let mut places = vec![0];
    for (place, byte) in input.iter().enumerate() {
        is_inside ^= *byte == b'"';
        if matches!(byte, b'"' if is_inside) || matches!(byte, b'=' | b'\n' if !is_inside) {
            places.push(place + 1);
        }
    }
    let step = places.len().div_ceil(most).max(1);
    let put = |place: &usize| {
        let (before, after) = input.split_at(*place);
        [before, STEERS.as_bytes(), after].concat()
    };
    places.iter().step_by(step).map(put).collect()
}

#[test]
fn messages_contain_no_terminal_controls() {
    let mut run = 0;
    for target in TARGETS {
        for (name, input) in corpus(&target) {
            for steering in steering(&input, 4) {
                eprintln!("{}: {name} with {STEERS:?}", target.name);
                (target.run)(&steering);
                run += 1;
            }
        }
    }
    for (name, text) in own_texts() {
        let target = find(name).expect("a target");
        for steering in steering(&text, 6) {
            eprintln!("{name}: {:?}", String::from_utf8_lossy(&steering));
            (target.run)(&steering);
            run += 1;
        }
    }
    assert!(run > 7_000, "{run} inputs");
}

#[test]
fn every_corpus_is_a_targets() {
    for entry in fs::read_dir(corpora()).expect("the corpora") {
        let file = entry.expect("a corpus").file_name();
        let name = file.to_str().and_then(|it| it.strip_suffix(".tar.gz"));
        assert!(
            name.and_then(find).is_some(),
            "corpora/{file:?} belongs to no target"
        );
    }
}

/// Returns texts of the repository, each for the targets that read such texts.
fn own_texts() -> Vec<(&'static str, Vec<u8>)> {
    let mut texts = vec![];
    let mut add = |targets: &[&'static str], text: &[u8]| {
        texts.extend(targets.iter().map(|it| (*it, text.to_vec())));
    };
    let messages = [
        ("cni/network-conf/tests/messages", &["network-conf"][..]),
        ("ipam/tests/binary/messages", &["ipam-conf"]),
        ("cni/daemon-conf/tests/messages", &["device-plugin-conf"]),
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
        if let Some(directory) = env::var_os("OWN_TEXTS") {
            let directory = Path::new(&directory).join(name);
            fs::create_dir_all(&directory).expect("made");
            fs::write(directory.join(format!("own-{number:04}")), text).expect("written");
        }
    }
}
