// SPDX-License-Identifier: Apache-2.0

use super::*;
use tempfile::TempDir;

/// Plain files that stand for the kernel's cgroup files, so a write sets no limit.
struct Node {
    root: TempDir,
    containers: LimitedContainers,
}

impl Node {
    fn new() -> Self {
        let root = tempfile::tempdir().expect("a directory");
        let cgroups = root.path().join("cgroup");
        fs::create_dir(&cgroups).expect("made");
        fs::write(cgroups.join("cgroup.controllers"), "cpu rdma\n").expect("written");
        fs::create_dir(cgroups.join("pods")).expect("made");
        for parent in ["", "pods"] {
            let path = cgroups.join(parent).join(SUBTREE_CONTROL);
            fs::write(path, "cpu rdma\n").expect("written");
        }
        let containers = LimitedContainers::new(&root.path().join("state"), &cgroups);
        Self { root, containers }
    }

    /// Writes a file of the cgroup `pods/{name}`.
    fn write(&self, name: &str, text: &str) {
        let path = self.root.path().join("cgroup/pods").join(name);
        fs::create_dir_all(path.parent().expect("a directory")).expect("made");
        fs::write(path, text).expect("written");
    }

    /// Returns the text that was appended to the content `present` of the pod's `rdma.max`, and removes it from the
    /// file.
    fn added(&self, pod: &str, present: &str) -> String {
        let path = self.root.path().join("cgroup/pods").join(pod);
        let max = fs::read_to_string(path.join("rdma.max")).expect("the file");
        let added = max.strip_prefix(present).expect("kept").to_owned();
        self.write(&format!("{pod}/rdma.max"), present);
        added
    }

    fn start(&self, pod: &str, id: &str, objects: u32) -> LimitedContainer {
        let container = LimitedContainer {
            format: FORMAT,
            boot_id: boot_id().expect("a boot"),
            namespace: "default".into(),
            pod: pod.into(),
            cgroup: Path::new("pods").join(pod).join(id),
            pod_cgroup: Path::new("pods").join(pod),
            limits: RdmaLimits {
                handles: None,
                objects: Some(objects),
            },
        };
        self.write(
            &format!("{pod}/{id}/cgroup.events"),
            "populated 1\nfrozen 0\n",
        );
        self.containers.limit(id, &container).expect("limited");
        container
    }

    fn end(&self, pod: &str, id: &str) {
        self.write(
            &format!("{pod}/{id}/cgroup.events"),
            "populated 0\nfrozen 0\n",
        );
    }

    fn settle(&self) {
        self.containers.settle().expect("settled");
    }
}

const NONE: &str = "mlx5_0 hca_handle=max hca_object=max \n";

#[test]
fn a_pod_has_the_lowest_limit_until_its_last_limited_container_has_ended() {
    let node = Node::new();
    let limited = "mlx5_0 hca_handle=max hca_object=3 \n\
                   mlx5_1 hca_handle=9 hca_object=max \n";
    let of_one = "mlx5_1 hca_handle=max hca_object=3";
    node.write("a/rdma.max", NONE);
    let one = node.start("a", "one", 3);
    assert_eq!(node.added("a", NONE), "mlx5_0 hca_object=3");
    node.write("a/rdma.max", limited);
    node.start("a", "two", 5);
    assert_eq!(node.added("a", limited), of_one);
    assert_eq!(node.containers.pods().len(), 1);

    // a device without a limit: the kernel has registered it again
    node.write("a/rdma.max", NONE);
    node.end("a", "two");
    node.settle();
    // `settle` writes for the ended and for the living container, because the plain file still shows no limit
    assert_eq!(node.added("a", NONE), "mlx5_0 hca_object=3".repeat(2));
    assert_eq!(node.containers.pods(), [one]);

    node.write("a/rdma.max", limited);
    node.end("a", "one");
    node.settle();
    let lifted = "mlx5_0 hca_object=maxmlx5_1 hca_handle=max";
    assert_eq!(node.added("a", limited), lifted);
    assert_eq!(node.containers.pods(), []);
    node.settle();
    assert_eq!(node.added("a", limited), "");
}

#[test]
fn a_pod_whose_cgroup_went_with_its_limits_is_known_until_the_node_boots() {
    let node = Node::new();
    let pods = node.root.path().join("cgroup/pods");
    node.write("a/rdma.max", NONE);
    node.write("b/rdma.max", NONE);
    let a = node.start("a", "one", 3);
    let b = node.start("b", "two", 3);
    fs::remove_dir_all(pods.join("a")).expect("removed");
    node.settle();
    assert_eq!(node.containers.outlasting(), std::slice::from_ref(&a));
    assert_eq!(node.containers.pods(), [b]);

    let before = LimitedContainer {
        boot_id: "another".into(),
        ..a
    };
    let path = node.root.path().join("state/limited/one.json");
    file::replace(&path, &before, 0o600).expect("written");
    assert_eq!(node.containers.outlasting(), []);
    node.settle();
    assert!(!path.exists());
}

#[test]
fn a_pod_gets_the_controller_again_that_was_taken_from_it() {
    let node = Node::new();
    let max = node.root.path().join("cgroup/pods/a/rdma.max");
    let control = node.root.path().join("cgroup/pods").join(SUBTREE_CONTROL);
    node.write("a/rdma.max", NONE);
    node.start("a", "one", 3);
    assert!(node.containers.watched().contains(&control));
    fs::remove_file(&max).expect("removed");
    fs::write(&control, "cpu\n").expect("written");
    let error = node.containers.settle().expect_err("taken").to_string();
    assert!(
        error.contains("pods/a\": another program disabled the controller rdma"),
        "{error}"
    );
    assert_eq!(fs::read_to_string(&control).expect("a file"), "+rdma");
    // the kernel makes the file `rdma.max` again when the controller is enabled
    node.write("a/rdma.max", NONE);
    node.settle();
    assert_eq!(node.added("a", NONE), "mlx5_0 hca_object=3");
}

#[test]
fn a_pods_limit_is_raised_to_that_of_the_containers_that_live() {
    let low = "mlx5_0 hca_handle=max hca_object=4 \n";
    let raised = "mlx5_0 hca_object=1000";
    let node = Node::new();
    node.write("a/rdma.max", NONE);
    node.start("a", "init", 4);
    node.write("a/rdma.max", low);
    node.end("a", "init");
    // the result is the same if the hook runs before or after the daemon's `settle`
    node.start("a", "main", 1000);
    assert_eq!(node.added("a", low), raised);
    node.settle();
    assert_eq!(node.added("a", low), raised.repeat(2));
    assert!(!node.root.path().join("state/limited/init.json").exists());
}

#[test]
fn an_unreadable_note_is_an_error_and_keeps_the_limit() {
    let node = Node::new();
    let low = "mlx5_0 hca_handle=max hca_object=3 \n";
    for pod in ["a", "b"] {
        node.write(&format!("{pod}/rdma.max"), low);
    }
    node.start("a", "one", 3);
    node.start("b", "two", 3);
    node.end("b", "two");
    let events = node.root.path().join("cgroup/pods/a/one/cgroup.events");
    fs::remove_file(&events).expect("removed");
    fs::create_dir(&events).expect("made");
    let error = node.containers.settle().expect_err("a directory");
    assert!(error.to_string().contains("one/cgroup.events"), "{error}");
    assert_eq!(node.added("a", low), "");
    assert_eq!(node.added("b", low), "mlx5_0 hca_object=max");

    fs::remove_dir(&events).expect("removed");
    node.settle();
    assert_eq!(node.added("a", low), "mlx5_0 hca_object=max");
    let limited = node.root.path().join("state/limited");
    fs::write(limited.join("three.new"), "{").expect("written");
    node.settle();
    fs::write(limited.join("three.json"), "{").expect("written");
    let error = node.containers.settle().expect_err("no record");
    assert!(error.to_string().contains("three.json"), "{error}");
}

#[test]
fn a_process_that_holds_the_lock_stops_no_other_one() {
    let node = Node::new();
    node.write("a/rdma.max", NONE);
    let container = node.start("a", "one", 3);
    let _held = node.containers.lock().expect("free");
    let error = node.containers.settle().expect_err("held");
    assert!(error.to_string().contains("lock"), "{error}");
    assert_eq!(node.containers.pods(), [container]);
}

/// Any user who can open the directory can lock it, and so delay all containers with limits.
#[test]
fn only_root_can_open_the_locked_directory() {
    let node = Node::new();
    let directory = node.root.path().join("state/limited");
    for earlier in [0o755, 0o700] {
        fs::create_dir_all(&directory).expect("made");
        fs::set_permissions(&directory, Permissions::from_mode(earlier)).expect("set");
        node.settle();
        let mode = fs::metadata(&directory)
            .expect("there")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o700);
    }
}

#[test]
fn where_the_hosts_cgroups_are_not_mounted_nothing_is_forgotten() {
    let node = Node::new();
    node.write("a/rdma.max", NONE);
    node.start("a", "one", 3);
    node.end("a", "one");
    fs::write(node.root.path().join("cgroup/cgroup.type"), "domain\n").expect("written");
    node.settle();
    assert!(node.root.path().join("state/limited/one.json").exists());
    assert_eq!(node.containers.outlasting(), []);
    let error = node.containers.lift_all().expect_err("not mounted");
    assert!(error.to_string().contains("mount the hierarchy"), "{error}");
}
