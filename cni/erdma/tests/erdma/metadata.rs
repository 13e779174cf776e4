// SPDX-License-Identifier: Apache-2.0
//! Tests of the metadata service's client, over real HTTP on loopback.

use erdma::metadata::{Base, Metadata, MetadataError, Pace};
use integration::metadata::{BlackHole, MetadataService, nic_path};
use std::{
    io::{Read, Write},
    iter,
    net::{TcpListener, TcpStream},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

const MAC: &str = "02:00:00:00:00:07";

/// Pace of tests: pauses are short, but time limits are long, because the machine may be busy.
pub(crate) const PACE: Pace = Pace {
    connect: Duration::from_secs(30),
    whole: Duration::from_secs(60),
    attempts: 3,
    pause: Duration::from_millis(10),
    again: Duration::from_millis(400),
    longest: Duration::from_secs(1),
    quiet: Duration::from_millis(300),
};

/// Pace of a test in which the service does not answer.
pub(crate) const IMPATIENT: Pace = Pace {
    connect: Duration::from_millis(500),
    whole: Duration::from_secs(1),
    ..PACE
};

fn service() -> MetadataService {
    let service = MetadataService::new();
    service.add_nic(MAC, "10.0.0.7", "10.0.0.0/24", "10.0.0.253");
    service
}

fn client(base: &str) -> Metadata {
    client_of(base, PACE)
}

fn client_of(base: &str, pace: Pace) -> Metadata {
    let base: Base = base.parse().expect("an address");
    Metadata::with_pace(base, pace)
}

async fn nic(client: &mut Metadata) -> Result<String, MetadataError> {
    let mac = MAC.parse().expect("a hardware address");
    let nic = client.nic(&mac).await?;
    let gateway = nic.gateway.map(|it| it.to_string()).unwrap_or_default();
    Ok(format!("{} {} {gateway}", nic.mac, nic.address))
}

#[tokio::test]
async fn one_token_serves_all_questions() {
    let service = service();
    let mut client = client(&service.base());
    assert_eq!(client.instance_id().await.expect("an id"), "i-bp1");
    let text = nic(&mut client).await.expect("a NIC");
    assert_eq!(text, format!("{MAC} 10.0.0.7/24 10.0.0.253"));
    let get = |item: &str| format!("GET {}", nic_path(MAC, item));
    let wanted = [
        "PUT /latest/api/token".to_owned(),
        "GET /latest/meta-data/instance-id".to_owned(),
        get("primary-ip-address"),
        get("vswitch-cidr-block"),
        get("gateway"),
    ];
    assert_eq!(service.requests(), wanted);
}

#[tokio::test]
async fn a_token_that_has_expired_is_renewed_once() {
    let service = service();
    let mut client = client(&service.base());
    nic(&mut client).await.expect("a NIC");
    service.expire_tokens();
    nic(&mut client).await.expect("a NIC");
    let puts = |service: &MetadataService| {
        let requests = service.requests();
        requests.iter().filter(|it| it.starts_with("PUT")).count()
    };
    assert_eq!(puts(&service), 2);
    // a service that gives tokens, and refuses each of them
    service.behave(|behaviour| behaviour.status = Some(403));
    let error = nic(&mut client).await.expect_err("refused").to_string();
    assert!(error.contains("403"), "{error}");
    assert_eq!(puts(&service), 3);
}

#[tokio::test]
async fn an_older_instance_gets_requests_without_a_token() {
    for status in [403, 404, 405] {
        let service = service();
        service.behave(|behaviour| {
            behaviour.no_tokens = Some(status);
            behaviour.requires_token = false;
        });
        let mut client = client(&service.base());
        nic(&mut client).await.expect("a NIC");
        assert_eq!(service.requests().len(), 4, "{status}");
        // the service supports tokens now, and requires them
        service.behave(|behaviour| {
            behaviour.no_tokens = None;
            behaviour.requires_token = true;
        });
        nic(&mut client).await.expect("a NIC");
    }
}

#[tokio::test]
async fn a_busy_service_gets_a_limited_number_of_retries() {
    let service = service();
    service.behave(|behaviour| behaviour.busy = 2);
    let mut client = client(&service.base());
    nic(&mut client).await.expect("at the third attempt");
    for status in [500, 503, 429] {
        service.behave(|behaviour| behaviour.status = Some(status));
        let before = service.requests().len();
        let error = nic(&mut client).await.expect_err("an error status");
        assert!(error.is_of_the_service(), "{error}");
        assert!(error.to_string().contains(&status.to_string()), "{error}");
        assert_eq!(service.requests().len() - before, 3);
    }
}

#[tokio::test]
async fn an_unknown_path_is_not_requested_again() {
    let service = MetadataService::new();
    let error = nic(&mut client(&service.base())).await.expect_err("no NIC");
    assert!(matches!(error, MetadataError::Unknown { .. }), "{error}");
    assert!(!error.is_of_the_service());
    assert_eq!(service.requests().len(), 2);
}

#[tokio::test]
async fn a_network_may_have_no_gateway() {
    let service = service();
    service.set(MAC, "gateway", None);
    let text = nic(&mut client(&service.base())).await.expect("a NIC");
    assert_eq!(text, format!("{MAC} 10.0.0.7/24 "));
}

#[tokio::test]
async fn silence_ends_in_time() {
    let service = service();
    service.behave(|behaviour| behaviour.delay = Duration::from_secs(3600));
    let hole = BlackHole::new();
    let refusing = {
        let gone = MetadataService::new();
        gone.base()
    };
    for (base, reason) in [
        (service.base(), "not answered"),
        (hole.base(), "no connection within 500ms"),
        (refusing, "refused"),
    ] {
        let begin = Instant::now();
        let mut client = client_of(&base, IMPATIENT);
        let error = nic(&mut client).await.expect_err("silence");
        assert!(error.is_of_the_service(), "{error}");
        assert!(error.to_string().contains(reason), "{error}");
        // allow several times the limit; the kernel gives up a connection after two minutes
        let took = begin.elapsed();
        let limit = 5 * IMPATIENT.attempts * IMPATIENT.whole;
        assert!(took < limit, "{took:?}: {error}");
    }
}

#[tokio::test]
async fn a_slow_answer_counts() {
    let service = service();
    service.behave(|behaviour| behaviour.delay = Duration::from_millis(100));
    nic(&mut client(&service.base())).await.expect("a NIC");
}

#[tokio::test]
async fn garbage_is_quoted_with_its_place() {
    let long = "9".repeat(300);
    for (item, value) in [
        ("primary-ip-address", &b""[..]),
        ("primary-ip-address", b"<html><body>Welcome</body></html>"),
        ("primary-ip-address", b"10.0.0.7\n10.0.0.8\n"),
        ("primary-ip-address", b"10.0.0.7/24"),
        ("primary-ip-address", b"fe80::1"),
        ("primary-ip-address", b"\xde\xad\xbe\xef"),
        ("primary-ip-address", long.as_bytes()),
        ("vswitch-cidr-block", b"10.0.0.0"),
        ("vswitch-cidr-block", b"10.0.1.0/24"),
        ("vswitch-cidr-block", b"10.0.0.7/24"),
        ("vswitch-cidr-block", b"10.0.0.0/40"),
        ("vswitch-cidr-block", b"fd00::/64"),
        ("gateway", b"10.0.1.253"),
        ("gateway", b"10.0.0.7"),
        ("gateway", b"0.0.0.0"),
        ("gateway", b"none"),
    ] {
        let service = service();
        service.set(MAC, item, Some(value));
        let error = nic(&mut client(&service.base())).await.expect_err(item);
        let words = error.to_string();
        assert!(matches!(error, MetadataError::Garbage { .. }), "{words}");
        assert!(words.contains(item) && words.len() < 300, "{words}");
        assert!(!error.is_of_the_service(), "{words}");
    }
}

#[tokio::test]
async fn answers_that_are_not_http_or_have_no_end_are_errors() {
    let endless = [b"HTTP/1.1 200 OK\r\n\r\n".to_vec(), vec![b'1'; 1 << 20]].concat();
    let heads = [b"HTTP/1.1 200 OK\r\n".to_vec(), vec![b'a'; 1 << 20]].concat();
    for (raw, reason) in [
        (b"SSH-2.0-OpenSSH\r\n".to_vec(), "broken"),
        (vec![], "broken"),
        (
            b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\n10.".to_vec(),
            "broken",
        ),
        (endless, "longer than 4096 bytes"),
        (heads, "broken"),
        (
            b"HTTP/1.1 302 Found\r\nlocation: http://10.0.0.1/\r\ncontent-length: 0\r\n\r\n"
                .to_vec(),
            "302",
        ),
    ] {
        let service = service();
        let path = nic_path(MAC, "primary-ip-address");
        service.behave(|behaviour| drop(behaviour.raw.insert(path, raw)));
        let error = nic(&mut client(&service.base())).await.expect_err(reason);
        assert!(error.to_string().contains(reason), "{reason}: {error}");
    }
}

/// Each byte arrives soon after the previous byte, so that the connection is never idle.
#[test]
fn an_answer_that_drips_without_an_end_ends_in_time() {
    for head in ["HTTP/1.1 200 OK\r\n\r\n", "HTTP/1.1 200 OK\r\nx: "] {
        let (listener, ends) = (
            TcpListener::bind("127.0.0.1:0").expect("a port"),
            AtomicBool::new(false),
        );
        let address = listener.local_addr().expect("an address");
        thread::scope(|scope| {
            scope.spawn(|| {
                for stream in listener.incoming() {
                    if ends.load(Ordering::Relaxed) {
                        break;
                    }
                    let (mut stream, ends) = (stream.expect("a client"), &ends);
                    scope.spawn(move || {
                        // wait for the request: text before the request would not be an answer
                        let request = stream.read(&mut [0; 4096]);
                        assert!(request.is_ok_and(|it| it > 0), "no request");
                        let mut text = head.as_bytes().iter().chain(iter::repeat(&b'1'));
                        // writes until the client has closed the connection
                        while !ends.load(Ordering::Relaxed)
                            && text
                                .next()
                                .is_some_and(|it| stream.write_all(&[*it]).is_ok())
                        {
                            thread::sleep(Duration::from_millis(5));
                        }
                    });
                }
            });
            let begin = Instant::now();
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            let mut client = client_of(&format!("http://{address}"), IMPATIENT);
            let error = runtime.expect("a runtime").block_on(nic(&mut client));
            let took = begin.elapsed();
            ends.store(true, Ordering::Relaxed);
            drop(TcpStream::connect(address));
            let error = error.expect_err("no answer");
            assert!(error.is_of_the_service(), "{error}");
            assert!(error.to_string().contains("not answered"), "{error}");
            // 4096 bytes would take 20 s for each attempt
            assert!(
                took < 5 * IMPATIENT.attempts * IMPATIENT.whole,
                "{took:?}: {error}"
            );
        });
    }
}

#[tokio::test]
async fn a_token_that_is_none_is_garbage() {
    let service = service();
    let token = b"HTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\n<html> </p>".to_vec();
    service.behave(|behaviour| drop(behaviour.raw.insert("/latest/api/token".into(), token)));
    let error = nic(&mut client(&service.base()))
        .await
        .expect_err("no token");
    assert!(error.to_string().contains("/latest/api/token"), "{error}");
}
