// SPDX-License-Identifier: Apache-2.0
//! Capabilities of this program (`capabilities(7)`).

use std::{fs, io};

/// Number of the bit of `CAP_DAC_OVERRIDE` in a set (`include/uapi/linux/capability.h`). With this capability, a program
/// can use files of any mode and owner.
pub const CAP_DAC_OVERRIDE: u32 = 1;

/// Returns the effective capabilities of the calling thread, as a set of bits. `None`: the kernel does not list them.
///
/// # Errors
/// `/proc/thread-self/status` cannot be read.
pub fn effective() -> io::Result<Option<u64>> {
    let status = fs::read_to_string("/proc/thread-self/status")?;
    Ok(effective_in(&status))
}

fn effective_in(status: &str) -> Option<u64> {
    let set = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(set.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_effective_set_is_read() {
        let status = "Name:\tx\nCapPrm:\t000001ffffffffff\nCapEff:\t0000000000001800\n";
        assert_eq!(effective_in(status), Some(0x1800));
        assert_eq!(effective_in("Name:\tx\nCapEff:\tall\n"), None);
    }
}
