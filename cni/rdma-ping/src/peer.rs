// SPDX-License-Identifier: Apache-2.0
//! The other pod of `--exchange`. Both pods listen on one TCP port of the pod network, and each sends the list of its
//! rails, a line of JSON, to whoever connects. A client keeps its connection while it pings, and ends it with the line
//! `done`: until then the server's rails stay.

use crate::rails::Rail;
use serde::{Deserialize, Serialize};
use std::{
    fs,
    io::{self, Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs},
    str::FromStr,
    sync::{
        Arc,
        mpsc::{self, Receiver, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};

/// Longest list, in bytes.
const LONGEST: usize = 64 * 1024;
/// Most rails of a list.
const MOST_RAILS: usize = 64;
/// Most addresses of a rail.
const MOST_ADDRESSES: usize = 16;
/// Most clients at the same time. Further ones are closed.
const MOST_CLIENTS: usize = 16;
/// Time for one connection, and for one list.
const STEP: Duration = Duration::from_secs(5);
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(500);
/// What a client ends with.
const END: &[u8] = b"done\n";

/// Where the two pods find each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// A headless Service, or the other pod's address.
    name: String,
    /// TCP port of both.
    port: u16,
}

impl FromStr for Place {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, port) = text.rsplit_once(':').ok_or("must be NAME:PORT")?;
        let name = name.trim_start_matches('[').trim_end_matches(']');
        let port = port.parse().ok().filter(|it| *it > 0);
        match (is_name(name), port) {
            (true, Some(port)) => Ok(Self {
                name: name.to_owned(),
                port,
            }),
            _ => Err("must be NAME:PORT"),
        }
    }
}

impl Place {
    /// Listens on the port, with IPv6 and IPv4 or what the kernel has of them.
    pub(crate) fn listen(&self) -> io::Result<TcpListener> {
        TcpListener::bind((Ipv6Addr::UNSPECIFIED, self.port))
            .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, self.port)))
    }
}

/// Returns true for the name of a pod, node or Service, and for an address.
pub(crate) fn is_name(text: &str) -> bool {
    let is_part = |it: u8| it.is_ascii_alphanumeric() || b".-_:".contains(&it);
    (1..=253).contains(&text.len()) && text.bytes().all(is_part)
}

/// What a pod tells of itself. Unknown fields are ignored.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct List {
    /// Name of the node, or of the pod.
    pub(crate) name: String,
    rails: Vec<ListedRail>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ListedRail {
    netdev: String,
    addresses: Vec<IpAddr>,
}

impl List {
    /// The list of the own `rails`; without `name` under the host's name.
    pub(crate) fn of(name: Option<&str>, rails: &[Rail]) -> Self {
        let host = || fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let name = name.map_or_else(host, str::to_owned);
        let rail = |it: &Rail| ListedRail {
            netdev: it.netdev.clone(),
            addresses: it.addresses.iter().copied().take(MOST_ADDRESSES).collect(),
        };
        Self {
            name: name.trim().to_owned(),
            rails: rails.iter().map(rail).collect(),
        }
    }

    /// Reads what a peer sent.
    ///
    /// # Errors
    /// Why it is no list.
    fn parse(line: &[u8]) -> Result<Self, String> {
        let list: Self = serde_json::from_slice(line).map_err(|error| error.to_string())?;
        let is_netdev =
            |it: &str| (1..=15).contains(&it.len()) && it.bytes().all(|it| it.is_ascii_graphic());
        let is_host = |it: &IpAddr| {
            !(it.is_unspecified() || it.is_loopback() || it.is_multicast())
                && *it != IpAddr::V4(Ipv4Addr::BROADCAST)
        };
        let mut netdevs: Vec<&str> = list.rails.iter().map(|it| &*it.netdev).collect();
        netdevs.sort_unstable();
        netdevs.dedup();
        if !is_name(&list.name) {
            return Err("the name is invalid".to_owned());
        }
        if list.rails.len() > MOST_RAILS {
            return Err(format!("it has more than {MOST_RAILS} rails"));
        }
        if netdevs.len() < list.rails.len() || !netdevs.iter().all(|it| is_netdev(it)) {
            return Err("the name of a netdev is invalid".to_owned());
        }
        for ListedRail { netdev, addresses } in &list.rails {
            if addresses.len() > MOST_ADDRESSES || !addresses.iter().all(is_host) {
                return Err(format!("an address of {netdev} is invalid"));
            }
        }
        Ok(list)
    }

    /// The rails.
    pub(crate) fn rails(&self) -> Vec<Rail> {
        let rail = |it: &ListedRail| Rail::new(it.netdev.clone(), None, it.addresses.clone());
        self.rails.iter().map(rail).collect()
    }
}

/// The other pod cannot be met.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MeetError {
    #[error(
        "no other pod of {} answers on TCP port {}: {why}; check that both pods run, each on its node (kubectl get pods -o \
         wide), and that no network policy is in the way",
        .place.name, .place.port
    )]
    Absent { place: Place, why: String },
    #[error("{peer} sent no list of rails: {why}; check that both pods have the same image")]
    NoList { peer: SocketAddr, why: String },
}

/// The other pod, which keeps its rails until this is dropped.
pub(crate) struct Peer {
    pub(crate) list: List,
    connection: TcpStream,
}

impl Drop for Peer {
    fn drop(&mut self) {
        // a peer that is gone does not wait
        let _ = self.connection.write_all(END);
    }
}

/// Connects to the other pod of `place`, whose addresses are not among `own`, and reads its list.
///
/// # Errors
/// Nobody answers until then, or somebody who sends no list.
pub(crate) fn meet(place: &Place, own: &[IpAddr], until: Instant) -> Result<Peer, MeetError> {
    loop {
        let why = match (&*place.name, place.port).to_socket_addrs() {
            Err(error) => format!("the name is not resolved ({error})"),
            Ok(found) => {
                let mut why = "the name has no other pod's address".to_owned();
                for peer in found.filter(|it| !own.contains(&it.ip())) {
                    match list_of(peer) {
                        Ok((line, connection)) => {
                            let list = List::parse(&line);
                            let list = list.map_err(|why| MeetError::NoList { peer, why })?;
                            return Ok(Peer { list, connection });
                        }
                        Err(error) => why = format!("{} does not answer ({error})", peer.ip()),
                    }
                }
                why
            }
        };
        if Instant::now() >= until {
            let place = place.clone();
            return Err(MeetError::Absent { place, why });
        }
        thread::sleep(PAUSE);
    }
}

/// The line that `peer` sends, and the connection.
fn list_of(peer: SocketAddr) -> io::Result<(Vec<u8>, TcpStream)> {
    let mut connection = TcpStream::connect_timeout(&peer, STEP)?;
    connection.set_write_timeout(Some(STEP))?;
    let line = read_line(&mut connection, LONGEST, Instant::now() + STEP)?;
    match line.is_empty() {
        true => Err(io::ErrorKind::UnexpectedEof.into()),
        false => Ok((line, connection)),
    }
}

/// Bytes until a newline, the end of the stream, or `longest`.
///
/// # Errors
/// The kernel's, or `TimedOut`.
fn read_line(stream: &mut TcpStream, longest: usize, until: Instant) -> io::Result<Vec<u8>> {
    let mut line = vec![];
    let mut part = [0; 4096];
    while line.len() < longest && line.last() != Some(&b'\n') {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        let most = part.len().min(longest - line.len());
        match stream.read(&mut part[..most]) {
            Ok(0) => break,
            Ok(count) => line.extend_from_slice(&part[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(io::ErrorKind::TimedOut.into());
            }
            Err(error) => return Err(error),
        }
    }
    Ok(line)
}

/// Sends the own list to other pods.
pub(crate) struct Server(Receiver<()>);

impl Server {
    /// Serves the list until the process ends. A client that takes more than `patience` is left.
    pub(crate) fn start(
        listener: TcpListener,
        list: &List,
        patience: Duration,
    ) -> io::Result<Self> {
        let mut line = serde_json::to_vec(list)?;
        line.push(b'\n');
        let line: Arc<[u8]> = line.into();
        let (done, is_done) = mpsc::channel();
        let serve = move || {
            for mut client in listener.incoming().flatten() {
                // one of them is the loop's own
                if Arc::strong_count(&line) > MOST_CLIENTS {
                    continue;
                }
                let (line, done) = (Arc::clone(&line), done.clone());
                // a client without a thread tries again
                let _ = thread::Builder::new().spawn(move || {
                    let until = Instant::now() + patience;
                    client.set_write_timeout(Some(STEP))?;
                    client.write_all(&line)?;
                    if read_line(&mut client, END.len(), until)? == END {
                        // nobody waits any more
                        let _ = done.send(());
                    }
                    io::Result::Ok(())
                });
            }
        };
        thread::Builder::new().spawn(serve)?;
        Ok(Self(is_done))
    }

    /// Waits until the other pod needs the own rails no more. Returns false if that is not so in time.
    pub(crate) fn wait(&self, until: Instant) -> bool {
        let left = until.saturating_duration_since(Instant::now());
        self.0.recv_timeout(left) != Err(RecvTimeoutError::Timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Shutdown;

    fn listener() -> TcpListener {
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port")
    }

    fn place(listener: &TcpListener) -> Place {
        let address = listener.local_addr().expect("an address");
        address.to_string().parse().expect("a place")
    }

    fn list(name: &str) -> List {
        let addresses = ["fd00::1", "10.0.0.1"].map(|it| it.parse().expect("an address"));
        let rail = Rail::new(
            "rdma0".to_owned(),
            Some("mlx5_0".to_owned()),
            addresses.to_vec(),
        );
        List::of(Some(name), &[rail])
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(100)
    }

    /// The error of a client whose peer sends `bytes` and closes.
    fn refused(bytes: &'static [u8]) -> String {
        let listener = listener();
        let place = place(&listener);
        let serve = move || {
            for mut client in listener.incoming().flatten() {
                let _ = client.write_all(bytes);
                let _ = client.shutdown(Shutdown::Write);
            }
        };
        thread::spawn(serve);
        let met = meet(&place, &[], soon());
        met.err().expect("no list").to_string()
    }

    #[test]
    fn two_pods_have_each_others_rails_until_both_are_done() {
        let listeners = [listener(), listener()];
        let places = [place(&listeners[1]), place(&listeners[0])];
        let servers = listeners
            .into_iter()
            .zip(["a", "b"])
            .map(|(listener, name)| Server::start(listener, &list(name), STEP).expect("started"));
        let servers: Vec<Server> = servers.collect();
        let peers = places
            .each_ref()
            .map(|it| meet(it, &[], soon()).expect("met"));
        let names = peers.each_ref().map(|it| &*it.list.name);
        assert_eq!(names, ["b", "a"]);
        assert_eq!(peers[0].list, list("b"));
        assert!(!servers[0].wait(soon()), "b still pings");
        drop(peers);
        for server in &servers {
            assert!(server.wait(Instant::now() + STEP), "the other one is done");
        }
    }

    /// A scanner that connects and closes is not the other pod.
    #[test]
    fn a_client_that_only_closes_is_not_done() {
        let listener = listener();
        let place = place(&listener);
        let server = Server::start(listener, &list("a"), STEP).expect("started");
        drop(TcpStream::connect((&*place.name, place.port)).expect("connected"));
        assert!(!server.wait(soon()));
        drop(meet(&place, &[], soon()).expect("met"));
        assert!(server.wait(Instant::now() + STEP));
    }

    #[test]
    fn a_peer_that_comes_later_is_met() {
        let later = listener();
        let place = place(&later);
        drop(later);
        let start = {
            let place = place.clone();
            move || {
                thread::sleep(PAUSE);
                Server::start(place.listen().expect("the port"), &list("b"), STEP).expect("started")
            }
        };
        let server = thread::spawn(start);
        let peer = meet(&place, &[], Instant::now() + STEP).expect("met");
        assert_eq!(peer.list.name, "b");
        drop((peer, server.join()));
    }

    #[test]
    fn nobody_is_one_sentence_with_its_reason() {
        let gone = listener();
        let place = place(&gone);
        drop(gone);
        let own = [IpAddr::from(Ipv4Addr::LOCALHOST)];
        for (own, why) in [
            (&[][..], "127.0.0.1 does not answer (Connection refused"),
            (&own[..], "the name has no other pod's address"),
        ] {
            let error = meet(&place, own, Instant::now()).err().expect("nobody");
            let begin = format!(
                "no other pod of 127.0.0.1 answers on TCP port {}: {why}",
                place.port
            );
            assert!(error.to_string().starts_with(&begin), "{error}");
        }
        let unknown: Place = "nobody.invalid:7471".parse().expect("a place");
        let error = meet(&unknown, &[], Instant::now()).err().expect("nobody");
        assert!(
            error.to_string().contains("the name is not resolved"),
            "{error}"
        );
    }

    #[test]
    fn what_is_no_list_is_refused_in_words() {
        for (bytes, why) in [
            (&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], "expected value"),
            (b"{}\n", "missing field"),
            (b"{\"name\":\"b\",\"rails\":[", "EOF"),
            (b"{\"name\":\"\\u001b[2J\",\"rails\":[]}\n", "the name is invalid"),
            (
                b"{\"name\":\"b\",\"rails\":[{\"netdev\":\"a b\",\"addresses\":[]}]}\n",
                "the name of a netdev is invalid",
            ),
            (
                b"{\"name\":\"b\",\"rails\":[{\"netdev\":\"a\",\"addresses\":[]},{\"netdev\":\"a\",\"addresses\":[]}]}\n",
                "the name of a netdev is invalid",
            ),
            (
                b"{\"name\":\"b\",\"rails\":[{\"netdev\":\"a\",\"addresses\":[\"ff02::1\"]}]}\n",
                "an address of a is invalid",
            ),
        ] {
            let error = refused(bytes);
            let words = [" sent no list of rails: ", why];
            assert!(words.iter().all(|it| error.contains(it)), "{error}");
        }
        assert!(refused(b"").contains("does not answer"));
        let rail = "{\"netdev\":\"eth\",\"addresses\":[]}";
        let many = (0..=MOST_RAILS).map(|it| rail.replace("eth", &format!("eth{it}")));
        let many = many.collect::<Vec<_>>().join(",");
        let many = format!("{{\"name\":\"b\",\"rails\":[{many}]}}");
        let error = List::parse(many.as_bytes()).expect_err("too many");
        assert_eq!(error, "it has more than 64 rails");
    }

    #[test]
    fn an_endless_line_and_a_silent_peer_have_an_end() {
        let listener = listener();
        let address = listener.local_addr().expect("an address");
        let mut client = TcpStream::connect(address).expect("connected");
        let (mut peer, _) = listener.accept().expect("accepted");
        peer.write_all(&[b'['; 100]).expect("written");
        let line = read_line(&mut client, 64, Instant::now() + STEP).expect("read");
        assert_eq!(line.len(), 64);
        let error = read_line(&mut client, 64, soon()).expect_err("silent");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn a_place_is_a_name_and_a_port() {
        let place: Place = "rdma-verify:7471".parse().expect("a place");
        assert_eq!((&*place.name, place.port), ("rdma-verify", 7471));
        let place: Place = "[fd00::1]:7471".parse().expect("a place");
        assert_eq!(&*place.name, "fd00::1");
        for text in ["", "a", ":1", "a:", "a:0", "a:65536", "a b:1", "a/b:1"] {
            assert!(text.parse::<Place>().is_err(), "{text:?}");
        }
    }
}
