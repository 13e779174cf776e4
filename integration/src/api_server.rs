// SPDX-License-Identifier: Apache-2.0
//! Stand-in for Kubernetes' API server, for tests in which the real server cannot run. It serves objects by their paths
//! over TLS. Watches get no events. It validates nothing, unless a test calls [`ApiServer::refuse_effect`]. Tests with
//! a control plane show which objects the real API server accepts.

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fs,
    io::{self, Read, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    process::Command,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};
use tempfile::TempDir;
use tokio_rustls::rustls::{
    ServerConfig, ServerConnection, StreamOwned,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};

const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";

/// The name of the daemon's node.
pub const NODE: &str = "node-1";

/// The objects by their paths, and the `resourceVersion` of the last write by a client.
#[derive(Debug, Default)]
struct Objects {
    by_path: BTreeMap<String, Value>,
    version: u64,
    /// Taint effect that the server refuses.
    unknown_effect: Option<&'static str>,
}

/// The running server. Drop ends it.
#[derive(Debug)]
pub struct ApiServer {
    port: u16,
    objects: Arc<Mutex<Objects>>,
    ends: Arc<AtomicBool>,
    account: TempDir,
}

struct Request {
    method: String,
    path: String,
    query: String,
    body: Value,
}

/// Makes a CA, and a key and a certificate for 127.0.0.1, in `directory`.
#[track_caller]
fn certify(directory: &Path) {
    let line = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 9 -subj /CN=ca \
                  -keyout ca.key -out ca.crt \
                && openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=server \
                  -keyout server.key -out server.csr \
                && printf 'subjectAltName=IP:127.0.0.1' >extensions \
                && openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 9 \
                  -extfile extensions -out server.crt";
    let done = Command::new("sh")
        .args(["-c", line])
        .current_dir(directory)
        .output();
    let done = done.expect("sh");
    assert!(done.status.success(), "{done:?}");
}

/// Returns a token that names [`NODE`].
fn token() -> String {
    let claims = json!({"kubernetes.io": {
        "namespace": "kube-system",
        "node": {"name": NODE, "uid": "0000-node"},
        "pod": {"name": "daemon", "uid": "0000-pod"},
    }});
    let part = |value: &Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
    format!("{}.{}.c2lnbmVk", part(&json!({})), part(&claims))
}

impl ApiServer {
    /// Starts a server without objects.
    ///
    /// # Panics
    /// openssl is missing, or no port is free.
    #[track_caller]
    pub fn start() -> Self {
        let account = tempfile::tempdir().expect("a directory");
        let at = |name: &str| account.path().join(name);
        certify(account.path());
        fs::write(at("token"), token()).expect("a token");
        let chain = CertificateDer::from_pem_file(at("server.crt")).expect("a certificate");
        let key = PrivateKeyDer::from_pem_file(at("server.key")).expect("a key");
        let config = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![chain], key);
        let config = Arc::new(config.expect("a key of the certificate"));
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let server = Self {
            port: listener.local_addr().expect("an address").port(),
            objects: Arc::default(),
            ends: Arc::default(),
            account,
        };
        let (objects, ends) = (server.objects.clone(), server.ends.clone());
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if ends.load(Ordering::Relaxed) {
                    return;
                }
                let (config, objects, ends) = (config.clone(), objects.clone(), ends.clone());
                thread::spawn(move || {
                    let connection = ServerConnection::new(config).map_err(io::Error::other)?;
                    serve(StreamOwned::new(connection, stream), &objects, &ends)
                });
            }
        });
        server
    }

    /// Returns the environment variables by which a pod finds the server.
    pub fn environment(&self) -> [(&'static str, String); 2] {
        [
            ("KUBERNETES_SERVICE_HOST", "127.0.0.1".to_owned()),
            ("KUBERNETES_SERVICE_PORT", self.port.to_string()),
        ]
    }

    /// Returns the directory with the daemon's token and the CA.
    pub fn account(&self) -> &Path {
        self.account.path()
    }

    fn objects(&self) -> MutexGuard<'_, Objects> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores `object` at `path`.
    pub fn put(&self, path: &str, object: Value) {
        self.objects().by_path.insert(path.to_owned(), object);
    }

    /// Returns the object at `path`.
    pub fn get(&self, path: &str) -> Option<Value> {
        self.objects().by_path.get(path).cloned()
    }

    /// Makes the server refuse devices with a taint of the effect `effect`, like a release without this effect.
    pub fn refuse_effect(&self, effect: &'static str) {
        self.objects().unknown_effect = Some(effect);
    }

    /// Returns the ResourceSlices.
    pub fn slices(&self) -> Vec<Value> {
        self.objects().below(SLICES)
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        // wakes the thread that accepts connections
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

impl Objects {
    fn below(&self, collection: &str) -> Vec<Value> {
        let is_in = |path: &str| {
            let name = path.strip_prefix(collection)?.strip_prefix('/')?;
            (!name.contains('/')).then_some(())
        };
        let found = self.by_path.iter();
        found
            .filter(|(path, _)| is_in(path).is_some())
            .map(|(_, object)| object.clone())
            .collect()
    }

    /// Returns the refusal of a slice if the first taint of a device has the unknown effect (`validateDeviceTaint` of
    /// Kubernetes).
    fn refusal(&self, slice: &Value) -> Option<(u16, Value)> {
        let effect = self.unknown_effect?;
        let devices = slice["spec"]["devices"].as_array()?;
        let place = devices
            .iter()
            .position(|it| it["taints"][0]["effect"] == effect)?;
        let message = format!(
            "ResourceSlice.resource.k8s.io is invalid: spec.devices[{place}].taints[0].effect: Unsupported value: \
             \"{effect}\": supported values: \"NoExecute\", \"NoSchedule\""
        );
        let status =
            json!({"kind": "Status", "code": 422, "reason": "Invalid", "message": message});
        Some((422, status))
    }

    fn answer(&mut self, request: Request) -> (u16, Value) {
        let Request {
            method,
            path,
            query,
            mut body,
        } = request;
        let missing =
            json!({"kind": "Status", "code": 404, "reason": "NotFound", "message": path.clone()});
        let object = match method.as_str() {
            "POST" => {
                let name = body["metadata"]["name"].as_str().unwrap_or_default();
                format!("{path}/{name}")
            }
            _ => path.trim_end_matches("/status").to_owned(),
        };
        match method.as_str() {
            "GET" => match self.by_path.get(&object) {
                Some(object) => (200, object.clone()),
                None if path == SLICES || query.contains("labelSelector") => {
                    let metadata = json!({"resourceVersion": self.version.to_string()});
                    let mut items = self.below(&path);
                    items.retain(|it| is_selected(it, &query));
                    (200, json!({"metadata": metadata, "items": items}))
                }
                None => (404, missing),
            },
            "PUT" if !self.by_path.contains_key(&object) => (404, missing),
            "POST" | "PUT" => {
                if let Some(refusal) = self.refusal(&body) {
                    return refusal;
                }
                if !query.contains("dryRun") {
                    self.version += 1;
                    body["metadata"]["resourceVersion"] = self.version.to_string().into();
                    self.by_path.insert(object, body.clone());
                }
                (200, body)
            }
            "DELETE" => match self.by_path.remove(&object) {
                Some(object) => (200, object),
                None => (404, missing),
            },
            _ => (404, missing),
        }
    }
}

/// Returns true if `query` has no label selector, or one like `KEY` or `KEY in (A,B)` that selects `object`.
fn is_selected(object: &Value, query: &str) -> bool {
    let mut parts = query.split('&');
    let Some(selector) = parts.find_map(|it| it.strip_prefix("labelSelector=")) else {
        return true;
    };
    let labels = &object["metadata"]["labels"];
    let Some((key, values)) = selector.split_once("%20in%20") else {
        return labels[selector].is_string();
    };
    let mut values = values.trim_matches(['(', ')']).split(',');
    values.any(|it| labels[key] == it)
}

fn serve(
    mut stream: impl Read + Write,
    objects: &Mutex<Objects>,
    ends: &AtomicBool,
) -> io::Result<()> {
    let request = read(&mut stream)?;
    if request.query.contains("watch=true") {
        stream.write_all(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n",
        )?;
        stream.flush()?;
        while !ends.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(100));
        }
        return Ok(());
    }
    let (code, body) = objects
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .answer(request);
    let body = body.to_string();
    let head = format!(
        "HTTP/1.1 {code} Answer\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())?;
    stream.flush()
}

/// Reads a client's next request.
fn read(stream: &mut impl Read) -> io::Result<Request> {
    let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    let mut text = Vec::new();
    let head = loop {
        if let Some(end) = text.windows(4).position(|it| it == b"\r\n\r\n") {
            break end;
        }
        let mut part = [0; 4096];
        let length = stream.read(&mut part)?;
        if length == 0 {
            return Err(wrong("no request"));
        }
        text.extend_from_slice(&part[..length]);
    };
    let mut body = text.split_off(head + 4);
    let text = String::from_utf8_lossy(&text).into_owned();
    let mut lines = text.lines();
    let mut words = lines.next().unwrap_or_default().split(' ');
    let (Some(method), Some(target)) = (words.next(), words.next()) else {
        return Err(wrong("no request line"));
    };
    let length = lines.find_map(|line| {
        let (name, value) = line.split_once(':')?;
        let is_it = name.eq_ignore_ascii_case("content-length");
        is_it.then(|| value.trim().parse::<usize>().ok()).flatten()
    });
    let mut rest = vec![0; length.unwrap_or(0).saturating_sub(body.len())];
    stream.read_exact(&mut rest)?;
    body.extend(rest);
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    Ok(Request {
        method: method.to_owned(),
        path: path.to_owned(),
        query: query.to_owned(),
        body: serde_json::from_slice(&body).unwrap_or(Value::Null),
    })
}
