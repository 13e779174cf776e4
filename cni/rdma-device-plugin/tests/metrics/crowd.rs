// SPDX-License-Identifier: Apache-2.0
//! Tests of many simultaneous clients, and of clients that send nothing or half a request. Kubelet must get no more
//! requests than for one client, and all other clients must get their answers.

use crate::site::{Client, Site};
use integration::{
    kubelet::pod_resources::{Mood, PodResourcesServer},
    stopwatch::Stopwatch,
};
use std::time::{Duration, Instant};
use tokio::{io::AsyncWriteExt, net::TcpStream, task::JoinSet};

/// Starts a kubelet that counts its requests.
fn kubelet(site: &Site) -> PodResourcesServer {
    PodResourcesServer::start(&site.path().join("kubelet/pod-resources/kubelet.sock"))
}

/// Connects `count` clients that have sent only `text`.
async fn half_sent(server: &Client, count: usize, text: &str) -> Vec<TcpStream> {
    let mut clients = vec![];
    for _ in 0..count {
        let mut client = server.connect().await;
        client.write_all(text.as_bytes()).await.expect("sent");
        clients.push(client);
    }
    clients
}

/// Kubelet limits `Get` and `List` together to 100 a second (`pkg/kubelet/apis/grpc/ratelimit.go`), and ADD sends these
/// requests, too.
#[tokio::test(flavor = "multi_thread")]
async fn kubelet_gets_one_request_a_second_for_any_number_of_clients() {
    let site = Site::new(vec![]);
    let kubelet = kubelet(&site);
    let server = site.serve().await;
    let begin = Instant::now();
    let mut answers = 0;
    while begin.elapsed() < Duration::from_millis(2500) || answers <= 40 {
        let paths = ["/metrics", "/metrics", "/", "/metrics"];
        let all = paths.map(|path| server.get("GET", path));
        let [a, b, c, d] = all;
        let (a, b, c, d) = tokio::join!(a, b, c, d);
        for (status, text) in [a, b, c, d] {
            assert_eq!(status, 200, "{text}");
            answers += 1;
        }
        // a client that disconnects before the answer
        let mut gone = server.connect().await;
        let request = "GET /metrics HTTP/1.1\r\nHost: node\r\n\r\n";
        gone.write_all(request.as_bytes()).await.expect("sent");
    }
    let seconds = begin.elapsed().as_secs() as usize + 1;
    let requests = kubelet.take_requests().len();
    assert!(
        (2..=seconds).contains(&requests),
        "{requests} requests in {seconds} s"
    );
}

/// Each client waits for the request in progress, and causes no further request.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_or_silent_kubelet_gets_one_request_at_a_time() {
    for mood in [Mood::Slow(Duration::from_millis(1200)), Mood::Silent] {
        let site = Site::new(vec![]);
        let kubelet = kubelet(&site);
        kubelet.set_mood(mood);
        let server = std::sync::Arc::new(site.serve().await);
        let (begin, clock) = (Instant::now(), Stopwatch::start());
        let mut clients = JoinSet::new();
        for _ in 0..20 {
            let server = server.clone();
            clients.spawn(async move { server.metrics().await });
        }
        // clients that disconnect cause no further request either
        for _ in 0..20 {
            let mut gone = server.connect().await;
            let request = "GET /metrics HTTP/1.1\r\nHost: node\r\n\r\n";
            gone.write_all(request.as_bytes()).await.expect("sent");
        }
        let texts = clients.join_all().await;
        let (took, all) = (clock.elapsed(), begin.elapsed());
        assert!(took < Duration::from_secs(4), "{mood:?}: {took:?}");
        let known = mood != Mood::Silent;
        let line = format!(
            "rdma_device_plugin_scrape_complete{{part=\"holders\"}} {}",
            u8::from(known)
        );
        assert!(texts.iter().all(|it| it.contains(&line)), "{mood:?}");
        // a client that arrives after an answer causes another request
        let most = 1 + all.as_secs() / 4;
        let requests = kubelet.take_requests();
        assert!(
            (1..=most).contains(&(requests.len() as u64))
                && requests.iter().all(|it| *it == "List"),
            "{mood:?}: {requests:?} in {all:?}"
        );
    }
}

/// The server also answers the probes at the same address.
#[tokio::test(flavor = "multi_thread")]
async fn clients_that_send_half_a_request_make_room() {
    let site = Site::new(vec![]);
    let _kubelet = kubelet(&site);
    let server = site.serve().await;
    for text in ["", "GET /metrics HTTP/1.1\r\nHos"] {
        let mut idle = half_sent(&server, 200, text).await;
        let (clock, mut took) = (Stopwatch::start(), Duration::ZERO);
        for path in ["/metrics", "/healthz", "/readyz", "/"] {
            let begin = Instant::now();
            let (status, _) = server.get("GET", path).await;
            took += begin.elapsed();
            assert!([200, 503].contains(&status), "{path}: {status}");
            idle.extend(half_sent(&server, 200, text).await);
        }
        let took = clock.corrected(took);
        assert!(took < Duration::from_secs(2), "{text:?}: {took:?}");
    }
}
