// SPDX-License-Identifier: Apache-2.0
//! Addresses of the API server, from kubelet's own configuration.

use std::{fs, net::IpAddr};

/// Paths of kubelet's kubeconfig: the first with kubeadm and on ACK, the second on EKS and AKS.
const KUBECONFIGS: [&str; 2] = [
    "/etc/kubernetes/kubelet.conf",
    "/var/lib/kubelet/kubeconfig",
];

/// Returns the addresses of the API servers in kubelet's kubeconfigs. Omits host names, because ADD would have to
/// wait for a name server.
pub(super) fn addresses() -> Vec<IpAddr> {
    let texts = KUBECONFIGS
        .iter()
        .filter_map(|file| fs::read_to_string(file).ok());
    texts.flat_map(|text| named(&text)).collect()
}

/// Returns the API servers that a kubeconfig names by IP address, as in `server: https://192.0.2.1:6443`. Omits
/// loopback addresses.
pub fn named(kubeconfig: &str) -> Vec<IpAddr> {
    let servers = kubeconfig.lines().filter_map(|line| {
        let value = line
            .trim()
            .trim_start_matches("- ")
            .strip_prefix("server:")?;
        let url = value.trim().trim_matches(['"', '\'']);
        let authority = url.split_once("://").map_or(url, |(_, rest)| rest);
        let authority = authority.split('/').next()?;
        let host = match authority.strip_prefix('[') {
            Some(ipv6) => ipv6.split(']').next()?,
            None => authority.split(':').next()?,
        };
        host.parse::<IpAddr>().ok()
    });
    servers.filter(|server| !server.is_loopback()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_by_address() {
        let ip = |text: &str| vec![text.parse::<IpAddr>().expect("an address")];
        for (line, expected) in [
            ("    server: https://192.0.2.1:6443", ip("192.0.2.1")),
            ("    server: \"https://192.0.2.1\"", ip("192.0.2.1")),
            ("- server: https://[2001:db8::1]:6443/", ip("2001:db8::1")),
            ("    server: https://api.example.com:6443", vec![]),
            ("    server: https://127.0.0.1:6444", vec![]),
            ("    server:", vec![]),
            ("    name: server", vec![]),
        ] {
            let text = format!("apiVersion: v1\nclusters:\n- cluster:\n{line}\n");
            assert_eq!(named(&text), expected, "{line}");
        }
    }
}
