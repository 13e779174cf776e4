// SPDX-License-Identifier: Apache-2.0
//! Text in one line, for people and logs. Escapes input of other programs, and shortens lists of names.

use serde_json::Value;
use std::{borrow::Cow, fmt::Write as _};

/// Returns `text` as one line that cannot control a terminal or a log viewer. Escapes, in Rust's notation, control
/// characters, separators of lines and paragraphs, and characters that change the direction of text (Unicode Standard
/// Annex 9).
pub fn one_line(text: &str) -> Cow<'_, str> {
    if !text.contains(steers) {
        return text.into();
    }
    let mut line = String::with_capacity(text.len() + 8);
    for character in text.chars() {
        let _ = match steers(character) {
            true => write!(line, "{}", character.escape_default()),
            false => line.write_char(character),
        };
    }
    line.into()
}

/// Returns `value` as JSON in one line. Escapes all characters that [`one_line`] escapes, although JSON requires
/// escapes only for control characters below U+0020 (RFC 8259, section 7). A parser of the line gets the same value.
pub fn json(value: &Value) -> String {
    escaped(value.to_string())
}

/// Escapes in `text`, which must be JSON, the characters that [`one_line`] escapes.
pub(crate) fn escaped(text: String) -> String {
    if !text.contains(steers) {
        return text;
    }
    let mut line = String::with_capacity(text.len() + 8);
    for character in text.chars() {
        // the code of every such character has at most four hexadecimal digits, and compact JSON can contain the
        // character only in a string
        let _ = match steers(character) {
            true => write!(line, "\\u{:04x}", u32::from(character)),
            false => line.write_char(character),
        };
    }
    line
}

/// Joins the first `most` of `names` by `between`. If there are other names, adds `last` and their number: with `", "`
/// and `" and "`, a result is `a, b and 3 more`.
pub fn elided(names: &[impl AsRef<str>], most: usize, between: &str, last: &str) -> String {
    let shown = names.iter().take(most).map(AsRef::as_ref);
    let shown = shown.collect::<Vec<_>>().join(between);
    match names.len().saturating_sub(most) {
        0 => shown,
        more => format!("{shown}{last}{more} more"),
    }
}

/// Returns true if `character` controls the display of text. [`one_line`] escapes such characters.
pub fn steers(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_controls_are_escaped() {
        for plain in ["", "\"a\" \\n 'b' ä→…", "e\u{301}"] {
            assert!(matches!(one_line(plain), Cow::Borrowed(it) if it == plain));
        }
        let cases = [
            ("a\nb\r\tc", "a\\nb\\r\\tc"),
            ("\u{1b}[31mred \"x\"", "\\u{1b}[31mred \"x\""),
            ("\u{9b}2J\u{7f}", "\\u{9b}2J\\u{7f}"),
            (
                "a\u{2028}b\u{202e}c\u{2066}",
                "a\\u{2028}b\\u{202e}c\\u{2066}",
            ),
        ];
        for (text, line) in cases {
            assert_eq!(one_line(text), line);
        }
    }

    #[test]
    fn only_the_first_names_are_in_a_long_list() {
        let names = ["a", "b", "c"];
        assert_eq!(elided(&names, 2, ", ", " and "), "a, b and 1 more");
        assert_eq!(elided(&names, 1, "; ", "; and "), "a; and 2 more");
        assert_eq!(elided(&names, 3, "; ", "; and "), "a; b; c");
        assert_eq!(elided(&names[..0], 3, ", ", ", "), "");
    }

    #[test]
    fn json_that_steers_nothing_is_the_same_value() {
        let hostile = "a\n\u{1b}[2J\u{7f}\u{9b}\u{61c}\u{200e}\u{2028}\u{202e}\u{2069} \"ä\" \\";
        let value = serde_json::json!({hostile: [hostile, 7]});
        let line = json(&value);
        assert!(!line.contains(steers), "{line:?}");
        assert!(line.contains("\\u007f\\u009b\\u061c"), "{line:?}");
        assert_eq!(serde_json::from_str::<Value>(&line).expect("JSON"), value);
    }
}
