//! What the daemon does with eRDMA NICs, `erdma` in our own format, or flags with the eRDMA
//! agent's names.

use super::{
    Allocate, Ids, NIC_IDS, ResourceConf, ResourceName, Selector,
    selector::{Sort, Text},
};
use ipnetwork::Ipv4Network;
use rdma_netns::HardwareAddress;
use std::{fmt, net::Ipv4Addr, str::FromStr};

/// The resource that the eRDMA agent offers.
pub const RESOURCE: &str = "aliyun/erdma";

/// `jumboFrameMTU` where nobody says: the agent's.
const JUMBO_MTU: u32 = 8500;

/// The metadata service of an ECS instance.
const METADATA: &str = "http://100.100.100.200";

/// The driver of an eRDMA NIC's RDMA device (`DRV_MODULE_NAME`, `drivers/infiniband/hw/erdma`).
pub const DRIVER: &str = "erdma";

/// What is done with eRDMA NICs.
#[derive(Clone, Debug, PartialEq)]
pub struct Erdma {
    /// Who says what is done with them.
    pub origin: Origin,
    /// Which RDMA devices are eRDMA NICs.
    pub devices: Vec<Selector>,
    /// The driver mode that the node is to be in; none: whichever it is in.
    pub prefer_driver: Option<DriverMode>,
    /// `reloadDriver`: whether the module is loaded anew for another mode.
    pub reload_driver: bool,
    /// `exposedLocalERIs`: which of them are used on which instance; without any, all.
    pub exposed: Vec<Exposed>,
    /// Base address of the metadata service, which knows the instance's id.
    pub metadata: String,
    /// How NICs are brought up that nobody configured; none: they are not.
    pub bring_up: Option<BringUp>,
}

/// Who says what is done with eRDMA NICs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The file, or flags.
    User,
    /// Nobody: the file is of our own format, and has no `erdma`.
    Defaults,
    /// Nobody, and the file is of a format whose owner has nothing to do with them.
    Foreign,
}

/// Mode of the eRDMA driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DriverMode {
    /// The kernel's own RDMA stack; `rdma_cm` and SMC-R work.
    Default,
    /// Compatible with RoCE (`compat_mode`).
    Compat,
    /// With the RDMA stack of MLNX_OFED.
    Ofed,
}

/// One pattern of `exposedLocalERIs`.
#[derive(Clone, Debug, PartialEq)]
pub struct Exposed {
    /// Instance id, or a pattern of it: `i-*`.
    pub instance: Text,
    /// RDMA devices, or patterns of them: `erdma_0`, `erdma_*`.
    pub devices: Vec<Text>,
}

/// How a NIC is brought up.
#[derive(Clone, Debug, PartialEq)]
pub struct BringUp {
    /// `jumboFrameMTU`: bytes, where the NIC can have so much.
    pub mtu: u32,
    /// Base address of the metadata service, `http://100.100.100.200`.
    pub metadata: String,
    /// Addresses that the metadata service is not asked for.
    pub addresses: Vec<NicAddress>,
}

/// The address of a NIC, by hand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicAddress {
    /// Which NIC.
    pub mac: HardwareAddress,
    /// Its address, and the network that it is in.
    pub address: Ipv4Network,
    /// The network's router.
    pub gateway: Option<Ipv4Addr>,
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

impl Default for BringUp {
    fn default() -> Self {
        Self {
            mtu: JUMBO_MTU,
            metadata: METADATA.to_owned(),
            addresses: Vec::new(),
        }
    }
}

impl Erdma {
    /// Beside a configuration of another system: NICs are left as they are.
    pub(super) fn foreign() -> Self {
        Self {
            origin: Origin::Foreign,
            bring_up: None,
            ..Self::default()
        }
    }

    /// Whether the driver may be loaded, or loaded anew.
    pub fn may_load(&self) -> bool {
        self.origin != Origin::Foreign && self.prefer_driver.is_some() && self.reload_driver
    }

    /// The resource that there is where none is configured.
    pub(super) fn resource(&self, name: ResourceName) -> ResourceConf {
        ResourceConf {
            name,
            place: "erdma".to_owned(),
            ids: Ids::PerNic {
                count: NIC_IDS,
                allocate: Allocate::Numa,
            },
            devices: self.devices.clone(),
            umad: false,
            topology: true,
            require: None,
        }
    }
}

impl DriverMode {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Default, Self::Compat, Self::Ofed];

    /// The word that configurations have for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Compat => "compat",
            Self::Ofed => "ofed",
        }
    }
}

impl fmt::Display for DriverMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

impl FromStr for DriverMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|mode| mode.word() == text);
        found.ok_or_else(|| format!("must be one of default, compat, ofed, and is {text:?}"))
    }
}

impl Exposed {
    /// Whether the instance's id need not be known.
    pub fn is_for_every_instance(&self) -> bool {
        self.instance.to_string() == "i-*"
    }
}

impl FromStr for Exposed {
    type Err = String;

    /// Reads `i-bp1 erdma_0/erdma_1`. The error says what is wrong with it, and what to write.
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
                true => Err(wrong("has something else than names and patterns")),
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
    fn what_is_no_pattern() {
        for (text, why) in [
            ("", "two words"),
            ("i-*", "two words"),
            ("i-* erdma_0 erdma_1", "two words"),
            ("erdma_0 i-*", "start with an instance's id"),
            ("i- erdma_0", "start with an instance's id"),
            ("i-* erdma_0/", "names and patterns"),
            ("i-* /erdma_0", "names and patterns"),
            ("i-*: erdma_0", "names and patterns"),
            ("i-* erdma_[0", "without an end"),
        ] {
            let error = text.parse::<Exposed>().expect_err(text);
            assert!(error.contains(why), "{text:?}: {error}");
            assert!(error.contains("i-* erdma_0/erdma_1"), "{error}");
        }
    }
}
