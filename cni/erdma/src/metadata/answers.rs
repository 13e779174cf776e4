// SPDX-License-Identifier: Apache-2.0
//! Strict checks of the metadata service's answers: the daemon makes addresses and routes from them.

use super::MetadataError;
use ipnetwork::Ipv4Network;
use rdma_netns::HardwareAddress;
use std::net::Ipv4Addr;

/// Largest number of characters of a wrong value that an error shows.
const SHOWN: usize = 60;

/// Returns the body as one line without spaces. `place` is the path of the URL, for errors.
///
/// # Errors
/// The body is empty, or is not one word of printable ASCII.
pub fn line(place: &str, body: &[u8]) -> Result<String, MetadataError> {
    let text = String::from_utf8_lossy(body);
    let line = text.trim_ascii_end();
    let is_plain = body.is_ascii() && line.bytes().all(|byte| byte.is_ascii_graphic());
    match line {
        "" => Err(garbage(place, line, "which is empty")),
        _ if !is_plain => Err(garbage(place, line, "which is not one word")),
        _ => Ok(line.to_owned()),
    }
}

/// Returns the address of a NIC with the prefix length of its vSwitch. Each argument is a value, and the path of its
/// URL for errors.
///
/// # Errors
/// A value is malformed, or the network does not contain the address.
pub fn address(
    (address_place, address): (&str, &str),
    (cidr_place, cidr): (&str, &str),
) -> Result<Ipv4Network, MetadataError> {
    let ip = ipv4(address_place, address)?;
    let wrong = |why: &str| garbage(cidr_place, cidr, why);
    let no_network = "which is not an IPv4 network";
    let (network, prefix) = cidr.split_once('/').ok_or_else(|| wrong(no_network))?;
    let network = network.parse().map_err(|_| wrong(no_network))?;
    let is_number = prefix.bytes().all(|byte| byte.is_ascii_digit()) && !prefix.starts_with('0');
    let prefix = prefix.parse().ok().filter(|_| is_number);
    let prefix = prefix.ok_or_else(|| wrong(no_network))?;
    let network = Ipv4Network::new(network, prefix).map_err(|_| wrong(no_network))?;
    if network.ip() != network.network() {
        return Err(wrong("which has host bits"));
    }
    if !network.contains(ip) {
        return Err(wrong(&format!("which does not contain {ip}")));
    }
    let address_of = Ipv4Network::new(ip, prefix).map_err(|_| wrong(no_network))?;
    match unusable(address_of, None) {
        Some(why) => Err(garbage(address_place, address, &why)),
        None => Ok(address_of),
    }
}

/// Returns the router of the network of `address`.
///
/// # Errors
/// The value is malformed, or is an address that no router can have.
pub fn gateway(
    address: Ipv4Network,
    (place, value): (&str, &str),
) -> Result<Ipv4Addr, MetadataError> {
    let gateway = ipv4(place, value)?;
    match unusable(address, Some(gateway)) {
        Some(why) => Err(garbage(place, value, &why)),
        None => Ok(gateway),
    }
}

/// Returns the reason why a NIC cannot have `address`, or why its router cannot have `gateway`. The reason continues a
/// sentence that begins with the value.
pub fn unusable(address: Ipv4Network, gateway: Option<Ipv4Addr>) -> Option<String> {
    let network = Ipv4Network::new(address.network(), address.prefix()).ok()?;
    let ends = |ip| address.prefix() < 31 && (ip == network.network() || ip == network.broadcast());
    let ip = address.ip();
    let is_special = ip.is_unspecified()
        || ip.is_loopback()
        || ip.is_multicast()
        || ip.is_link_local()
        || ip.is_broadcast();
    if !(1..=31).contains(&address.prefix()) {
        return Some("whose network has no room for a NIC and its router".to_owned());
    }
    if is_special || ends(ip) {
        return Some(format!("which no NIC can have in {network}"));
    }
    match gateway {
        Some(gateway) if gateway == ip => Some("which is the NIC's own address".to_owned()),
        Some(gateway) if !network.contains(gateway) => Some(format!("which is not in {network}")),
        Some(gateway) if ends(gateway) => Some(format!("which no router can have in {network}")),
        _ => None,
    }
}

/// Parses a MAC address.
///
/// # Errors
/// The value is malformed.
pub fn mac(place: &str, value: &str) -> Result<HardwareAddress, MetadataError> {
    let mac = value.parse();
    mac.map_err(|_: String| garbage(place, value, "which is not a hardware address"))
}

fn ipv4(place: &str, value: &str) -> Result<Ipv4Addr, MetadataError> {
    let address = value.parse();
    address.map_err(|_| garbage(place, value, "which is not an IPv4 address"))
}

fn garbage(place: &str, value: &str, why: &str) -> MetadataError {
    let mut shown: String = value.chars().take(SHOWN).collect();
    if shown.len() < value.len() {
        shown.push('…');
    }
    MetadataError::Garbage {
        place: place.to_owned(),
        value: shown,
        why: why.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(ip: &str, cidr: &str, router: &str) -> Result<String, String> {
        let address = address(("ip", ip), ("cidr", cidr)).map_err(|error| error.to_string())?;
        let gateway = gateway(address, ("gateway", router)).map_err(|error| error.to_string())?;
        Ok(format!("{address} via {gateway}"))
    }

    #[test]
    fn an_address_is_in_its_network_and_so_is_the_router() {
        assert_eq!(
            whole("10.0.0.5", "10.0.0.0/24", "10.0.0.253"),
            Ok("10.0.0.5/24 via 10.0.0.253".to_owned())
        );
        for (ip, cidr, router, expected) in [
            (
                "10.0.0.256",
                "10.0.0.0/24",
                "10.0.0.253",
                "ip is \"10.0.0.256\"",
            ),
            (
                "010.0.0.5",
                "10.0.0.0/24",
                "10.0.0.253",
                "not an IPv4 address",
            ),
            (
                "fd00::5",
                "10.0.0.0/24",
                "10.0.0.253",
                "not an IPv4 address",
            ),
            (
                "10.0.0.5/24",
                "10.0.0.0/24",
                "10.0.0.253",
                "not an IPv4 address",
            ),
            ("10.0.0.5", "10.0.0.0", "10.0.0.253", "not an IPv4 network"),
            (
                "10.0.0.5",
                "10.0.0.0/024",
                "10.0.0.253",
                "not an IPv4 network",
            ),
            (
                "10.0.0.5",
                "10.0.0.0/+24",
                "10.0.0.253",
                "not an IPv4 network",
            ),
            (
                "10.0.0.5",
                "10.0.0.0/33",
                "10.0.0.253",
                "not an IPv4 network",
            ),
            (
                "10.0.0.5",
                "10.0.0.0/255.255.255.0",
                "10.0.0.253",
                "not an IPv4 network",
            ),
            ("10.0.0.5", "10.0.0.5/24", "10.0.0.253", "host bits"),
            ("10.0.0.5", "0.0.0.0/0", "10.0.0.253", "not an IPv4 network"),
            ("10.0.0.5", "10.0.0.5/32", "10.0.0.5", "no room"),
            (
                "10.0.1.5",
                "10.0.0.0/24",
                "10.0.0.253",
                "does not contain 10.0.1.5",
            ),
            ("10.0.0.0", "10.0.0.0/24", "10.0.0.253", "no NIC can have"),
            ("10.0.0.255", "10.0.0.0/24", "10.0.0.253", "no NIC can have"),
            (
                "127.0.0.5",
                "127.0.0.0/24",
                "127.0.0.253",
                "no NIC can have",
            ),
            (
                "224.0.0.5",
                "224.0.0.0/24",
                "224.0.0.253",
                "no NIC can have",
            ),
            (
                "169.254.0.5",
                "169.254.0.0/24",
                "169.254.0.253",
                "no NIC can have",
            ),
            (
                "10.0.0.5",
                "10.0.0.0/24",
                "10.0.1.253",
                "gateway is \"10.0.1.253\"",
            ),
            ("10.0.0.5", "10.0.0.0/24", "10.0.0.5", "own address"),
            (
                "10.0.0.5",
                "10.0.0.0/24",
                "10.0.0.255",
                "no router can have",
            ),
            ("10.0.0.5", "10.0.0.0/24", "none", "not an IPv4 address"),
        ] {
            let error = whole(ip, cidr, router).expect_err(expected);
            assert!(error.contains(expected), "{error}");
        }
        assert!(whole("10.0.0.4", "10.0.0.4/31", "10.0.0.5").is_ok());
    }

    #[test]
    fn a_line_is_one_word() {
        assert_eq!(line("ip", b"10.0.0.5\n").expect("a word"), "10.0.0.5");
        let long = "<html>".repeat(50);
        for (body, expected) in [
            (&b""[..], "empty"),
            (b"\n\n", "empty"),
            (b"10.0.0.5\n10.0.0.6\n", "one word"),
            (b"10.0.0.5 10.0.0.6", "one word"),
            (b"\xff\xfe10.0.0.5", "one word"),
            ("10.0.0.5\u{a0}".as_bytes(), "one word"),
            (b"10.0.0.5\0", "one word"),
        ] {
            let error = line("ip", body).expect_err(expected).to_string();
            assert!(
                error.contains(expected) && error.contains("ip is"),
                "{error}"
            );
        }
        let error = ipv4("ip", &long).expect_err("no address").to_string();
        assert!(error.contains("<html>") && error.len() < 140, "{error}");
    }
}
