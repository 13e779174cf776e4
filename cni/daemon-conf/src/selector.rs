// SPDX-License-Identifier: Apache-2.0
//! Selectors of a resource's devices.

use conf_reader::range;
use glob::Pattern;
use rdma_netns::LinkType;
use regex_lite::Regex;
use std::{fmt, ops::RangeInclusive};

/// Selector of devices. A device matches if it matches at least one pattern of each non-empty list. In `pf` and `root`,
/// only the first element whose pattern matches counts: its numbers must also match.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Selector {
    /// Place of the selector in the configuration file.
    pub place: String,
    /// Names of the device's netdev. The name of a bond or bridge matches the devices of its ports.
    pub netdev: Vec<Text>,
    /// Names of the RDMA device.
    pub rdma: Vec<Text>,
    /// PCI addresses and auxiliary devices.
    pub address: Vec<Text>,
    /// Names of drivers.
    pub driver: Vec<Text>,
    /// PCI vendor ids.
    pub vendor: Vec<Text>,
    /// PCI device ids.
    pub device: Vec<Text>,
    /// Link types of the netdev. A device without a netdev has the link type of its RDMA device's ports, or otherwise
    /// of its physical function.
    pub link_type: Vec<LinkType>,
    /// Netdevs of the physical function. A device that is neither a virtual function nor a sub-function is its own
    /// physical function.
    pub pf: Vec<Parent>,
    /// PCI addresses of the physical function.
    pub root: Vec<Parent>,
    /// Required kind of the device; `None`: any kind.
    pub sort: Option<Sort>,
}

/// Kind of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    /// PCI functions, including virtual functions.
    Pci,
    /// PCI virtual functions.
    Virtual,
    /// Auxiliary devices, which are sub-functions.
    Auxiliary,
}

/// A physical function, and the numbers of some of its virtual functions or sub-functions.
#[derive(Clone, Debug, PartialEq)]
pub struct Parent {
    /// Pattern of the physical function.
    pub text: Text,
    /// Numbers of the selected functions; empty: all functions.
    pub numbers: Vec<RangeInclusive<u32>>,
}

/// A pattern for names, addresses and ids.
#[derive(Clone, Debug)]
pub struct Text {
    written: String,
    how: How,
}

#[derive(Clone, Debug)]
enum How {
    Exactly,
    Glob(Pattern),
    /// Regular expression that can match anywhere in the text.
    Regex(Regex),
}

impl Selector {
    /// Returns true if the selector selects all devices of its kind.
    pub(super) fn selects_all(&self) -> bool {
        let empty = Self {
            place: self.place.clone(),
            sort: self.sort,
            ..Self::default()
        };
        *self == empty
    }
}

/// Converts `words` to link types. Returns `None` if a word is not a link type.
pub(super) fn link_types(words: &[String]) -> Option<Vec<LinkType>> {
    let of = |word: &String| match word.as_str() {
        "ether" => Some(LinkType::Ether),
        "infiniband" => Some(LinkType::Infiniband),
        _ => None,
    };
    words.iter().map(of).collect()
}

impl Text {
    /// Returns a pattern that matches only the text itself, case-insensitively.
    pub fn exactly(written: &str) -> Self {
        Self {
            written: written.to_owned(),
            how: How::Exactly,
        }
    }

    /// Parses a shell pattern. The error describes the problem.
    pub fn glob(written: &str) -> Result<Self, String> {
        let pattern = Pattern::new(written).map_err(|error| error.msg.to_owned())?;
        Ok(Self {
            written: written.to_owned(),
            how: How::Glob(pattern),
        })
    }

    /// Returns a pattern that matches the text itself, or uses the text as a regular expression.
    /// sriov-network-device-plugin matches `pfNames` and `rootDevices` in this way (`getItem` in
    /// `pkg/resources/deviceSelectors.go`). One difference: here a name without special characters is not an
    /// expression, so `eth1` does not match `eth10`.
    pub fn exactly_or_regex(written: &str) -> Self {
        let special = written.contains(|c: char| r"\^$*+?()[]{}|".contains(c));
        let how = match Regex::new(written) {
            Ok(regex) if special => How::Regex(regex),
            _ => How::Exactly,
        };
        Self {
            written: written.to_owned(),
            how,
        }
    }

    /// Returns true if the pattern matches `text`.
    pub fn fits(&self, text: &str) -> bool {
        self.written.eq_ignore_ascii_case(text)
            || match &self.how {
                How::Exactly => false,
                How::Glob(pattern) => pattern.matches(text),
                How::Regex(regex) => regex.is_match(text),
            }
    }
}

impl PartialEq for Text {
    fn eq(&self, other: &Self) -> bool {
        self.written == other.written
            && std::mem::discriminant(&self.how) == std::mem::discriminant(&other.how)
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.written)
    }
}

impl Parent {
    /// Parses `ens1f0` or `ens1f0#0-3,5`. The function `text` parses the part before the `#`. The error describes the
    /// problem.
    pub fn parse(
        written: &str,
        text: impl FnOnce(&str) -> Result<Text, String>,
    ) -> Result<Self, String> {
        let Some((name, numbers)) = written.split_once('#') else {
            return Ok(Self {
                text: text(written)?,
                numbers: Vec::new(),
            });
        };
        let numbers = numbers
            .split(',')
            .map(|part| {
                range(part).ok_or_else(|| {
                    format!("{part:?} after # must be a number or an ascending range, as 0-3")
                })
            })
            .collect::<Result<_, _>>()?;
        Ok(Self {
            text: text(name)?,
            numbers,
        })
    }

    /// Returns true if the virtual function or sub-function with this number is selected.
    pub fn has(&self, number: Option<u32>) -> bool {
        self.numbers.is_empty()
            || number.is_some_and(|number| self.numbers.iter().any(|range| range.contains(&number)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_fit_exactly_by_glob_or_by_regular_expression() {
        assert!(Text::exactly("15B3").fits("15b3"));
        assert!(!Text::exactly("ens1*").fits("ens1f0"));
        let glob = Text::glob("ens?f[01]").expect("a glob");
        assert!(glob.fits("ens1f0") && !glob.fits("ens1f2"));
        assert!(Text::glob("ens[").is_err());
        let regex = Text::exactly_or_regex("^ens.*f0$");
        assert!(regex.fits("ens12f0") && !regex.fits("ens12f01"));
        assert!(Text::exactly_or_regex("f0|f1").fits("ens1f1np1"));
        assert!(!Text::exactly_or_regex("eth1").fits("eth10"));
        assert!(!Text::exactly_or_regex("0000:3b:00.0").fits("0000:3b:00:0"));
        assert!(Text::exactly_or_regex("a[").fits("a["));
    }

    #[test]
    fn virtual_functions_by_number() {
        let parse = |text: &str| Parent::parse(text, |name| Ok(Text::exactly(name)));
        let some = parse("ens1f0#0-3,5").expect("a range");
        let has: Vec<u32> = (0..8).filter(|number| some.has(Some(*number))).collect();
        assert_eq!(has, [0, 1, 2, 3, 5]);
        assert!(!some.has(None));
        assert!(parse("ens1f0").expect("all").has(None));
        for bad in [
            "ens1f0#",
            "ens1f0#a",
            "ens1f0#1-",
            "ens1f0#3-1",
            "ens1f0#1#2",
        ] {
            let error = parse(bad).expect_err(bad);
            assert!(error.contains("number or an ascending range"), "{error}");
        }
    }
}
