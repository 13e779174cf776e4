// SPDX-License-Identifier: Apache-2.0
//! The eRDMA agent's flags (`cmd/agent/main.go` of alibabacloud-erdma-controller): each wins over
//! what the file says, and that is told.

use super::{
    Allocate, Conf, Erdma, Ids, Parsed, ResourceName,
    erdma::{Origin, Patterns, RESOURCE},
    own::MTU,
};
use ::erdma::conf::{BringUp, DriverMode};
use clap::Args;

/// Flags with the eRDMA agent's names. With one of them there need be no file.
#[derive(Args, Clone, Debug, Default, PartialEq)]
#[group(id = "erdma", multiple = true)]
pub struct Flags {
    /// Mode of the eRDMA driver: default, compat or ofed; without a value it stays as it is
    #[arg(long, value_name = "MODE", value_parser = driver)]
    pub prefer_driver: Option<Preferred>,
    /// A container of aliyun/erdma gets all NICs instead of one near its CPUs
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_parser = boolean)]
    pub allocate_all_devices: Option<bool>,
    /// NICs are looked for on the node, as they always are
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_parser = boolean)]
    pub local_eri_discovery: Option<bool>,
    /// The NICs that are used, by instance: 'i-bp1 erdma_0/erdma_1,i-* erdma_*'; without a value
    /// all. With it a container gets all NICs, unless --allocate-all-devices=false
    #[arg(long, value_name = "PATTERNS", value_parser = exposed)]
    pub exposed_local_eris: Option<Patterns>,
    /// MTU of NICs that the daemon brings up, where they can have so much
    #[arg(long, value_name = "BYTES", value_parser = mtu)]
    pub jumbo_frame_mtu: Option<u32>,
}

/// `--prefer-driver`; none: without a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preferred(pub Option<DriverMode>);

fn driver(text: &str) -> Result<Preferred, String> {
    match text {
        "" => Ok(Preferred(None)),
        text => text.parse().map(|mode| Preferred(Some(mode))),
    }
}

/// As Go's `strconv.ParseBool`, which reads the agent's.
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

/// Zero is the agent's own choice, as it is there.
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
    /// Whether one was given.
    pub fn any(&self) -> bool {
        *self != Self::default()
    }

    /// What is configured where there is no file.
    pub(super) fn alone(&self) -> Parsed {
        let erdma = Erdma::default();
        // the name is a resource's, as a test says
        let name = ResourceName::new(RESOURCE).ok();
        Parsed {
            conf: Conf {
                resources: name.map(|name| erdma.resource(name)).into_iter().collect(),
                cdi: false,
                erdma,
                chain: None,
                dra: None,
                errors: Vec::new(),
            },
            remarks: Vec::new(),
        }
    }

    /// Puts the flags in the place of what `parsed` has.
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
                remarks.push(format!("{flag} wins over erdma.{field} of the file"));
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
                None => remarks.push(format!("{flag}: of no use with configureNICs: false")),
            }
        }
        if self.local_eri_discovery == Some(false) {
            let why = "there is no controller to ask: NICs are looked for on the node all the same";
            remarks.push(format!("--local-eri-discovery=false: {why}"));
        }
        if let Some(all) = self.allocates_all() {
            self.allocate(all, conf, remarks);
        }
    }

    /// Whether a container gets all NICs; none: no flag says. As with the agent, named NICs are
    /// allocated together.
    fn allocates_all(&self) -> Option<bool> {
        let named = self.exposed_local_eris.as_ref();
        let together = named.filter(|patterns| !patterns.0.is_empty());
        self.allocate_all_devices.or(together.map(|_| true))
    }

    fn allocate(&self, all: bool, conf: &mut Conf, remarks: &mut Vec<String>) {
        let (wanted, word) = match all {
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
            remarks.push(format!("{flag}: the file has no resource {RESOURCE}"));
            return;
        };
        match &mut resource.ids {
            Ids::Shared { allocate, .. } | Ids::PerNic { allocate, .. } => {
                if *allocate != wanted && resource.place != "erdma" {
                    let place = &resource.place;
                    remarks.push(format!(
                        "{flag} wins over the file: {place}.allocate is {word}"
                    ));
                }
                *allocate = wanted;
            }
            Ids::Exclusive => {
                let place = &resource.place;
                remarks.push(format!("{flag}: of no use, as {place} is exclusive"));
            }
        }
    }
}
