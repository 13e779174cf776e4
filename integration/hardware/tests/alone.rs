// SPDX-License-Identifier: Apache-2.0
//! The package builds outside of this repository: its manifest inherits nothing from a workspace, and has no path
//! outside of its directory.

const MANIFEST: &str = include_str!("../Cargo.toml");

#[test]
fn a_copy_of_the_directory_needs_nothing_around_it() {
    for inherited in ["workspace = true", ".workspace", "path = \"../"] {
        assert!(!MANIFEST.contains(inherited), "{inherited}: {MANIFEST}");
    }
}
