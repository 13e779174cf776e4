// SPDX-License-Identifier: Apache-2.0
//! Flags of the eRDMA agent (`cmd/agent/main.go` of alibabacloud-erdma-controller). A flag overrides the configuration
//! file. A remark names the flag if the file sets another value.

use crate::{
    Allocate, Conf, Erdma, Ids, Parsed, ResourceName,
    erdma::{Origin, Patterns, RESOURCE},
    own::MTU,
    reporters,
};
use ::erdma::conf::{BringUp, DriverMode};
use clap::Args;

/// Flags named like the eRDMA agent's flags. The configuration file is optional if one of these flags is set.
#[derive(Args, Clone, Debug, Default, PartialEq)]
#[group(id = "erdma", multiple = true)]
pub struct Flags {
    /// Mode of the eRDMA driver: default, compat or ofed; an empty value keeps the mode
    #[arg(long, value_name = "MODE", value_parser = driver)]
    pub prefer_driver: Option<Preferred>,
    /// Gives a container all NICs for an id of aliyun/erdma, instead of one NIC
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_parser = boolean)]
    pub allocate_all_devices: Option<bool>,
    /// Has no effect of its own: the daemon always discovers NICs on the node. Each flag of the eRDMA agent turns on
    /// the bring-up of eRDMA NICs with a configuration in another program's format
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_parser = boolean)]
    pub local_eri_discovery: Option<bool>,
    /// Selects the used NICs by instance: 'i-bp1 erdma_0/erdma_1,i-* erdma_*'. With such patterns, containers get all
    /// selected NICs, unless --allocate-all-devices=false. An empty value selects all NICs
    #[arg(long, value_name = "PATTERNS", value_parser = exposed)]
    pub exposed_local_eris: Option<Patterns>,
    /// MTU of NICs that the daemon brings up, if they support it
    #[arg(long, value_name = "BYTES", value_parser = mtu)]
    pub jumbo_frame_mtu: Option<u32>,
}

/// Value of `--prefer-driver`; `None`: the value is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preferred(pub Option<DriverMode>);

fn driver(text: &str) -> Result<Preferred, String> {
    match text {
        "" => Ok(Preferred(None)),
        text => text.parse().map(|mode| Preferred(Some(mode))),
    }
}

/// Parses a boolean like Go's `strconv.ParseBool`, by which the eRDMA agent reads its flags.
fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("must be true or false".to_owned()),
    }
}

fn exposed(text: &str) -> Result<Patterns, String> {
    if text.trim().is_empty() {
        return Ok(Patterns(Vec::new()));
    }
    let patterns = text.split(',').map(str::parse);
    patterns.collect::<Result<_, _>>().map(Patterns)
}

/// Parses an MTU. Zero means the default of [`BringUp`].
fn mtu(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(0) => Ok(BringUp::default().mtu),
        Ok(mtu) if MTU.contains(&mtu) => Ok(mtu),
        _ => Err(format!(
            "must be a number of bytes from {} to {}",
            MTU.start(),
            MTU.end()
        )),
    }
}

impl Flags {
    /// Returns true if a flag was set.
    pub fn any(&self) -> bool {
        *self != Self::default()
    }

    /// Returns the default configuration without a file, before [`apply`](Self::apply) applies the flags.
    pub(super) fn alone(&self) -> Parsed {
        let erdma = Erdma::default();
        // `ok` hides no error: a test checks that the name is valid
        let name = ResourceName::new(RESOURCE).ok();
        Parsed {
            conf: Conf {
                resources: name.map(|name| erdma.resource(name)).into_iter().collect(),
                erdma,
                reporters: reporters::default(),
                ..Conf::default()
            },
            remarks: Vec::new(),
        }
    }

    /// Overrides values of `parsed` by the flags.
    pub(super) fn apply(&self, parsed: &mut Parsed) {
        if !self.any() {
            return;
        }
        let Parsed { conf, remarks } = parsed;
        let erdma = &mut conf.erdma;
        let by_file = erdma.origin == Origin::User;
        if erdma.origin == Origin::Foreign {
            *erdma = Erdma::default();
        }
        erdma.origin = Origin::User;
        let mut wins = |flag: String, field: &str, differs: bool| {
            if by_file && differs {
                remarks.push(format!("{flag} overrides erdma.{field} of the file"));
            }
        };
        if let Some(Preferred(mode)) = self.prefer_driver {
            let word = mode.map_or("", DriverMode::word);
            let differs = erdma.prefer_driver.is_some() && erdma.prefer_driver != mode;
            wins(format!("--prefer-driver={word}"), "preferDriver", differs);
            erdma.prefer_driver = mode;
        }
        if let Some(Patterns(patterns)) = &self.exposed_local_eris {
            let differs = !erdma.exposed.is_empty() && erdma.exposed != *patterns;
            wins(
                "--exposed-local-eris".to_owned(),
                "exposedLocalERIs",
                differs,
            );
            erdma.exposed.clone_from(patterns);
        }
        if let Some(mtu) = self.jumbo_frame_mtu {
            let flag = format!("--jumbo-frame-mtu={mtu}");
            match &mut erdma.bring_up {
                Some(bring_up) => {
                    let differs = ![mtu, BringUp::default().mtu].contains(&bring_up.mtu);
                    wins(flag, "jumboFrameMTU", differs);
                    bring_up.mtu = mtu;
                }
                None => remarks.push(format!("{flag}: has no effect with configureNICs: false")),
            }
        }
        if self.local_eri_discovery == Some(false) {
            let why = "ignored, because the daemon itself discovers the NICs, without a controller";
            remarks.push(format!("--local-eri-discovery=false: {why}"));
        }
        if let Some(all) = self.allocates_all() {
            self.allocate(all, conf, remarks);
        }
    }

    /// Returns true if a container gets all NICs: by `--allocate-all-devices`, or without this flag if
    /// `--exposed-local-eris` has patterns, as in the eRDMA agent. Returns `None` if neither flag decides.
    fn allocates_all(&self) -> Option<bool> {
        let named = self.exposed_local_eris.as_ref();
        let together = named.filter(|patterns| !patterns.0.is_empty());
        self.allocate_all_devices.or(together.map(|_| true))
    }

    fn allocate(&self, all: bool, conf: &mut Conf, remarks: &mut Vec<String>) {
        let (required, word) = match all {
            true => (Allocate::All, "all"),
            false => (Allocate::Numa, "numa"),
        };
        let mut resources = conf.resources.iter_mut();
        let resource = resources.find(|it| it.name.as_str() == RESOURCE);
        let flag = match self.allocate_all_devices {
            Some(all) => format!("--allocate-all-devices={all}"),
            None => "--exposed-local-eris".to_owned(),
        };
        let Some(resource) = resource else {
            remarks.push(format!(
                "{flag}: has no effect, because the configuration has no resource {RESOURCE}"
            ));
            return;
        };
        match &mut resource.ids {
            Ids::Shared { allocate, .. } | Ids::PerNic { allocate, .. } => {
                if *allocate != required && resource.place != "erdma" {
                    let place = &resource.place;
                    remarks.push(format!(
                        "{flag} sets {place}.allocate to {word}, and overrides the file"
                    ));
                }
                *allocate = required;
            }
            Ids::Exclusive => {
                let place = &resource.place;
                remarks.push(format!(
                    "{flag}: has no effect, because {place} is exclusive"
                ));
            }
        }
    }
}
