// SPDX-License-Identifier: Apache-2.0
//! Text for people: others wrote a part of it.

use std::{borrow::Cow, fmt::Write as _};

/// `text` as one line that steers no terminal and no viewer of logs: control characters, separators of lines and of
/// paragraphs, and marks that change the direction of what follows (Unicode Standard Annex 9) are escaped as Rust
/// writes them. All else stays.
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

/// Whether one character does more than to be shown.
fn steers(character: char) -> bool {
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
    fn what_steers_is_escaped_and_all_else_stays() {
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
}
