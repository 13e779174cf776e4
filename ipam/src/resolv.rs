// SPDX-License-Identifier: Apache-2.0
//! Field `resolvConf`: conversion of a file like `/etc/resolv.conf` (resolv.conf(5)) to the result's `dns`.

use serde_json::{Map, Value};

/// Returns the `dns` object of the file's `text`.
pub fn dns(text: &str) -> Value {
    let (mut nameservers, mut search, mut options) = (vec![], vec![], vec![]);
    let mut domain = None;
    for line in text.lines() {
        if line.starts_with(['#', ';']) {
            continue;
        }
        let mut words = line.split_whitespace();
        let keyword = words.next();
        let mut words = words.map(Value::from);
        match keyword {
            Some("nameserver") => nameservers.extend(words.next()),
            Some("domain") => domain = words.next().or(domain),
            Some("search") => search.extend(words),
            Some("options") => options.extend(words),
            _ => {}
        }
    }
    let mut dns = Map::new();
    for (name, list) in [
        ("nameservers", nameservers),
        ("search", search),
        ("options", options),
    ] {
        if !list.is_empty() {
            dns.insert(name.into(), list.into());
        }
    }
    dns.extend(domain.map(|domain| ("domain".into(), domain)));
    Value::Object(dns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn all_of_it() {
        let text = "# made by hand\nnameserver 10.0.0.53\nnameserver fd00::53\n;x\n\
                    domain a.example\nsearch a.example b.example\noptions ndots:2 edns0\n";
        assert_eq!(
            dns(text),
            json!({
                "nameservers": ["10.0.0.53", "fd00::53"],
                "domain": "a.example",
                "search": ["a.example", "b.example"],
                "options": ["ndots:2", "edns0"],
            })
        );
        assert_eq!(dns("\n"), json!({}));
    }
}
