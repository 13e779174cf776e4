// SPDX-License-Identifier: Apache-2.0
//! Number of repetitions: `scripts/test --full` sets `RDMA_TEST_FULL=1`. `docs/dev/testing.md` lists the differences.

/// Returns true in a full run.
pub fn is_full() -> bool {
    std::env::var("RDMA_TEST_FULL").is_ok_and(|value| value == "1")
}

/// Returns `full` in a full run, else `usual`.
pub fn of<T>(usual: T, full: T) -> T {
    if is_full() { full } else { usual }
}
