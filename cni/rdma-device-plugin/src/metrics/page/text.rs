// SPDX-License-Identifier: Apache-2.0
//! Escapes external text for HTML and SVG. Names on the page are external text: any user can choose the name of a pod.

use conf_reader::steers;
use std::{
    fmt::{self, Write},
    time::SystemTime,
};

/// Largest number of characters of a text that the page shows.
const LONGEST: usize = 300;

/// Text that is escaped for elements and for quoted attributes, with its largest number of characters.
pub(super) struct Text<'a>(&'a str, usize);

/// Escapes `text`, and cuts it to [`LONGEST`] characters.
pub(super) fn text(text: &str) -> Text<'_> {
    Text(text, LONGEST)
}

/// Escapes `text`, and cuts it to `most` characters.
pub(super) fn cut(text: &str, most: usize) -> Text<'_> {
    Text(text, most)
}

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(text, most) = *self;
        let is_long = text.chars().nth(most).is_some();
        let shown = if is_long {
            most.saturating_sub(1)
        } else {
            most
        };
        for c in text.chars().take(shown) {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                c if is_hidden(c) => f.write_char(char::REPLACEMENT_CHARACTER)?,
                c => f.write_char(c)?,
            }
        }
        if is_long { f.write_char('…') } else { Ok(()) }
    }
}

/// Returns true for control characters other than line feed and tab, and for characters that change the direction of
/// the following text.
fn is_hidden(c: char) -> bool {
    steers(c) && !matches!(c, '\n' | '\t')
}

pub(super) fn moment(at: SystemTime) -> String {
    let text = humantime::format_rfc3339_seconds(at).to_string();
    let text = text.replace('T', " ").replace('Z', " UTC");
    format!("<time>{text}</time>")
}

/// Formats a number in groups of three digits.
pub(super) fn count(number: usize) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            grouped.push('\u{202f}');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_from_outside_is_no_markup() {
        let hostile = "<script>alert(\"1\")</script>&'\u{202e}\u{61c}\u{0}";
        let expected =
            "&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt;&amp;&#39;\u{fffd}\u{fffd}\u{fffd}";
        assert_eq!(text(hostile).to_string(), expected);
        assert_eq!(cut("rdma0", 5).to_string(), "rdma0");
        assert_eq!(cut("rdma01", 5).to_string(), "rdma…");
        assert_eq!(cut("&&&&&&", 2).to_string(), "&amp;…");
    }

    #[test]
    fn numbers_are_readable() {
        let counts = [0, 999, 1000, 1_234_567].map(count);
        assert_eq!(
            counts,
            ["0", "999", "1\u{202f}000", "1\u{202f}234\u{202f}567"]
        );
    }
}
