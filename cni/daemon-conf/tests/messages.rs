// SPDX-License-Identifier: Apache-2.0
//! Tests of the message about each wrong value, word for word, and of the result of each right value. In
//! `messages/*.txt`, each line without indentation is a configuration. Below it is the message, or after `taken: ` the
//! configuration that the daemon read, with the remarks.
//!
//! `UPDATE_PLANS=1 cargo test -p daemon-conf --test messages` writes the files again. Read them before you
//! commit them.

use cases::golden;
use daemon_conf::Conf;
use std::path::Path;

#[test]
fn messages_are_as_written() {
    golden::assert_lines_of_each(env!("CARGO_MANIFEST_DIR"), "tests/messages", outcomes);
}

fn outcomes(input: &str) -> Vec<String> {
    match Conf::parse(input, Path::new("f")) {
        Err(error) => vec![error.to_string()],
        Ok(parsed) => {
            let mut taken = golden::debug_fields(&format!("{:?}", parsed.conf));
            let least = Conf::parse(
                "resources: [{name: rdma/hca, kind: shared}]",
                Path::new("f"),
            );
            let least = least.expect("a configuration").conf;
            let least = golden::debug_fields(&format!("{least:?}"));
            taken.retain(|field| !least.contains(field));
            let taken = format!("taken: {}", taken.join(", "));
            let remarks = parsed.remarks.into_iter().map(|it| format!("remark: {it}"));
            [taken].into_iter().chain(remarks).collect()
        }
    }
}
