// SPDX-License-Identifier: Apache-2.0
//! Reads configurations into types that derive `Deserialize`, such that a wrong value is told by its
//! place and in a plain sentence: `resources[1].count: must be a whole number from 1 to 5000, and is
//! "many"`. All three programs read their configurations with it.
//!
//! | module | owns |
//! |---|---|
//! | [`field`] | a value at its place, and the ways from it to those in it |
//! | `deserializer` | what serde is handed of it |
//! | [`kinds`] | types of fields: numbers in a range, texts, absolute paths |
//! | [`wrong`] | the error: place, problem, value |
//! | [`mod@line`] | any text as one line, for people and logs |
//!
//! Rules that differ from `serde_json`'s own reading:
//!
//! - `null` is no value, as for Go's decoders. Each field of a structure is asked for, be it there or
//!   not: an `Option` gets `None`, any other type says that its value is missing. `#[serde(default)]`
//!   has no effect.
//! - Of several wrong values the one is told whose field the structure has first; unknown fields, where
//!   they are denied, before them.

mod deserializer;
pub mod field;
pub mod kinds;
pub mod line;
mod nearest;
pub mod wrong;

pub use field::Field;
pub use kinds::{AbsolutePath, Number, Texts, optional, parsed, range};
pub use line::{json, one_line, steers};
pub use nearest::nearest;
pub use wrong::Wrong;
