// SPDX-License-Identifier: Apache-2.0
//! Reads configurations into types that derive `Deserialize`. The error for a wrong value contains the value's path
//! and a plain sentence: `resources[1].count: must be a whole number from 1 to 5000, and is "many"`. All three
//! programs of this project read their configurations with this crate.
//!
//! | module | owns |
//! |---|---|
//! | [`field`] | a value with its path, and access to the values in it |
//! | `deserializer` | the `Deserializer` of a field |
//! | [`kinds`] | types of fields: numbers in a range, texts, absolute paths |
//! | [`wrong`] | the error: path, problem, value |
//! | [`mod@line`] | text in one line, for people and logs |
//!
//! Two rules differ from `serde_json`:
//!
//! - `null` counts as no value, as in Go's decoders. A structure reads all of its fields, even if the configuration
//!   lacks them: an `Option` becomes `None`, and a list becomes empty. Any other missing value is an error, unless its
//!   type accepts `null`. `#[serde(default)]` has no effect.
//! - If several values are wrong, the error is about the first wrong field in the structure's order. An unknown field
//!   that is not allowed precedes all other fields.

mod deserializer;
pub mod field;
pub mod kinds;
pub mod line;
mod nearest;
pub mod wrong;

pub use field::Field;
pub use kinds::{AbsolutePath, Number, Texts, optional, parsed, range};
pub use line::{elided, json, one_line, steers};
pub use nearest::{nearest, not_known};
pub use wrong::Wrong;
