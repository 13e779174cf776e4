// SPDX-License-Identifier: Apache-2.0
//! Orders of a test, one per line. The answer is `ok`, the status, or `error: ` and the reason.
//!
//! | order | effect |
//! |---|---|
//! | `link MAC up`, `link MAC down` | frames pass, or do not pass; the driver gets an event |
//! | `syndrome MAC NUMBER` | the firmware reports this error in the health buffer; 0 means no error |
//! | `unplug MAC` | the function falls off its bus: all reads return ones, and the function does nothing |
//! | `plug MAC` | an unplugged function is on its bus again, in its state after power-on |
//! | `status` | a line for each function, and an empty line |
//!
//! An order with `all` instead of a MAC applies to all functions.

use super::{fabric::Fabric, function::Function};
use crate::orders;
use std::fmt::Write;

/// Executes an order.
///
/// # Errors
/// The reason why the line is not a valid order.
pub fn order(fabric: &mut Fabric, line: &str) -> Result<String, String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words.as_slice() {
        ["status"] => return Ok(status(fabric)),
        ["link", mac, "up"] => each(fabric, mac, |it| it.change_link(|it| it.link.is_up = true))?,
        ["link", mac, "down"] => {
            each(fabric, mac, |it| it.change_link(|it| it.link.is_up = false))?;
        }
        ["syndrome", mac, number] => {
            let number = number
                .parse()
                .map_err(|_| format!("{number:?} is no syndrome"))?;
            each(fabric, mac, |it| it.registers.set_syndrome(number))?;
        }
        ["unplug", mac] => each(fabric, mac, |it| it.link.is_present = false)?,
        ["plug", mac] => each(fabric, mac, |it| {
            if !it.link.is_present {
                it.reset();
                it.link.is_present = true;
            }
        })?,
        _ => return Err(format!("{line:?} is no order")),
    }
    Ok("ok\n".to_owned())
}

fn each(fabric: &mut Fabric, mac: &str, change: impl Fn(&mut Function)) -> Result<(), String> {
    let found = orders::named(fabric.functions().iter().map(|it| &*it.name), mac)?;
    (found.into_iter()).for_each(|position| change(fabric.function_mut(position)));
    Ok(())
}

fn status(fabric: &Fabric) -> String {
    let mut text = String::new();
    for function in fabric.functions() {
        let state = match (function.link.is_present, function.has_carrier()) {
            (false, _) => "unplugged",
            (true, false) => "down",
            (true, true) => "up",
        };
        let (started, bonded) = (function.is_started, function.lag.is_some());
        let addresses = function.vport.roce_addresses().count();
        let written = writeln!(
            text,
            "{} {state} started={started} bonded={bonded} roce-addresses={addresses}",
            function.name
        );
        debug_assert!(written.is_ok(), "a String accepts all text");
    }
    text.push('\n');
    text
}
