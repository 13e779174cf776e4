// SPDX-License-Identifier: Apache-2.0
//! All targets in one program under libFuzzer. `FUZZ_TARGET` names the one that is run; the arguments are libFuzzer's.
//! `scripts/fuzz` builds it, with `--cfg libfuzzer` and code that tells its coverage.

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

/// Without libFuzzer: the targets' names.
#[cfg(not(libfuzzer))]
fn main() {
    for target in fuzz::TARGETS {
        println!("{}", target.name);
    }
}
