// SPDX-License-Identifier: Apache-2.0
//! How much of what can be repeated is repeated: `scripts/test --full` sets `RDMA_TEST_FULL=1`.
//! What differs is in `docs/dev/testing.md`.

/// Whether this is a full run.
pub fn is_full() -> bool {
    std::env::var("RDMA_TEST_FULL").is_ok_and(|value| value == "1")
}

/// `full` in a full run, else `usual`.
pub fn of<T>(usual: T, full: T) -> T {
    if is_full() { full } else { usual }
}
