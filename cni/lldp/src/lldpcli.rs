// SPDX-License-Identifier: Apache-2.0
//! Parser of the output of `lldpcli -f json0 show neighbors` and `-f json`.
//!
//! `json0` always uses lists of objects, and has each text in a field `value`. `json` differs in three ways: it
//! replaces a list of one element by this element, writes a text without `value`, and uses names of netdevs and
//! systems as field names.

use crate::{Neighbour, printable};
use serde_json::Value;

/// Returns pairs of a netdev and one of its neighbours. Omits neighbours without identifiers or TTL.
///
/// # Errors
/// The text is not JSON, or has no `lldp` in lldpd's format.
pub fn neighbours(text: &str) -> Result<Vec<(String, Neighbour)>, String> {
    let output: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let lldp = one(&output["lldp"]);
    if !lldp.is_object() {
        return Err(
            "the text has no field lldp: pass the output of lldpcli -f json0 show neighbors".into(),
        );
    }
    let interfaces = list(&lldp["interface"]).iter().flat_map(interfaces);
    let neighbours = interfaces.filter_map(|(netdev, it)| Some((netdev, neighbour(it)?)));
    Ok(neighbours.collect())
}

/// Returns the elements of a list, or another value as the only element. Returns no element for `null`.
fn list(value: &Value) -> &[Value] {
    match value {
        Value::Array(list) => list,
        Value::Null => &[],
        one => std::slice::from_ref(one),
    }
}

/// Returns the first element of a list, or the value itself.
fn one(value: &Value) -> &Value {
    list(value).first().unwrap_or(&Value::Null)
}

/// Returns the netdevs of an element with their fields. The element is one netdev with its name in `name`, or an
/// object with a field for each netdev.
fn interfaces(element: &Value) -> Vec<(String, &Value)> {
    match (&element["name"], element) {
        (Value::String(name), _) => vec![(name.clone(), element)],
        (_, Value::Object(named)) => {
            let named = named.iter();
            named
                .flat_map(|(name, it)| list(it).iter().map(|it| (name.clone(), it)))
                .collect()
        }
        _ => vec![],
    }
}

fn neighbour(interface: &Value) -> Option<Neighbour> {
    let chassis = one(&interface["chassis"]);
    let port = one(&interface["port"]);
    // json without a system name has the chassis's fields directly; with a system name, this name is the only field
    let (name, chassis) = match chassis.as_object()?.iter().next()? {
        (name, fields) if text(&chassis["id"]).is_none() => (printable(name.as_bytes()), fields),
        _ => (text(&chassis["name"]), chassis),
    };
    Some(Neighbour {
        chassis: text(&chassis["id"])?,
        port_id: text(&port["id"])?,
        name,
        description: text(&port["descr"]),
        ttl: text(&port["ttl"])?.parse().ok()?,
    })
}

/// Returns a text. It is in the field `value`, or is the value itself.
fn text(value: &Value) -> Option<String> {
    let text = match one(value) {
        Value::Object(fields) => fields.get("value")?,
        text => text,
    };
    printable(text.as_str()?.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn one_of(text: &str) -> Neighbour {
        let mut all = neighbours(text).expect("lldpd's");
        let (netdev, neighbour) = all.pop().expect("a neighbour");
        assert_eq!((netdev.as_str(), all.len()), ("ens1", 0));
        neighbour
    }

    /// The texts are the output of lldpd 1.0.16 on a node with two NICs.
    #[test]
    fn both_formats_of_lldpd_are_read() {
        for text in [
            include_str!("../tests/real/neighbors.json"),
            include_str!("../tests/real/neighbors.json0"),
        ] {
            let all = neighbours(text).expect("lldpd's");
            let ports = all
                .iter()
                .map(|(netdev, it)| (&**netdev, it.switch(), it.port(), it.ttl));
            let expected = [
                ("ens1", "leaf1.example.org", "swp1", 120),
                ("ens2", "leaf1.example.org", "swp2", 120),
            ];
            assert_eq!(ports.collect::<Vec<_>>(), expected);
            assert_eq!(all[0].1.chassis, "d2:1f:90:e4:10:f5");
        }
    }

    #[test]
    fn a_single_netdev_and_a_chassis_without_a_name() {
        let ids = r#""port":{"id":{"type":"ifname","value":"Ethernet1/1"},"ttl":"120"}"#;
        for (chassis, switch) in [
            (
                r#"{"id":{"type":"mac","value":"00:11:22:33:44:55"}}"#,
                "00:11:22:33:44:55",
            ),
            (r#"{"id":{"id":{"type":"local","value":"x"}}}"#, "id"),
            (
                r#"{"a\u001b[2J\u202eb":{"id":{"type":"local","value":"x"}}}"#,
                "a?[2J???b",
            ),
        ] {
            let text =
                format!(r#"{{"lldp":{{"interface":{{"ens1":{{"chassis":{chassis},{ids}}}}}}}}}"#);
            let neighbour = one_of(&text);
            assert_eq!(
                (neighbour.switch(), neighbour.port()),
                (switch, "Ethernet1/1")
            );
        }
    }

    #[test]
    fn others_are_refused_or_empty() {
        for text in ["", "{}", "[]", r#"{"lldp":7}"#, "{\"lldp\":"] {
            assert!(neighbours(text).is_err(), "{text}");
        }
        for text in [
            r#"{"lldp":{}}"#,
            r#"{"lldp":[{}]}"#,
            r#"{"lldp":{"interface":[7,{"ens1":{}},{"name":"ens1","chassis":[],"port":[]}]}}"#,
        ] {
            assert_eq!(neighbours(text), Ok(vec![]), "{text}");
        }
    }
}
