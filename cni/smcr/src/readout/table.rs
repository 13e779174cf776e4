// SPDX-License-Identifier: Apache-2.0
//! Formats the state of SMC-R as text.

use conf_reader::one_line;
use rdma_netns::smc::{Connection, LinkGroup, Mode, Overview, PnetEntry, SmcPort};
use std::{
    fmt::Write as _,
    net::{Ipv6Addr, SocketAddr},
};

pub(super) fn of(overview: &Overview) -> String {
    let mut text = String::new();
    let mut section = |title: &str, lines: Vec<String>| {
        let _ = writeln!(
            text,
            "{title}{}",
            if lines.is_empty() { ": none" } else { "" }
        );
        for line in lines {
            // escape the line, because pods choose the names of their netdevs
            let _ = writeln!(text, "  {}", one_line(line.trim_end()));
        }
    };
    let entries = overview.pnet_entries.iter();
    section("Pnet entries", entries.map(pnet_entry).collect());
    section(
        "RDMA ports",
        overview.rdma_ports.iter().map(rdma_port).collect(),
    );
    section("User EIDs", overview.user_eids.clone());
    let groups = overview.link_groups.iter();
    section("Link groups", groups.flat_map(link_group).collect());
    let mut connections = vec![];
    if !overview.connections.is_empty() {
        connections.push(row("State", "Inode", "Local", "Peer", "Mode", ""));
        connections.extend(overview.connections.iter().map(connection));
    }
    section("Connections", connections);
    text
}

fn pnet_entry(entry: &PnetEntry) -> String {
    let of = match (&entry.netdev, &entry.rdma) {
        (_, Some((device, port))) => format!("RDMA device {device} port {port}"),
        (netdev, None) => format!("netdev {}", netdev.as_deref().unwrap_or("?")),
    };
    format!("{:<16}  {of}", entry.name)
}

fn rdma_port(port: &SmcPort) -> String {
    let source = if port.by_user {
        "by the table"
    } else {
        "by the hardware"
    };
    let id = match &port.pnet_id {
        Some(id) => format!("pnet id {id}, {source}"),
        None => "no pnet id".to_owned(),
    };
    let state = if port.active { "active" } else { "not active" };
    format!("{} port {}: {state}, {id}", port.device, port.port)
}

fn link_group(group: &LinkGroup) -> Vec<String> {
    let mut first = format!(
        "{}: SMC-Rv{}, {}, pnet id {}, connections: {}",
        group.id,
        group.version,
        if group.is_server { "server" } else { "client" },
        group.pnet_id,
        group.connections,
    );
    if let Some(eid) = &group.eid {
        let _ = write!(first, ", EID {eid}");
    }
    if let Some(host) = &group.peer_host {
        let _ = write!(first, ", peer {host}");
    }
    let links = group.links.iter().map(|link| {
        format!(
            "  link {}: {} port {}, {}, {} to {}",
            link.id,
            link.device,
            link.port,
            link.state,
            gid(link.gid),
            gid(link.peer_gid),
        )
    });
    [first].into_iter().chain(links).collect()
}

fn connection(connection: &Connection) -> String {
    let end = |end: Option<SocketAddr>| end.map_or_else(|| "-".to_owned(), |end| end.to_string());
    let inode = match connection.inode {
        0 => "-".to_owned(),
        inode => inode.to_string(),
    };
    row(
        &connection.state.to_string(),
        &inode,
        &end(connection.local),
        &end(connection.peer),
        &mode(connection),
        &remark(connection),
    )
}

/// Returns the connection's mode. Returns `-` for a socket without a peer: the kernel reports SMCR for every such
/// socket.
fn mode(connection: &Connection) -> String {
    match connection.peer {
        None => "-".to_owned(),
        Some(_) => connection.mode.to_string(),
    }
}

/// Returns the RDMA device and port, or the reason why the connection uses TCP. Empty if the kernel reports neither.
fn remark(connection: &Connection) -> String {
    match (connection.mode, &connection.link, &connection.fallback) {
        (Mode::Smcr, Some(link), _) => format!("{} port {}", link.device, link.port),
        (_, _, Some(fallback)) => {
            let mut text = fallback.reason.to_string();
            if let Some(peer) = fallback.peer {
                let _ = write!(text, ": {peer}");
            }
            let advice = fallback.peer.and_then(|peer| peer.advice());
            if let Some(advice) = advice.or(fallback.reason.advice()) {
                let _ = write!(text, "; {advice}");
            }
            text
        }
        _ => String::new(),
    }
}

/// Formats a GID, in IPv4 notation if it is an IPv4 address.
fn gid(gid: Option<Ipv6Addr>) -> String {
    let text = |gid: Ipv6Addr| match gid.to_ipv4_mapped() {
        Some(ipv4) => ipv4.to_string(),
        None => gid.to_string(),
    };
    gid.map_or_else(|| "?".to_owned(), text)
}

fn row(state: &str, inode: &str, local: &str, peer: &str, mode: &str, remark: &str) -> String {
    format!("{state:<15} {inode:>8}  {local:<25} {peer:<25} {mode:<4}  {remark}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdma_netns::smc::{ConnectionLink, Fallback, GroupLink, LinkState, PnetId, Reason, State};

    fn entry(name: &str, netdev: Option<&str>, rdma: Option<&str>) -> PnetEntry {
        PnetEntry {
            name: PnetId::try_from(name).expect("a pnet id"),
            netdev: netdev.map(str::to_owned),
            rdma: rdma.map(|device| (device.to_owned(), 1)),
        }
    }

    fn socket(state: State, mode: Mode, local: &str, peer: Option<&str>) -> Connection {
        let address = |text: &str| text.parse().expect("an address");
        Connection {
            state,
            mode,
            local: Some(address(local)),
            peer: peer.map(address),
            uid: 0,
            inode: 1393,
            link: None,
            fallback: None,
        }
    }

    fn port(device: &str, id: Option<&str>, active: bool) -> SmcPort {
        SmcPort {
            device: device.to_owned(),
            port: 1,
            pnet_id: id.map(str::to_owned),
            by_user: id.is_some(),
            active,
        }
    }

    fn gid(text: &str) -> Option<Ipv6Addr> {
        Some(text.parse().expect("a GID"))
    }

    #[test]
    fn a_name_that_a_pod_chose_steers_no_terminal() {
        let overview = Overview {
            pnet_entries: vec![entry("NET1", Some("a\u{1b}[2J"), None)],
            ..Overview::default()
        };
        let text = of(&overview);
        assert!(text.contains("netdev a\\u{1b}[2J\n"), "{text}");
    }

    #[test]
    fn all_there_is() {
        let peer = Some("10.9.0.2:43906");
        let link = ConnectionLink {
            id: 1,
            device: "erdma_0".to_owned(),
            port: 1,
            gid: None,
            peer_gid: None,
        };
        let declined = Fallback {
            reason: Reason(0x0500_0000),
            peer: Some(Reason(0x0303_0008)),
        };
        let overview = Overview {
            pnet_entries: vec![
                entry("02005E0AFF01", Some("eth0"), None),
                entry("02005E0AFF01", None, Some("erdma_0")),
            ],
            rdma_ports: vec![
                port("erdma_0", Some("02005E0AFF01"), true),
                port("erdma_1", None, false),
            ],
            user_eids: vec!["RDMA.CNI".to_owned()],
            link_groups: vec![LinkGroup {
                id: "00000100".to_owned(),
                is_server: true,
                version: 2,
                pnet_id: "02005E0AFF01".to_owned(),
                connections: 1,
                netns_cookie: 7,
                eid: Some("RDMA.CNI".to_owned()),
                peer_host: Some("node-2".to_owned()),
                links: vec![GroupLink {
                    id: 1,
                    device: "erdma_0".to_owned(),
                    port: 1,
                    gid: gid("::ffff:10.9.0.1"),
                    peer_gid: gid("fe80::1"),
                    connections: 1,
                    state: LinkState(3),
                }],
            }],
            connections: vec![
                socket(State::LISTEN, Mode::Smcr, "10.9.0.1:7000", None),
                Connection {
                    link: Some(link),
                    ..socket(State::ACTIVE, Mode::Smcr, "10.9.0.1:7000", peer)
                },
                Connection {
                    fallback: Some(declined),
                    inode: 0,
                    ..socket(State::ACTIVE, Mode::Tcp, "10.9.0.1:7000", peer)
                },
            ],
        };
        let expected = "\
Pnet entries
  02005E0AFF01      netdev eth0
  02005E0AFF01      RDMA device erdma_0 port 1
RDMA ports
  erdma_0 port 1: active, pnet id 02005E0AFF01, by the table
  erdma_1 port 1: not active, no pnet id
User EIDs
  RDMA.CNI
Link groups
  00000100: SMC-Rv2, server, pnet id 02005E0AFF01, connections: 1, EID RDMA.CNI, peer node-2
    link 1: erdma_0 port 1, active, 10.9.0.1 to fe80::1
Connections
  State              Inode  Local                     Peer                      Mode
  LISTEN              1393  10.9.0.1:7000             -                         -
  ACTIVE              1393  10.9.0.1:7000             10.9.0.2:43906            SMCR  erdma_0 port 1
  ACTIVE                 -  10.9.0.1:7000             10.9.0.2:43906            TCP   the peer declined (0x05000000): no user EID in common with the peer (0x03030008); set the same user EID on both nodes (smcUeid)
";
        assert_eq!(of(&overview), expected);
    }

    #[test]
    fn nothing_at_all() {
        let expected = "\
Pnet entries: none
RDMA ports: none
User EIDs: none
Link groups: none
Connections: none
";
        assert_eq!(of(&Overview::default()), expected);
    }
}
