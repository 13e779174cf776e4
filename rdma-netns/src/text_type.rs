// SPDX-License-Identifier: Apache-2.0
//! Implementations that types with a text form have in common.

/// Implements the reading access to the text in `$type`, a tuple structure with a checked `String`.
macro_rules! checked_text {
    ($type:ty) => {
        impl From<$type> for String {
            fn from(checked: $type) -> Self {
                checked.0
            }
        }

        impl std::ops::Deref for $type {
            type Target = str;

            fn deref(&self) -> &str {
                &self.0
            }
        }

        impl std::borrow::Borrow<str> for $type {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(&self.0)
            }
        }
    };
}

/// Implements the conversions by which serde reads and writes `$type` as text, by `FromStr` and `Display`.
macro_rules! serde_as_text {
    ($type:ty) => {
        impl TryFrom<String> for $type {
            type Error = <$type as std::str::FromStr>::Err;

            fn try_from(text: String) -> Result<Self, Self::Error> {
                text.parse()
            }
        }

        impl From<$type> for String {
            fn from(value: $type) -> Self {
                value.to_string()
            }
        }
    };
}

pub(crate) use {checked_text, serde_as_text};
