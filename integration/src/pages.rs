// SPDX-License-Identifier: Apache-2.0
//! Commands for operators in the documentation's pages.

use std::{fs, path::Path};

/// A block of code, with the heading above it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Text of the heading.
    pub heading: String,
    /// The block's lines without comments. A line that ends in `\` is joined with the next line.
    pub lines: Vec<String>,
}

/// Returns the blocks of a page of the repository, in their order.
#[track_caller]
pub fn blocks(page: &str) -> Vec<Block> {
    let text = read(page).replace("\\\n", " ");
    let mut heading = "";
    let mut blocks = vec![];
    // every second piece is a block of code
    for (number, piece) in text.split("```").enumerate() {
        if number % 2 == 0 {
            let mut headings = piece.lines().filter(|line| line.starts_with('#'));
            heading = headings.next_back().unwrap_or(heading);
            continue;
        }
        // the first line names only a language
        let lines = piece.lines().skip(1).map(|line| {
            let command = line.split(" #").next().unwrap_or(line);
            command.split_whitespace().collect::<Vec<_>>().join(" ")
        });
        blocks.push(Block {
            heading: heading.trim_start_matches(['#', ' ']).to_owned(),
            lines: lines.filter(|line| !line.is_empty()).collect(),
        });
    }
    blocks
}

/// Returns the lines of the blocks below a heading of a page whose first command calls `program`. Panics if there are
/// none.
#[track_caller]
pub fn commands(page: &str, heading: &str, program: &str) -> Vec<String> {
    let mut blocks = blocks(page);
    blocks.retain(|block| block.heading == heading && calls(block, program));
    let commands: Vec<String> = blocks.into_iter().flat_map(|it| it.lines).collect();
    assert!(!commands.is_empty(), "{page}, {heading}: no {program}");
    commands
}

/// Returns the blocks below a heading of a page that a shell can run. Omits blocks of YAML. Panics if there
/// are none.
#[track_caller]
pub fn shell(page: &str, heading: &str) -> Vec<Block> {
    let mut blocks = blocks(page);
    blocks.retain(|block| block.heading == heading && !block.lines[0].ends_with(':'));
    assert!(!blocks.is_empty(), "{page}: no commands below {heading}");
    blocks
}

/// Returns the cells of each row of the table below `header`, without backquotes. `header` is a line of the
/// page.
#[track_caller]
pub fn rows(page: &str, header: &str) -> Vec<Vec<String>> {
    let text = read(page);
    let table = text.split(&format!("{header}\n")).nth(1);
    let table = table.unwrap_or_else(|| panic!("{page}: no table {header}"));
    let rows = table.lines().skip(1).take_while(|it| it.starts_with('|'));
    let cells = |row: &str| {
        let row = row.trim_matches(['|', ' ']);
        row.split(" | ")
            .map(|it| it.trim_matches('`').to_owned())
            .collect()
    };
    rows.map(cells).collect()
}

/// Returns the text of a page of the repository.
#[track_caller]
fn read(page: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(page);
    fs::read_to_string(&file).unwrap_or_else(|error| panic!("{file:?}: {error}"))
}

/// Returns true if the block's first command calls `program`.
fn calls(block: &Block, program: &str) -> bool {
    let first = block.lines.first();
    first.is_some_and(|line| line.split(' ').next() == Some(program))
}
