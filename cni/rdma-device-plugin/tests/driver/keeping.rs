// SPDX-License-Identifier: Apache-2.0
//! Tests of the reconciler in a running daemon: its changes of the driver, and the devices that it withholds meanwhile.

use crate::{
    NIC,
    recorded::{Fails, Recorded},
};
use ::erdma::{conf::DriverMode, driver::users::Paths};
use daemon_conf::Conf;
use integration::Machine;
use node_state::{
    erdma::{
        Report, Side, discover,
        reconciler::{Reconciler, ReconcilerContext},
    },
    hardware::Hardware,
    node::{Node, Signal},
};
use offer::{PreviousOffers, Unhealthy, offers};
use rdma_resources::{Grant, Grants, Sharing, grant::GrantedDevice};
use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};
use tokio::{
    sync::{mpsc, watch},
    task::AbortHandle,
    time::timeout,
};

/// Retry interval, in place of the daemon's ten seconds.
const AGAIN: Duration = Duration::from_secs(1);

const LIMIT: Duration = Duration::from_secs(60);

/// The reconciler, and in place of the daemon a node to which [`take`](Self::take) applies the reconciler's reports.
struct Site {
    hardware: Hardware,
    conf: Arc<Conf>,
    node: watch::Sender<Arc<Node>>,
    signals: mpsc::Receiver<Signal>,
    loader: Arc<Mutex<Recorded>>,
    state: PathBuf,
    reconciler: AbortHandle,
}

impl Drop for Site {
    fn drop(&mut self) {
        self.reconciler.abort();
    }
}

impl Site {
    /// Starts with the driver in mode default. `prepare` runs before the start.
    fn new(conf: &str, fails: Fails, prepare: impl FnOnce(&Path)) -> Self {
        let machine = Machine::with(&[]);
        machine.plug_erdma(&NIC);
        machine.erdma_module(Some(Some(false)));
        let (sysfs, dev, state) = (
            machine.path("sys"),
            machine.path("dev"),
            machine.path("state"),
        );
        std::fs::create_dir_all(state.join("proc")).expect("made");
        prepare(&state);
        let conf = Conf::parse(conf, Path::new("f")).unwrap_or_else(|error| panic!("{error}"));
        let conf = Arc::new(conf.conf);
        let hardware = Hardware::new(&sysfs, &dev);
        let first = node_of(&hardware, &conf, Report::default());
        let (node, receiver) = watch::channel(first);
        let (sender, signals) = mpsc::channel(16);
        let loader = Arc::new(Mutex::new(Recorded::new(machine, fails)));
        let reconciler = Reconciler::new(ReconcilerContext {
            node: receiver,
            signals: sender,
            sysfs,
            dev,
            paths: Paths {
                socket: state.join("none.sock"),
                // an empty directory, so that no process of this machine is found
                proc: state.join("proc"),
                state_dir: state.clone(),
            },
            loader: Some(loader.clone()),
            again: AGAIN,
        });
        Self {
            reconciler: tokio::spawn(reconciler.run()).abort_handle(),
            hardware,
            conf,
            node,
            signals,
            loader,
            state,
        }
    }

    /// Receives the next report to the daemon, without applying it.
    async fn next_report(&mut self) -> Report {
        match timeout(LIMIT, self.signals.recv()).await {
            Ok(Some(Signal::Erdma(report))) => report,
            other => panic!("no report: {other:?}"),
        }
    }

    fn take(&self, report: Report) {
        let node = node_of(&self.hardware, &self.conf, report);
        self.node.send_replace(node);
    }

    fn calls(&self) -> Vec<String> {
        self.loader.lock().expect("the loader").calls.clone()
    }
}

fn node_of(hardware: &Hardware, conf: &Arc<Conf>, report: Report) -> Arc<Node> {
    let inventory = hardware.observe().expect("an inventory");
    let discovery = discover(&conf.erdma, &inventory, report.instance.as_deref());
    let unhealthy = report.withheld(&inventory, &Unhealthy::new());
    let hidden = discovery.hidden_addresses();
    let (offers, _) = offers(
        conf,
        &inventory,
        &hidden,
        &unhealthy,
        &PreviousOffers::default(),
    );
    Arc::new(Node {
        conf: conf.clone(),
        inventory: Arc::new(inventory),
        unhealthy,
        offers,
        erdma: Side {
            discovery,
            report: Arc::new(report),
        },
        ..Node::default()
    })
}

fn healthy(node: &watch::Sender<Arc<Node>>) -> usize {
    let node = node.borrow();
    let ids = node.offers.iter().flat_map(|offer| &offer.ids);
    ids.filter(|id| id.healthy).count()
}

fn grant(state: &Path) {
    grant_of(state, NIC.address);
}

fn grant_of(state: &Path, address: &str) {
    let grant = Grant {
        format: rdma_resources::grant::FORMAT,
        resource: "aliyun/erdma".into(),
        id: "erdma_0/3".into(),
        sharing: Sharing::Shared,
        cdi: false,
        chained: false,
        promises_rails: false,
        limits: Default::default(),
        devices: vec![GrantedDevice {
            address: address.to_owned().try_into().expect("an address"),
            rdma: "erdma_0".into(),
            parent: None,
            char_devices: vec![],
        }],
    };
    Grants::new(state).write(&grant).expect("written");
}

const COMPAT: &str = "erdma: {preferDriver: compat, configureNICs: false}";

#[tokio::test(flavor = "multi_thread")]
async fn a_device_is_withheld_while_its_driver_is_loaded_anew() {
    let mut site = Site::new(COMPAT, Fails::Nowhere, |_| {});
    assert_eq!(healthy(&site.node), 200);
    let report = site.next_report().await;
    assert!(report.changing, "{report:?}");
    // the reconciler makes no change until the daemon has applied the report
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(site.calls(), ["check"]);
    site.take(report);
    assert_eq!(healthy(&site.node), 0);
    let report = site.next_report().await;
    assert!(!report.changing);
    assert_eq!(report.driver.loaded, Some(DriverMode::Compat));
    assert_eq!(report.driver.problem, None);
    assert_eq!(
        site.calls(),
        ["check", "check", "unload", "load compat_mode=Y"]
    );
    site.take(report);
    assert_eq!(healthy(&site.node), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_keeps_its_device() {
    let mut site = Site::new(COMPAT, Fails::Nowhere, grant);
    let report = site.next_report().await;
    assert!(!report.changing, "devices that are in use are not withheld");
    let problem = report.driver.problem.clone().expect("it is in use");
    assert_eq!(problem.word(), "in_use");
    assert_eq!(report.sentences(), [problem.to_string()]);
    assert_eq!(site.calls(), ["check"]);
    // the last user has ended, and an event does not cause an immediate observation
    std::fs::remove_dir_all(site.state.join("granted")).expect("removed");
    let ended = Instant::now();
    site.take(report.clone());
    tokio::time::sleep(AGAIN / 4).await;
    site.take(report);
    let calls = site.calls();
    // check only if this thread itself was not late
    if ended.elapsed() < AGAIN / 2 {
        assert_eq!(calls, ["check"]);
    }
    assert!(site.next_report().await.changing);
    assert!(ended.elapsed() > AGAIN / 2, "{:?}", ended.elapsed());
}

/// A pod gets the device while the reconciler searches the device's users.
#[tokio::test(flavor = "multi_thread")]
async fn the_first_user_is_seen() {
    let mut site = Site::new(COMPAT, Fails::Nowhere, |_| {});
    let report = site.next_report().await;
    assert!(report.changing);
    grant(&site.state);
    site.take(report);
    let report = site.next_report().await;
    assert!(!report.changing);
    assert_eq!(report.driver.loaded, Some(DriverMode::Default));
    let problem = report.driver.problem.as_ref().map(|it| it.word());
    assert_eq!(problem, Some("in_use"));
    assert_eq!(site.calls(), ["check"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_change_is_not_repeated_at_once() {
    let mut site = Site::new(COMPAT, Fails::Load { times: 1 }, |_| {});
    let report = site.next_report().await;
    site.take(report);
    let report = site.next_report().await;
    let problem = report.driver.problem.clone().expect("it failed");
    assert_eq!(problem.word(), "failed");
    assert_eq!(report.driver.loaded, Some(DriverMode::Default));
    let calls = site.calls();
    assert_eq!(calls.len(), 5, "{calls:?}");
    for _ in 0..3 {
        site.take(report.clone());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(site.calls(), calls);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_instance_hides_entries_for_one_instance_only() {
    let conf = "erdma: {exposedLocalERIs: [i-bp1 erdma_0], configureNICs: false, metadata: \
                'http://127.0.0.1:1'}";
    let mut site = Site::new(conf, Fails::Nowhere, |_| {});
    let report = site.next_report().await;
    assert_eq!(report.instance, None);
    let sentences = report.sentences().join("\n");
    assert!(sentences.contains("does not yet use NICs"), "{sentences}");
    assert!(sentences.contains("http://127.0.0.1:1"), "{sentences}");
    assert_eq!(healthy(&site.node), 0);
}

/// The kernel's reference count shows a user that appeared after the search.
#[tokio::test(flavor = "multi_thread")]
async fn a_module_in_use_is_tried_again() {
    let mut site = Site::new(COMPAT, Fails::Unload, |_| {});
    for _ in 0..2 {
        let report = site.next_report().await;
        assert!(report.changing, "{report:?}");
        site.take(report);
        let report = site.next_report().await;
        let problem = report.driver.problem.clone().expect("it is in use");
        assert_eq!(problem.word(), "in_use");
        assert!(problem.to_string().contains("it is in use"), "{problem}");
        site.take(report);
    }
}

/// A pod gets a device between two observations. Only the second observation shows the device.
#[tokio::test(flavor = "multi_thread")]
async fn the_second_observation_is_of_the_later_node() {
    let mut site = Site::new(COMPAT, Fails::Nowhere, |_| {});
    let report = site.next_report().await;
    let second = integration::machine::Erdma {
        address: "0000:00:08.0",
        netdev_address: "0000:00:06.0",
        rdma: "erdma_1",
        netdev: "eri-other",
        mac: "00:16:3e:0a:0b:02",
        number: 1,
        ..NIC
    };
    site.loader
        .lock()
        .expect("the loader")
        .machine
        .plug_erdma(&second);
    grant_of(&site.state, second.address);
    site.take(report);
    let report = site.next_report().await;
    let problem = report.driver.problem.as_ref().map(|it| it.word());
    assert_eq!(problem, Some("in_use"));
    assert_eq!(site.calls(), ["check"]);
}

/// With a configuration in another plugin's format, the daemon does not even report a missing driver.
#[tokio::test(flavor = "multi_thread")]
async fn beside_another_systems_format_the_driver_is_left_alone() {
    let mut site = Site::new("mode: hca", Fails::Nowhere, |_| {});
    let report = site.next_report().await;
    assert_eq!(report.driver.loaded, Some(DriverMode::Default));
    let loader = site.loader.clone();
    loader
        .lock()
        .expect("the loader")
        .machine
        .erdma_module(None);
    site.take(report);
    let report = site.next_report().await;
    assert_eq!((report.driver.loaded, report.driver.problem), (None, None));
    assert_eq!(site.calls(), [] as [&str; 0]);
}
