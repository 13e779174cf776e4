// SPDX-License-Identifier: Apache-2.0
//! Tests that the suite has every rule.

use std::{fs, path::Path};

#[test]
fn every_rule_is_in_the_suite() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let suite = fs::read_to_string(sources.join("lib.rs")).expect("the suite");
    let mut rules = 0;
    for source in fs::read_dir(&sources).expect("the modules") {
        let path = source.expect("a module").path();
        let module = path.file_stem().expect("a name").to_string_lossy();
        let listed = suite.split_once(&format!(" {module} {{"));
        let listed = listed.and_then(|(_, rest)| rest.split_once('}'));
        let listed: Vec<&str> = listed.map_or(vec![], |(it, _)| it.split_whitespace().collect());
        let text = fs::read_to_string(&path).expect("a source");
        let functions = text.lines().filter_map(|line| line.strip_prefix("pub fn "));
        let names = functions.filter_map(|it| it.split_once('(').map(|(name, _)| name));
        if module != "ops" {
            let names: Vec<&str> = names.collect();
            assert_eq!(names.len(), listed.len(), "{module}");
            assert!(
                names.iter().all(|it| listed.contains(it)),
                "{module}: {names:?}"
            );
            rules += names.len();
        }
    }
    assert!(rules > 50, "{rules}");
}
