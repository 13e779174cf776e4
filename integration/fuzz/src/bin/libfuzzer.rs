// SPDX-License-Identifier: Apache-2.0
//! All targets in one program under libFuzzer. `FUZZ_TARGET` names the target to run; the arguments are libFuzzer's.
//! `scripts/fuzz` builds the program with `--cfg libfuzzer` and coverage instrumentation.

#![cfg_attr(libfuzzer, no_main)]

#[cfg(libfuzzer)]
use std::sync::LazyLock;

#[cfg(libfuzzer)]
static TARGET: LazyLock<fuzz::Target> = LazyLock::new(|| {
    let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
    fuzz::find(&name).unwrap_or_else(|| panic!("FUZZ_TARGET={name:?} is no target"))
});

#[cfg(libfuzzer)]
libfuzzer_sys::fuzz_target!(|input: &[u8]| (TARGET.run)(input));

/// Prints the names of the targets, in a build without libFuzzer.
#[cfg(not(libfuzzer))]
fn main() {
    for target in fuzz::TARGETS {
        println!("{}", target.name);
    }
}
