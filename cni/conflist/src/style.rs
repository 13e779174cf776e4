// SPDX-License-Identifier: Apache-2.0
//! The layout of JSON text in a list. A new element gets the layout of the element next to it.

use serde::Serialize;
use serde_json::{
    Value,
    ser::{CompactFormatter, Formatter, PrettyFormatter, Serializer},
};
use std::io;

/// The layout of an element of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// Each member is on its own line.
    Lines {
        /// Line break: `\n` or `\r\n`.
        newline: &'static str,
        /// Indentation of the line on which the element starts.
        indent: String,
        /// Additional indentation for each level of nesting.
        unit: String,
    },
    /// All members are on one line, with spaces after `:` and `,`.
    Spaced {
        /// True if there are spaces inside the braces.
        padded: bool,
    },
    /// All members are on one line, without spaces.
    Compact,
}

impl Style {
    /// Returns the layout of `element`, which starts at byte `start` of `text`.
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

    /// Returns the text of `value` in this layout. The first line has no indentation.
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
                // serde_json escapes line breaks inside strings
                lines.replace('\n', &format!("{newline}{indent}"))
            }
        }
    }
}

/// Returns the line break at the end of `line`.
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
