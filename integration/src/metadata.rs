// SPDX-License-Identifier: Apache-2.0
//! Stand-in for the cloud's metadata service: real HTTP on loopback. A test sets its behaviour.

use crate::wait;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrIn, bind, getsockname, listen, socket,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    io::{BufRead, BufReader, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    os::fd::{AsRawFd, OwnedFd},
    sync::{Arc, Mutex, MutexGuard},
    thread::{self, JoinHandle},
    time::Duration,
};

const TOKEN: &str = "/latest/api/token";

/// Behaviour of the service.
#[derive(Clone, Debug)]
pub struct Behaviour {
    /// Status of the answer to a PUT for a token. `None`: the service issues a token.
    pub no_tokens: Option<u16>,
    /// True if a GET needs a token.
    pub requires_token: bool,
    /// Status of the answer to every GET. `None`: the service answers from its items.
    pub status: Option<u16>,
    /// Number of further requests to answer with 503.
    pub busy: u32,
    /// Delay before each answer.
    pub delay: Duration,
    /// Complete answers by path, as bytes on the wire.
    pub raw: BTreeMap<String, Vec<u8>>,
    /// Bodies of answers by path.
    pub values: BTreeMap<String, Vec<u8>>,
}

#[derive(Debug)]
struct State {
    behaviour: Behaviour,
    tokens: BTreeSet<String>,
    given: u32,
    requests: Vec<String>,
    ends: bool,
}

/// A running service. Drop ends it.
#[derive(Debug)]
pub struct MetadataService {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    server: Option<JoinHandle<()>>,
}

impl Default for MetadataService {
    fn default() -> Self {
        Self::new()
    }
}

impl MetadataService {
    /// Starts a service that requires tokens. Its instance is `i-bp1` without NICs.
    #[track_caller]
    pub fn new() -> Self {
        Self::at(Ipv4Addr::LOCALHOST, 0)
    }

    /// Starts a service like [`Self::new`], at an address of this namespace. Port 0 means any free
    /// port.
    #[track_caller]
    pub fn at(ip: Ipv4Addr, port: u16) -> Self {
        let listener = TcpListener::bind((ip, port)).expect("a free port");
        let address = listener.local_addr().expect("an address");
        let values = BTreeMap::from([(
            "/latest/meta-data/instance-id".to_owned(),
            b"i-bp1".to_vec(),
        )]);
        let behaviour = Behaviour {
            no_tokens: None,
            requires_token: true,
            status: None,
            busy: 0,
            delay: Duration::ZERO,
            raw: BTreeMap::new(),
            values,
        };
        let state = Arc::new(Mutex::new(State {
            behaviour,
            tokens: BTreeSet::new(),
            given: 0,
            requests: vec![],
            ends: false,
        }));
        let serving = state.clone();
        let server = Some(thread::spawn(move || serve(&listener, &serving)));
        Self {
            address,
            state,
            server,
        }
    }

    /// Returns the value to configure as the service's address.
    pub fn base(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Adds the NIC with `mac` to the service's items.
    pub fn add_nic(&self, mac: &str, address: &str, cidr: &str, gateway: &str) {
        self.set(mac, "primary-ip-address", Some(address.as_bytes()));
        self.set(mac, "vswitch-cidr-block", Some(cidr.as_bytes()));
        self.set(mac, "gateway", Some(gateway.as_bytes()));
    }

    /// Sets an item of the NIC with `mac`. `None`: the answer is 404.
    pub fn set(&self, mac: &str, item: &str, value: Option<&[u8]>) {
        let path = nic_path(mac, item);
        self.behave(|behaviour| match value {
            Some(value) => drop(behaviour.values.insert(path, value.to_vec())),
            None => drop(behaviour.values.remove(&path)),
        });
    }

    /// Sets the hardware address of the instance's primary NIC. `None`: the answer is 404.
    pub fn set_primary(&self, mac: Option<&str>) {
        let path = "/latest/meta-data/mac".to_owned();
        self.behave(|behaviour| match mac {
            Some(mac) => drop(behaviour.values.insert(path, mac.into())),
            None => drop(behaviour.values.remove(&path)),
        });
    }

    /// Changes the service's behaviour.
    pub fn behave(&self, change: impl FnOnce(&mut Behaviour)) {
        change(&mut self.lock().behaviour);
    }

    /// Invalidates the issued tokens.
    pub fn expire_tokens(&self) {
        self.lock().tokens.clear();
    }

    /// Returns the requests in the order of their arrival, such as `PUT /latest/api/token` and `GET
    /// …`.
    pub fn requests(&self) -> Vec<String> {
        self.lock().requests.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("the service's state")
    }
}

/// Returns the path of a NIC's item.
pub fn nic_path(mac: &str, item: &str) -> String {
    format!("/latest/meta-data/network/interfaces/macs/{mac}/{item}")
}

impl Drop for MetadataService {
    fn drop(&mut self) {
        if let Ok(mut state) = self.state.lock() {
            state.ends = true;
        }
        // wakes the thread that waits for a connection
        let _ = TcpStream::connect(self.address);
        if let Some(server) = self.server.take() {
            let _ = server.join();
        }
    }
}

fn serve(listener: &TcpListener, state: &Arc<Mutex<State>>) {
    let mut conversations = vec![];
    for stream in listener.incoming() {
        if state.lock().is_ok_and(|state| state.ends) {
            break;
        }
        let (Ok(stream), state) = (stream, state.clone()) else {
            continue;
        };
        conversations.push(thread::spawn(move || {
            // an error is ignored, because the client may have closed the connection
            let _ = converse(stream, &state);
        }));
    }
    for conversation in conversations {
        let _ = conversation.join();
    }
}

fn converse(mut stream: TcpStream, state: &Mutex<State>) -> std::io::Result<()> {
    stream.set_read_timeout(Some(wait::TIMEOUT))?;
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let first = lines.next().transpose()?.unwrap_or_default();
    let mut headers = BTreeMap::new();
    for line in lines {
        let line = line?;
        let Some((name, value)) = line.split_once(':') else {
            break;
        };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let mut words = first.split(' ');
    let (method, path) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    let (answer, delay) = {
        let mut state = state.lock().expect("the service's state");
        state.requests.push(format!("{method} {path}"));
        let delay = state.behaviour.delay;
        (state.answer(method, path, &headers), delay)
    };
    let end = std::time::Instant::now() + delay;
    while std::time::Instant::now() < end {
        thread::sleep(Duration::from_millis(10));
        if state.lock().is_ok_and(|state| state.ends) {
            return Ok(());
        }
    }
    stream.write_all(&answer)
}

impl State {
    fn answer(&mut self, method: &str, path: &str, headers: &BTreeMap<String, String>) -> Vec<u8> {
        let header = |name: &str| headers.get(name).map(String::as_str);
        if let Some(raw) = self.behaviour.raw.get(path) {
            return raw.clone();
        }
        if self.behaviour.busy > 0 {
            self.behaviour.busy -= 1;
            return reply(503, b"later");
        }
        match (method, path) {
            ("PUT", TOKEN) => {
                let ttl = header("x-aliyun-ecs-metadata-token-ttl-seconds");
                let ttl = ttl.and_then(|it| it.parse::<u32>().ok());
                match self.behaviour.no_tokens {
                    Some(status) => reply(status, b"no tokens here"),
                    None if !ttl.is_some_and(|ttl| (1..=21_600).contains(&ttl)) => {
                        reply(400, b"a time to live is missing")
                    }
                    None => {
                        self.given += 1;
                        let token = format!("token-{}", self.given);
                        self.tokens.insert(token.clone());
                        reply(200, token.as_bytes())
                    }
                }
            }
            ("GET", path) => {
                let token = header("x-aliyun-ecs-metadata-token");
                let is_good = token.is_some_and(|it| self.tokens.contains(it));
                if self.behaviour.requires_token && !is_good {
                    return reply(401, b"no token");
                }
                match (self.behaviour.status, self.behaviour.values.get(path)) {
                    (Some(status), _) => reply(status, b"as told"),
                    (None, Some(value)) => reply(200, value),
                    (None, None) => reply(404, b"<html>404</html>"),
                }
            }
            _ => reply(405, b"no"),
        }
    }
}

fn reply(status: u16, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!("HTTP/1.1 {status} told\r\ncontent-length: {length}\r\n\r\n");
    [head.as_bytes(), body].concat()
}

/// An address that neither accepts nor refuses connections, as behind a firewall that drops
/// packets.
#[derive(Debug)]
pub struct BlackHole {
    address: SocketAddr,
    _listener: OwnedFd,
    _waiting: Vec<TcpStream>,
}

impl Default for BlackHole {
    fn default() -> Self {
        Self::new()
    }
}

impl BlackHole {
    /// Makes a listener whose queue is full. The kernel then drops further requests.
    #[track_caller]
    pub fn new() -> Self {
        let listener = socket(
            AddressFamily::Inet,
            SockType::Stream,
            SockFlag::SOCK_CLOEXEC,
            None,
        );
        let listener = listener.expect("a socket");
        let any = SockaddrIn::new(127, 0, 0, 1, 0);
        bind(listener.as_raw_fd(), &any).expect("a free port");
        listen(&listener, Backlog::new(0).expect("a length")).expect("a listener");
        let bound: SockaddrIn = getsockname(listener.as_raw_fd()).expect("an address");
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, bound.port()));
        let short = Duration::from_millis(100);
        let mut waiting = vec![];
        while let Ok(stream) = TcpStream::connect_timeout(&address, short) {
            waiting.push(stream);
        }
        Self {
            address,
            _listener: listener,
            _waiting: waiting,
        }
    }

    /// Returns the value to configure as the service's address.
    pub fn base(&self) -> String {
        format!("http://{}", self.address)
    }
}
