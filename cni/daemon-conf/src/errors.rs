// SPDX-License-Identifier: Apache-2.0
//! Section `errors`, which a configuration file of any format can have.
//! `docs/device-plugin-conf.md` describes its fields.

use conf_reader::{Field, Number, Wrong};
use serde::{Deserialize, Deserializer, de::Error};
use serde_json::Value;
use std::{ops::RangeInclusive, time::Duration};

pub(super) const FIELD: &str = "errors";

/// Range of `per` in seconds. The daemon reads a counter at least ten times within `per`, at intervals of 1 s to 30 s.
const PER: RangeInclusive<u64> = 10..=3600;

/// Longest accepted name of a counter or a reporter, in bytes.
const LONGEST_NAME: usize = 64;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Threshold {
    #[serde(deserialize_with = "counter")]
    counter: String,
    above: Number<0, { u32::MAX }>,
    per: Option<Value>,
}

/// Threshold of an error counter. A device is unhealthy if the counter grows by more than `above`
/// within `per`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorThreshold {
    /// Place in the configuration file, such as `errors[0]`.
    pub place: String,
    /// Name of the counter's file in `ports/N/counters` or `ports/N/hw_counters`.
    pub counter: String,
    /// Largest number of errors within [`per`](Self::per) with which a device stays healthy.
    pub above: u64,
    /// Period in which the daemon counts errors, from 10 s to an hour.
    pub per: Duration,
}

fn counter<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let name = String::deserialize(deserializer)?;
    match is_name(&name) {
        true => Ok(name),
        false => Err(D::Error::custom(format!(
            "must be the name of a file in ports/N/counters or ports/N/hw_counters, as symbol_error, \
             and is {name:?}"
        ))),
    }
}

/// Returns true if `name` has the form of the kernel's names for counters and health reporters.
pub(super) fn is_name(name: &str) -> bool {
    let inner = |it: u8| it.is_ascii_alphanumeric() || it == b'_' || it == b'-';
    (1..=LONGEST_NAME).contains(&name.len()) && name.bytes().all(inner)
}

/// Parses a period such as `60s`, `5m` or `1h`. Returns `None` for a period outside [`PER`].
fn period(value: &Value) -> Option<Duration> {
    let text = value.as_str()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let unit = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return None,
    };
    let is_number = digits.bytes().all(|it| it.is_ascii_digit());
    let number: u64 = is_number.then(|| digits.parse().ok())??;
    let seconds = number.checked_mul(unit)?;
    PER.contains(&seconds).then(|| Duration::from_secs(seconds))
}

pub(super) fn read(file: &Field<'_>) -> Result<Vec<ErrorThreshold>, Wrong> {
    let field = file.at(FIELD);
    let Some(list) = field.read::<Option<Vec<Threshold>>>()? else {
        return Ok(Vec::new());
    };
    if list.is_empty() {
        let sentence = "must have at least one threshold; remove this field to read no counter";
        return Err(field.refused(sentence));
    }
    let thresholds = field.each(list, |it, field| {
        let must =
            "must be a whole number of seconds, minutes or hours from 10s to 1h, as 60s or 5m";
        Ok(ErrorThreshold {
            place: field.place().to_owned(),
            counter: it.counter,
            above: it.above.0.into(),
            per: it
                .per
                .as_ref()
                .and_then(period)
                .ok_or_else(|| field.at("per").wrong(must))?,
        })
    })?;
    for (index, it) in thresholds.iter().enumerate() {
        let is_same = |other: &&ErrorThreshold| other.counter == it.counter && other.per == it.per;
        if let Some(same) = thresholds[..index].iter().find(is_same) {
            let sentence = format!(
                "{} already has a threshold with this per in {}; give one of the two another per",
                it.counter, same.place
            );
            return Err(field.element(index).refused(sentence));
        }
    }
    Ok(thresholds)
}
