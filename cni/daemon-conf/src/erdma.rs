// SPDX-License-Identifier: Apache-2.0
//! Configuration of eRDMA NICs, from the section `erdma` of the daemon's own format. [`Flags`](crate::Flags) override
//! it.

use crate::{
    Allocate, Ids, NIC_IDS, ResourceConf, ResourceName, Selector,
    selector::{Sort, Text},
};
use ::erdma::conf::{BringUp, DRIVER, DriverMode, METADATA};
use conf_reader::Texts;
use serde::Deserialize;
use std::{fmt, str::FromStr};

/// Resource that the eRDMA agent offers.
pub const RESOURCE: &str = "aliyun/erdma";

/// Configuration of eRDMA NICs.
#[derive(Clone, Debug, PartialEq)]
pub struct Erdma {
    /// Source of this configuration.
    pub origin: Origin,
    /// Selectors of the RDMA devices that are eRDMA NICs.
    pub devices: Vec<Selector>,
    /// Driver mode that the configuration requires. `None`: any mode.
    pub prefer_driver: Option<DriverMode>,
    /// Value of `reloadDriver`: true if the daemon may load or reload the driver to change the mode.
    pub reload_driver: bool,
    /// Value of `exposedLocalERIs`: the NICs that the daemon uses, by instance. Empty: all NICs.
    pub exposed: Vec<Exposed>,
    /// Base URL of the metadata service, which returns the instance's id.
    pub metadata: String,
    /// Configuration for bringing up unconfigured NICs; `None`: the daemon does not bring NICs up.
    pub bring_up: Option<BringUp>,
}

/// Source of the configuration of eRDMA NICs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The configuration file, or flags.
    User,
    /// Defaults, because there is no file, or the file has the daemon's own format and no `erdma`.
    Defaults,
    /// Defaults, because the file has the format of another program, which does not manage eRDMA NICs.
    Foreign,
}

/// One pattern of `exposedLocalERIs`.
#[derive(Clone, Debug, PartialEq)]
pub struct Exposed {
    /// Instance id, or a pattern such as `i-*`.
    pub instance: Text,
    /// Names of RDMA devices, or patterns, such as `erdma_0` or `erdma_*`.
    pub devices: Vec<Text>,
}

/// Patterns of `exposedLocalERIs`; empty: the daemon uses all NICs.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "Texts")]
pub struct Patterns(pub Vec<Exposed>);

impl TryFrom<Texts> for Patterns {
    type Error = String;

    fn try_from(texts: Texts) -> Result<Self, String> {
        let patterns = texts.0.iter().map(|text| text.parse());
        patterns.collect::<Result<_, _>>().map(Self)
    }
}

impl Default for Erdma {
    fn default() -> Self {
        Self {
            origin: Origin::Defaults,
            devices: vec![Selector {
                place: "erdma".to_owned(),
                driver: vec![Text::exactly(DRIVER)],
                sort: Some(Sort::Pci),
                ..Selector::default()
            }],
            prefer_driver: None,
            reload_driver: true,
            exposed: Vec::new(),
            metadata: METADATA.to_owned(),
            bring_up: Some(BringUp::default()),
        }
    }
}

impl Erdma {
    /// Returns the configuration for a file in another program's format: the daemon does not change the NICs.
    pub(super) fn foreign() -> Self {
        Self {
            origin: Origin::Foreign,
            bring_up: None,
            ..Self::default()
        }
    }

    /// Returns true if the daemon may load or reload the driver.
    pub fn may_load(&self) -> bool {
        self.origin != Origin::Foreign && self.prefer_driver.is_some() && self.reload_driver
    }

    /// Returns the resource for a configuration without `resources`.
    pub(super) fn resource(&self, name: ResourceName) -> ResourceConf {
        let ids = Ids::PerNic {
            count: NIC_IDS,
            allocate: Allocate::Numa,
        };
        ResourceConf {
            has_default_count: true,
            ..ResourceConf::new(name, "erdma", ids, self.devices.clone())
        }
    }
}

impl Exposed {
    /// Returns true if the instance's pattern is `i-*`. The daemon then does not need the instance's id.
    pub fn is_for_every_instance(&self) -> bool {
        self.instance.to_string() == "i-*"
    }
}

impl FromStr for Exposed {
    type Err = String;

    /// Parses `i-bp1 erdma_0/erdma_1`. The error names the problem and the right form.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |why: &str| {
            format!(
                "{text:?} {why}; write an instance and its RDMA devices, as i-* erdma_0/erdma_1"
            )
        };
        let words: Vec<&str> = text.split_whitespace().collect();
        let [instance, devices] = words.as_slice() else {
            return Err(wrong("does not have two words"));
        };
        if !instance.starts_with("i-") || instance.len() == 2 {
            return Err(wrong("does not start with an instance's id"));
        }
        let pattern = |word: &str| {
            let allowed = |c: char| c.is_ascii_alphanumeric() || "-_*?[]!".contains(c);
            match word.is_empty() || !word.chars().all(allowed) {
                true => Err(wrong("contains text that is neither a name nor a pattern")),
                false => Text::glob(word)
                    .map_err(|why| wrong(&format!("contains an invalid pattern: {why}"))),
            }
        };
        Ok(Self {
            instance: pattern(instance)?,
            devices: devices.split('/').map(pattern).collect::<Result<_, _>>()?,
        })
    }
}

impl fmt::Display for Exposed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let devices: Vec<String> = self.devices.iter().map(ToString::to_string).collect();
        write!(f, "{} {}", self.instance, devices.join("/"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_of_exposed_nics() {
        for (text, every, fits, fits_not) in [
            ("i-bp1abc erdma_0/erdma_1", false, "erdma_1", "erdma_10"),
            ("i-* erdma_0", true, "erdma_0", "erdma_1"),
            (" i-*   erdma_* ", true, "erdma_17", "mlx5_0"),
            ("i-bp* erdma_[0-3]", false, "erdma_3", "erdma_4"),
        ] {
            let exposed: Exposed = text.parse().expect(text);
            assert_eq!(exposed.is_for_every_instance(), every, "{text}");
            let is = |device: &str| exposed.devices.iter().any(|it| it.fits(device));
            assert!(is(fits) && !is(fits_not), "{text}");
        }
        let one: Exposed = "i-a erdma_0/erdma_1".parse().expect("a pattern");
        assert_eq!(one.to_string(), "i-a erdma_0/erdma_1");
    }

    #[test]
    fn invalid_patterns_are_refused() {
        for (text, why) in [
            ("", "two words"),
            ("i-*", "two words"),
            ("i-* erdma_0 erdma_1", "two words"),
            ("erdma_0 i-*", "start with an instance's id"),
            ("i- erdma_0", "start with an instance's id"),
            ("i-* erdma_0/", "neither a name nor a pattern"),
            ("i-* /erdma_0", "neither a name nor a pattern"),
            ("i-*: erdma_0", "neither a name nor a pattern"),
            ("i-* erdma_[0", "an invalid pattern"),
        ] {
            let error = text.parse::<Exposed>().expect_err(text);
            assert!(error.contains(why), "{text:?}: {error}");
            assert!(error.contains("i-* erdma_0/erdma_1"), "{error}");
        }
    }
}
