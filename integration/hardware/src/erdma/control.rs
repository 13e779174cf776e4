// SPDX-License-Identifier: Apache-2.0
//! Orders of a test, one per line. The answer is `ok`, the status, or `error: ` and the reason.
//!
//! | order | effect |
//! |---|---|
//! | `link MAC up`, `link MAC down` | messages pass, or do not pass |
//! | `loss MAC PERCENT` | this percentage of the messages that the function sends is lost |
//! | `delay MAC MILLISECONDS` | messages that the function sends arrive later |
//! | `unplug MAC` | the function falls off its bus: all reads return ones, and the function does nothing |
//! | `plug MAC` | an unplugged function is on its bus again, in its state after power-on |
//! | `no-answer MILLISECONDS` | the time that a request waits for a peer that does not respond; 10000 at start |
//! | `no-receive MILLISECONDS`, `no-receive forever` | the time that a request waits for a receive request of its peer; forever at start |
//! | `status` | a line for each function, and an empty line |
//!
//! An order with `all` instead of a MAC applies to all functions.

use super::{fabric::Fabric, faults::Link};
use crate::orders;
use std::{fmt::Write, time::Duration};

/// Executes an order.
///
/// # Errors
/// The reason why the line is not a valid order.
pub fn order(fabric: &mut Fabric, line: &str) -> Result<String, String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words.as_slice() {
        ["status"] => return Ok(status(fabric)),
        ["no-answer", limit] => fabric.limits.no_answer = milliseconds(limit)?,
        ["no-receive", "forever"] => fabric.limits.no_receive = None,
        ["no-receive", limit] => fabric.limits.no_receive = Some(milliseconds(limit)?),
        ["link", mac, "up"] => links(fabric, mac, |link| link.is_up = true)?,
        ["link", mac, "down"] => links(fabric, mac, |link| link.is_up = false)?,
        ["loss", mac, percent] => {
            let value = percent.parse().ok().filter(|it| *it <= 100);
            let value =
                value.ok_or_else(|| format!("{percent:?} is no percentage from 0 to 100"))?;
            links(fabric, mac, |link| link.loss_percent = value)?;
        }
        ["delay", mac, delay] => {
            let delay = milliseconds(delay)?;
            links(fabric, mac, |link| link.delay = delay)?;
        }
        ["unplug", mac] => links(fabric, mac, |link| link.is_present = false)?,
        ["plug", mac] => {
            for position in positions(fabric, mac)? {
                let device = fabric.device_mut(position);
                if !device.link.is_present {
                    device.reset();
                    device.link.is_present = true;
                }
            }
        }
        _ => return Err(format!("{line:?} is no order")),
    }
    fabric.wake_all();
    Ok("ok\n".to_owned())
}

fn milliseconds(text: &str) -> Result<Duration, String> {
    let value = text.parse().map(Duration::from_millis);
    value.map_err(|_| format!("{text:?} is no number of milliseconds"))
}

fn positions(fabric: &Fabric, mac: &str) -> Result<Vec<usize>, String> {
    orders::named(fabric.devices().iter().map(|it| &*it.name), mac)
}

fn links(fabric: &mut Fabric, mac: &str, change: impl Fn(&mut Link)) -> Result<(), String> {
    for position in positions(fabric, mac)? {
        change(&mut fabric.device_mut(position).link);
    }
    Ok(())
}

fn status(fabric: &Fabric) -> String {
    let mut text = String::new();
    for device in fabric.devices() {
        let link = device.link;
        let state = match (link.is_present, link.is_up) {
            (false, _) => "unplugged",
            (true, false) => "down",
            (true, true) => "up",
        };
        let written = writeln!(
            text,
            "{} {state} loss={} delay={} queue-pairs={} counters={:?}",
            device.name,
            link.loss_percent,
            link.delay.as_millis(),
            device.pairs.len(),
            device.counters
        );
        debug_assert!(written.is_ok(), "a String accepts all text");
    }
    text.push('\n');
    text
}
