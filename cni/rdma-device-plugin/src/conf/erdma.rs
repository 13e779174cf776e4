// SPDX-License-Identifier: Apache-2.0
//! Configuration of eRDMA NICs: `erdma` in the daemon's own format, or flags with the names of the eRDMA agent's flags.

use super::{
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
    /// Origin of the configuration.
    pub origin: Origin,
    /// Selectors of the RDMA devices that are eRDMA NICs.
    pub devices: Vec<Selector>,
    /// Required driver mode of the node; `None`: any.
    pub prefer_driver: Option<DriverMode>,
    /// `reloadDriver`: reload the module for another mode.
    pub reload_driver: bool,
    /// `exposedLocalERIs`: NICs that are used, by instance; empty: all.
    pub exposed: Vec<Exposed>,
    /// Base address of the metadata service, which has the instance's id.
    pub metadata: String,
    /// Configuration for bringing up unconfigured NICs; `None`: leave them alone.
    pub bring_up: Option<BringUp>,
}

/// Origin of the configuration of eRDMA NICs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The file, or flags.
    User,
    /// Defaults: the file has our own format and no `erdma`.
    Defaults,
    /// Defaults for a file of another system's format, which does not manage eRDMA NICs.
    Foreign,
}

/// One pattern of `exposedLocalERIs`.
#[derive(Clone, Debug, PartialEq)]
pub struct Exposed {
    /// Instance id, or a pattern: `i-*`.
    pub instance: Text,
    /// Names of RDMA devices, or patterns: `erdma_0`, `erdma_*`.
    pub devices: Vec<Text>,
}

/// Patterns of `exposedLocalERIs`; empty: all NICs are used.
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
    /// Returns the configuration beside a foreign format: NICs stay as they are.
    pub(super) fn foreign() -> Self {
        Self {
            origin: Origin::Foreign,
            bring_up: None,
            ..Self::default()
        }
    }

    /// Returns true if the driver may be loaded or reloaded.
    pub fn may_load(&self) -> bool {
        self.origin != Origin::Foreign && self.prefer_driver.is_some() && self.reload_driver
    }

    /// Returns the default resource, for a file that configures none.
    pub(super) fn resource(&self, name: ResourceName) -> ResourceConf {
        let ids = Ids::PerNic {
            count: NIC_IDS,
            allocate: Allocate::Numa,
        };
        ResourceConf::new(name, "erdma", ids, self.devices.clone())
    }
}

impl Exposed {
    /// Returns true if the pattern matches every instance, so that the instance's id is not needed.
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
            return Err(wrong("is not two words"));
        };
        if !instance.starts_with("i-") || instance.len() == 2 {
            return Err(wrong("does not start with an instance's id"));
        }
        let pattern = |word: &str| {
            let allowed = |c: char| c.is_ascii_alphanumeric() || "-_*?[]!".contains(c);
            match word.is_empty() || !word.chars().all(allowed) {
                true => Err(wrong("contains text that is neither a name nor a pattern")),
                false => Text::glob(word).map_err(|_| wrong("has a pattern without an end")),
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
            ("i-* erdma_[0", "without an end"),
        ] {
            let error = text.parse::<Exposed>().expect_err(text);
            assert!(error.contains(why), "{text:?}: {error}");
            assert!(error.contains("i-* erdma_0/erdma_1"), "{error}");
        }
    }
}
