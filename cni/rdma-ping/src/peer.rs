// SPDX-License-Identifier: Apache-2.0
//! The other pod of `--exchange`. Both pods listen on the same TCP port of the pod network, and each pod is a client of
//! the other.
//!
//! 1. The server sends its [`List`], one line of JSON. It closes connections of clients whose address is not the other
//!    pod's.
//! 2. The client keeps the connection while it sends RDMA requests, and then sends the line `done`.
//! 3. The server keeps its rails until this line arrives, or until its time limit.
//!
//! Pods of one cluster reach each other without address translation, so a client's address proves which pod it is.

use crate::list::{List, is_name};
use std::{
    io::{self, Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs},
    str::FromStr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{self, Receiver, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};

/// Longest list, in bytes.
const LONGEST: usize = 64 * 1024;
/// Largest number of simultaneous clients. The server closes further connections.
const MOST_CLIENTS: usize = 16;
/// Time limit for making a connection, for reading a list, and for each write.
const STEP: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(500);
/// Form of a [`Place`], as the text of an error.
const FORM: &str = "must be NAME:PORT, with a port from 1 to 65535";
/// Last line that a client sends.
const END: &[u8] = b"done\n";

/// Address or Service, and port, by which the two pods find each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Name of a headless Service, or the other pod's address.
    name: String,
    /// TCP port on which both pods listen.
    port: u16,
}

impl FromStr for Place {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, port) = text.rsplit_once(':').ok_or(FORM)?;
        let name = name.trim_start_matches('[').trim_end_matches(']');
        let port = port.parse().ok().filter(|it| *it > 0);
        match (is_name(name), port) {
            (true, Some(port)) => Ok(Self {
                name: name.to_owned(),
                port,
            }),
            _ => Err(FORM),
        }
    }
}

impl Place {
    /// Listens on the port for IPv6 and IPv4, or only for IPv4 if the kernel has no IPv6.
    pub(crate) fn listen(&self) -> io::Result<TcpListener> {
        TcpListener::bind((Ipv6Addr::UNSPECIFIED, self.port))
            .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, self.port)))
    }
}

/// Reason why the other pod cannot be reached.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MeetError {
    #[error(
        "no other pod answers at {}, TCP port {}: {why}; check that both pods run, each on its node (kubectl get pods \
         -o wide), and that no network policy is in the way",
        .place.name, .place.port
    )]
    Absent { place: Place, why: String },
    #[error("{peer} sent no valid list of rails: {why}; check that both pods have the same image")]
    NoList { peer: SocketAddr, why: String },
}

/// The other pod. It keeps its rails until this value is dropped.
pub(crate) struct Peer {
    pub(crate) list: List,
    connection: TcpStream,
}

impl Drop for Peer {
    fn drop(&mut self) {
        // ignore the error: a peer that has ended does not wait
        let _ = self.connection.write_all(END);
    }
}

/// Addresses of the other pod, from the last answer of the resolver.
#[derive(Clone, Default)]
pub(crate) struct Others(Arc<Mutex<Vec<IpAddr>>>);

impl Others {
    fn addresses(&self) -> MutexGuard<'_, Vec<IpAddr>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if `client` has one of the other pod's addresses.
    fn have(&self, client: &TcpStream) -> bool {
        // on an IPv6 socket, IPv4 clients have mapped addresses
        let address = client.peer_addr().map(|it| it.ip().to_canonical());
        address.is_ok_and(|it| self.addresses().contains(&it))
    }
}

/// Connects to the other pod of `place`, and reads its list. `own` are the addresses of this pod. Stores the other
/// pod's addresses in `others`.
///
/// # Errors
/// No pod answers in time, or the answer is not a list.
pub(crate) fn meet(
    place: &Place,
    own: &[IpAddr],
    others: &Others,
    until: Instant,
) -> Result<Peer, MeetError> {
    loop {
        let why = match (&*place.name, place.port).to_socket_addrs() {
            Err(error) => format!("the name cannot be resolved ({error})"),
            Ok(found) => {
                let mut why = "the name resolves to no other pod's address".to_owned();
                let found: Vec<_> = found.filter(|it| !own.contains(&it.ip())).collect();
                *others.addresses() = found.iter().map(|it| it.ip().to_canonical()).collect();
                for peer in found {
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

/// Connects to `peer`, and returns the line that it sends, and the connection.
fn list_of(peer: SocketAddr) -> io::Result<(Vec<u8>, TcpStream)> {
    let mut connection = TcpStream::connect_timeout(&peer, STEP)?;
    connection.set_write_timeout(Some(STEP))?;
    let line = read_line(&mut connection, LONGEST, Instant::now() + STEP)?;
    match line.is_empty() {
        true => Err(io::Error::other(
            "it closed the connection, as it does not know the address of this pod: the Service must be headless (clusterIP: \
             None), and no proxy may change this pod's address",
        )),
        false => Ok((line, connection)),
    }
}

/// Reads until a newline, until the end of the stream, or until `longest` bytes were read.
///
/// # Errors
/// An error of the kernel, or `TimedOut` after `until`.
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

/// Sends this pod's list to other pods.
pub(crate) struct Server(Receiver<()>);

impl Server {
    /// Sends the list to the clients in `others` until the process ends. Closes a connection that takes longer than
    /// `timeout`.
    pub(crate) fn start(
        listener: TcpListener,
        list: &List,
        others: &Others,
        timeout: Duration,
    ) -> io::Result<Self> {
        let mut line = serde_json::to_vec(list)?;
        line.push(b'\n');
        let line: Arc<[u8]> = line.into();
        let others = others.clone();
        let (done, is_done) = mpsc::channel();
        let serve = move || {
            for mut client in listener.incoming().flatten() {
                // one reference belongs to this loop, and one to each client
                if Arc::strong_count(&line) > MOST_CLIENTS || !others.have(&client) {
                    continue;
                }
                let (line, done) = (Arc::clone(&line), done.clone());
                // ignore the error: a client without a thread tries again
                let _ = thread::Builder::new().spawn(move || {
                    let until = Instant::now() + timeout;
                    client.set_write_timeout(Some(STEP))?;
                    client.write_all(&line)?;
                    if read_line(&mut client, END.len(), until)? == END {
                        // ignore the error: the receiver may be dropped
                        let _ = done.send(());
                    }
                    io::Result::Ok(())
                });
            }
        };
        thread::Builder::new().spawn(serve)?;
        Ok(Self(is_done))
    }

    /// Waits until the other pod no longer needs this pod's rails. Returns false after `until`.
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
        List::of(Some(name), &[])
    }

    /// Returns a server for clients of this host.
    fn server(listener: TcpListener, name: &str) -> (Server, Others) {
        let others = Others::default();
        *others.addresses() = vec![Ipv4Addr::LOCALHOST.into()];
        let server = Server::start(listener, &list(name), &others, STEP);
        (server.expect("started"), others)
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(100)
    }

    /// Returns the client's error for a peer that sends `bytes` and closes the connection.
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
        let met = meet(&place, &[], &Others::default(), soon());
        met.err().expect("no list").to_string()
    }

    #[test]
    fn two_pods_have_each_others_rails_until_both_are_done() {
        let listeners = [listener(), listener()];
        let places = [place(&listeners[1]), place(&listeners[0])];
        let servers = listeners
            .into_iter()
            .zip(["a", "b"])
            .map(|(listener, name)| server(listener, name));
        let servers: Vec<(Server, Others)> = servers.collect();
        let peers = [0, 1].map(|it| meet(&places[it], &[], &servers[it].1, soon()).expect("met"));
        let names = peers.each_ref().map(|it| &*it.list.name);
        assert_eq!(names, ["b", "a"]);
        assert_eq!(peers[0].list, list("b"));
        assert!(!servers[0].0.wait(soon()), "b still pings");
        drop(peers);
        for (server, _) in &servers {
            assert!(server.wait(Instant::now() + STEP), "the other one is done");
        }
    }

    /// A scanner connects and closes the connection. This must not end the server's wait for the other pod.
    #[test]
    fn a_client_that_only_closes_is_not_done() {
        let listener = listener();
        let place = place(&listener);
        let (server, others) = server(listener, "a");
        drop(TcpStream::connect((&*place.name, place.port)).expect("connected"));
        assert!(!server.wait(soon()));
        drop(meet(&place, &[], &others, soon()).expect("met"));
        assert!(server.wait(Instant::now() + STEP));
    }

    /// Any pod of the network can connect, and keep the connection open.
    #[test]
    fn a_stranger_gets_no_list_takes_no_place_and_ends_nothing() {
        let listener = listener();
        let place = place(&listener);
        let (server, others) = server(listener, "a");
        *others.addresses() = vec![Ipv4Addr::new(127, 0, 0, 2).into()];
        let stranger = |_| {
            let mut client = TcpStream::connect((&*place.name, place.port)).expect("connected");
            let _ = client.write_all(END);
            let line = read_line(&mut client, LONGEST, Instant::now() + STEP);
            // the server closes the connection before it reads
            assert_eq!(line.unwrap_or_default(), b"");
            client
        };
        let strangers: Vec<TcpStream> = (0..=MOST_CLIENTS).map(stranger).collect();
        assert!(!server.wait(soon()), "a stranger is done");
        drop(meet(&place, &[], &others, soon()).expect("met"));
        assert!(server.wait(Instant::now() + STEP));
        drop(strangers);
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
                server(place.listen().expect("the port"), "b")
            }
        };
        let server = thread::spawn(start);
        let others = Others::default();
        let peer = meet(&place, &[], &others, Instant::now() + STEP).expect("met");
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
            (&own[..], "the name resolves to no other pod's address"),
        ] {
            let met = meet(&place, own, &Others::default(), Instant::now());
            let error = met.err().expect("nobody");
            let begin = format!(
                "no other pod answers at 127.0.0.1, TCP port {}: {why}",
                place.port
            );
            assert!(error.to_string().starts_with(&begin), "{error}");
        }
        let unknown: Place = "nobody.invalid:7471".parse().expect("a place");
        let met = meet(&unknown, &[], &Others::default(), Instant::now());
        let error = met.err().expect("nobody");
        assert!(
            error.to_string().contains("the name cannot be resolved"),
            "{error}"
        );
    }

    #[test]
    fn a_peer_that_sends_no_list_is_one_sentence() {
        let error = refused(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        assert!(
            error.contains(" sent no valid list of rails: expected value"),
            "{error}"
        );
        assert!(refused(b"").contains("does not answer (it closed the connection, "));
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
