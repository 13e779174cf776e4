// SPDX-License-Identifier: Apache-2.0
//! Compares the text that a test makes from each case with the text in the case's file.

use std::{
    env,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

/// Returns the files in `directory` of the package at `manifest` that `is_case` accepts; sorted.
///
/// # Panics
/// The directory cannot be read.
#[track_caller]
pub fn cases(manifest: &str, directory: &str, is_case: impl Fn(&Path) -> bool) -> Vec<PathBuf> {
    let entries = fs::read_dir(Path::new(manifest).join(directory)).expect("the cases");
    let paths = entries.map(|entry| entry.expect("a case").path());
    let mut cases: Vec<PathBuf> = paths.filter(|path| is_case(path)).collect();
    cases.sort();
    cases
}

/// Asserts that the text that `made` returns for each case is the text in the case's file `written`. A failure shows
/// the differing lines of all cases. If `UPDATE_PLANS` is set, this function writes every file again: read the files
/// before you commit them.
///
/// # Panics
/// A text differs.
#[track_caller]
pub fn assert_as_written(
    cases: &[PathBuf],
    written: impl Fn(&Path) -> PathBuf,
    made: impl Fn(&Path) -> String,
) {
    let update = env::var_os("UPDATE_PLANS").is_some();
    let mut differences = String::new();
    for case in cases {
        let (file, made) = (written(case), made(case));
        if update {
            fs::write(file, made).expect("the case's file can be written");
            continue;
        }
        let written = fs::read_to_string(&file).unwrap_or_default();
        if made != written {
            let name = case.file_stem().unwrap_or_default().to_string_lossy();
            let _ = write!(differences, "\n{name}:\n{}", difference(&written, &made));
        }
    }
    assert!(
        differences.is_empty(),
        "plans differ, - written, + made now:\n{differences}"
    );
}

/// Returns the lines that differ, without the common lines at the beginning and at the end.
fn difference(written: &str, made: &str) -> String {
    let (old, new): (Vec<&str>, Vec<&str>) = (written.lines().collect(), made.lines().collect());
    let same = |(a, b): &(&&str, &&str)| a == b;
    let head = old.iter().zip(&new).take_while(same).count();
    let rest = old.len().min(new.len()) - head;
    let tail = old
        .iter()
        .rev()
        .zip(new.iter().rev())
        .take(rest)
        .take_while(same);
    let tail = tail.count();
    let shown = |sign: char, lines: &[&str]| -> String {
        let changed = &lines[head..lines.len() - tail];
        changed
            .iter()
            .map(|line| format!("  {sign} {line}\n"))
            .collect()
    };
    shown('-', &old) + &shown('+', &new)
}

/// Asserts, for each input in the text files of `directory` of the package at `manifest`, that the lines below the
/// input are the lines that `answer_of` returns for it.
///
/// # Panics
/// A line differs, or the directory has no text file.
#[track_caller]
pub fn assert_lines_of_each(
    manifest: &str,
    directory: &str,
    answer_of: impl Fn(&str) -> Vec<String>,
) {
    let is_text = |path: &Path| path.extension().is_some_and(|it| it == "txt");
    let texts = cases(manifest, directory, is_text);
    assert!(!texts.is_empty(), "{directory} has no texts");
    assert_as_written(&texts, Path::to_owned, |file| {
        let text = fs::read_to_string(file).expect("the inputs");
        lines_of_each(&text, &answer_of)
    });
}

/// Returns `text` with new answers. A line that is neither empty, indented nor a comment (`#`) is an input. The
/// indented lines below an input are its answer, which `answer_of` returns.
fn lines_of_each(text: &str, answer_of: impl Fn(&str) -> Vec<String>) -> String {
    let mut written = String::new();
    for line in text.lines().filter(|line| !line.starts_with(' ')) {
        let _ = writeln!(written, "{line}");
        if !line.is_empty() && !line.starts_with('#') {
            for answer in answer_of(line) {
                let _ = writeln!(written, "  {}", answer.trim_end());
            }
        }
    }
    written
}

/// Returns the fields of a structure from its `Debug` text. Reduces each glob pattern to its text.
///
/// # Panics
/// `debug` is not the text of a structure.
#[track_caller]
pub fn debug_fields(debug: &str) -> Vec<String> {
    let mut parts = debug.split(", tokens: [");
    let mut debug = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (_, rest) = part.split_once("has_metachars: ").expect("a pattern");
        debug += rest.trim_start_matches(char::is_alphabetic);
    }
    let (_, inner) = debug.split_once(" { ").expect("a structure");
    let inner = inner.strip_suffix(" }").expect("its end");
    let mut depth = 0;
    let mut fields = vec![String::new()];
    for c in inner.chars() {
        depth += i32::from("{[(".contains(c)) - i32::from("}])".contains(c));
        match c {
            ',' if depth == 0 => fields.push(String::new()),
            c => fields.last_mut().expect("one").push(c),
        }
    }
    fields.iter().map(|it| it.trim().to_owned()).collect()
}
