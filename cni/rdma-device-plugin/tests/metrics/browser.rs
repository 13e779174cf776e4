// SPDX-License-Identifier: Apache-2.0
//! A real browser without a window, which makes screenshots.

use std::{env, fs, path::Path, process::Command};

/// A browser whose files are in `directory`. `width` and `height` are the size of its window in
/// pixels.
#[derive(Clone, Copy)]
pub(crate) struct Browser<'a> {
    pub(crate) directory: &'a Path,
    pub(crate) width: u32,
    pub(crate) height: u32,
}

impl Browser<'_> {
    pub(crate) fn run(&self, arguments: &[&str]) -> String {
        let program = env::var_os("RDMA_BROWSER");
        let program = program
            .expect("RDMA_BROWSER is not set: export RDMA_BROWSER=$(integration/browser/fetch)");
        let size = format!("--window-size={},{}", self.width, self.height);
        let output = Command::new(program)
            .args(["--hide-scrollbars", &size])
            .args(arguments)
            .current_dir(self.directory)
            .output()
            .expect("a browser");
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{errors}");
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    pub(crate) fn picture(&self, url: &str, is_dark: bool) -> Vec<u8> {
        // enum PreferredColorScheme of Chromium: 0 dark, 1 light
        let scheme = if is_dark { 0 } else { 1 };
        let scheme = format!("--blink-settings=preferredColorScheme={scheme}");
        self.run(&["--screenshot=page.png", &scheme, url]);
        fs::read(self.directory.join("page.png")).expect("a picture")
    }
}

/// Returns width and height of a PNG, which are at its beginning (IHDR).
pub(crate) fn size(png: &[u8]) -> (u32, u32) {
    assert!(png.starts_with(b"\x89PNG\r\n\x1a\n"), "no PNG");
    let number = |at: usize| {
        let bytes = png[at..at + 4].try_into().expect("four bytes");
        u32::from_be_bytes(bytes)
    };
    (number(16), number(20))
}
