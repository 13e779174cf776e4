// SPDX-License-Identifier: Apache-2.0
//! How a list is written: new text looks like its neighbour.

use serde::Serialize;
use serde_json::{
    Value,
    ser::{CompactFormatter, Formatter, PrettyFormatter, Serializer},
};
use std::io;

/// How an element of a list is laid out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// One member to a line.
    Lines {
        /// `\n`, `\r\n`
        newline: &'static str,
        /// What the line starts with on which the element does.
        indent: String,
        /// What is put before that for each level.
        unit: String,
    },
    /// All on one line, with spaces after `:` and `,`.
    Spaced {
        /// A space inside the braces as well.
        padded: bool,
    },
    /// All on one line, and no spaces.
    Compact,
}

impl Style {
    /// That of `element`, which starts at `start` of `text`.
    pub(crate) fn of(text: &str, start: usize, element: &str) -> Self {
        let Some(at) = element.find('\n') else {
            return match element.contains("\": ") {
                true => Self::Spaced {
                    padded: element.starts_with("{ "),
                },
                false => Self::Compact,
            };
        };
        let newline = newline_of(&element[..=at]);
        let line = text[..start].rfind('\n').map_or(0, |at| at + 1);
        let indent = blank(&text[line..]).to_owned();
        let inner = blank(&element[at + 1..]);
        let unit = inner.strip_prefix(indent.as_str()).unwrap_or(inner);
        Self::Lines {
            newline,
            unit: unit.to_owned(),
            indent,
        }
    }

    /// `value` in this style; the first line is not indented.
    pub(crate) fn write(&self, value: &Value) -> String {
        match self {
            Self::Compact => written(value, CompactFormatter),
            Self::Spaced { padded } => written(value, Spaced { padded: *padded }),
            Self::Lines {
                newline,
                indent,
                unit,
            } => {
                let lines = written(value, PrettyFormatter::with_indent(unit.as_bytes()));
                // no text of JSON has a line break in it
                lines.replace('\n', &format!("{newline}{indent}"))
            }
        }
    }
}

/// The line break with which `line` ends.
pub(crate) fn newline_of(line: &str) -> &'static str {
    match line.ends_with("\r\n") {
        true => "\r\n",
        false => "\n",
    }
}

fn blank(line: &str) -> &str {
    &line[..line.len() - line.trim_start_matches([' ', '\t']).len()]
}

fn written<F: Formatter>(value: &Value, formatter: F) -> String {
    let mut out = Vec::new();
    let written = value.serialize(&mut Serializer::with_formatter(&mut out, formatter));
    debug_assert!(written.is_ok(), "a value that serde_json made: {written:?}");
    String::from_utf8_lossy(&out).into_owned()
}

struct Spaced {
    padded: bool,
}

impl Formatter for Spaced {
    fn begin_array_value<W: io::Write + ?Sized>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> io::Result<()> {
        out.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_key<W: io::Write + ?Sized>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> io::Result<()> {
        match (first, self.padded) {
            (false, _) => out.write_all(b", "),
            (true, true) => out.write_all(b" "),
            (true, false) => Ok(()),
        }
    }

    fn begin_object_value<W: io::Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(b": ")
    }

    fn end_object<W: io::Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(if self.padded { b" }" } else { b"}" })
    }
}
