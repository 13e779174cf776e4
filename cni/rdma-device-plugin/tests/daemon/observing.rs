//! Health and figures, of the whole daemon.

use crate::{HCA, Running, ids, program::start_with};
use std::{
    thread,
    time::{Duration, Instant},
};

#[test]
fn figures_tell_what_kubelet_has() {
    let node = Running::with(HCA).listed("rdma/hca", 1000);
    node.kubelet
        .ask_for("rdma/hca", &[&ids(&["1"])])
        .expect("given");
    let health = node.daemon.get("/healthz");
    assert!(health.starts_with("HTTP/1.1 200"), "{health}");
    let metrics = node.daemon.get("/metrics");
    for line in [
        r#"rdma_device_plugin_registered{resource="rdma/hca"} 1"#,
        r#"rdma_device_plugin_capacity{resource="rdma/hca"} 1000"#,
        r#"rdma_device_plugin_healthy{resource="rdma/hca"} 1000"#,
        r#"rdma_device_plugin_list_updates_total{resource="rdma/hca"} 1"#,
    ] {
        assert!(metrics.contains(line), "no {line} in\n{metrics}");
    }
    assert!(
        metrics.contains("rdma_device_plugin_allocate_seconds_count"),
        "{metrics}"
    );
}

#[test]
fn an_infiniband_ports_state_is_followed_without_an_event() {
    let machine = crate::Machine::with(&[crate::FIRST]);
    let port = "sys/class/infiniband/mlx5_0/ports/1";
    machine.write(&format!("{port}/link_layer"), "InfiniBand\n");
    machine.configure(HCA);
    let kubelet = integration::kubelet::DeviceManager::started(&machine.path("kubelet"));
    let _daemon = crate::start(&machine);
    kubelet.wait_for("rdma/hca", "its list", |it| it.healthy().len() == 1000);
    machine.write(&format!("{port}/state"), "2: INIT\n");
    let at = Instant::now();
    kubelet.wait_for("rdma/hca", "no healthy id", |it| it.healthy().is_empty());
    assert!(at.elapsed() < Duration::from_secs(3), "{:?}", at.elapsed());
}

#[test]
fn with_ethernet_only_it_sleeps_until_something_is_heard() {
    let node = Running::with(HCA).listed("rdma/hca", 1000);
    // the machine's own devices may be heard of meanwhile
    let asleep = || {
        let before = node.daemon.sleeps();
        thread::sleep(Duration::from_millis(2500));
        node.daemon.sleeps() == before
    };
    integration::wait::until("it sleeps for 2.5 s", asleep);
}

#[test]
fn an_address_that_is_taken_does_not_stop_it() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
    let address = taken.local_addr().expect("an address").to_string();
    let machine = crate::Machine::with(&[crate::FIRST]);
    machine.configure(HCA);
    let kubelet = integration::kubelet::DeviceManager::started(&machine.path("kubelet"));
    let daemon = start_with(&machine, &["--metrics-address", &address]);
    daemon.says("no metrics, and probes get no answer: cannot listen at");
    kubelet.wait_for("rdma/hca", "its list", |it| it.healthy().len() == 1000);
    // whoever had it has ended
    drop(taken);
    daemon.says(&format!("metrics are at http://{address}/metrics"));
}
