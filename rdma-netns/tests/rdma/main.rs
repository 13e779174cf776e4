// SPDX-License-Identifier: Apache-2.0
//! RDMA devices on a kernel that supports them. `scripts/test` runs these tests in the lab, in the initial namespace
//! and in exclusive mode.

mod children;
mod devlink;
mod gids;
mod names;
mod smc;
mod suite;

use rdma_netns::{
    InterfaceName, Kernel, LinkChange, Linux, NetnsSide, Observed, Op, RdmaDevice, RdmaMode,
    linux::Space,
};
use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

/// Runs a program. If the program fails, the test fails.
#[track_caller]
fn run(command: &str) {
    let mut words = command.split(' ');
    let program = words.next().unwrap_or_default();
    let output = Command::new(program).args(words).output().expect(program);
    assert!(
        output.status.success(),
        "{command}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Two rxe devices on the ends of a veth pair, and a namespace. Dropping this value removes all of them.
struct World {
    kernel: Linux,
    name: &'static str,
}

impl World {
    fn new(name: &'static str) -> Self {
        // dropping `world` removes everything even if a later step fails
        let world = Self {
            kernel: Linux::new(),
            name,
        };
        run("ip link add nic0 type veth peer name nic1");
        for number in 0..2 {
            run(&format!("ip link set nic{number} up"));
            run(&format!(
                "rdma link add rxe{number} type rxe netdev nic{number}"
            ));
        }
        run(&format!("ip netns add {name}"));
        run(&format!("ip -n {name} link set lo up"));
        world
    }

    fn pod(&self) -> Space {
        let path = PathBuf::from("/run/netns").join(self.name);
        self.kernel.open_pod(&path).expect("the pod")
    }
}

/// Removes the RDMA devices first, from any namespace. The kernel removes an RDMA device some time after the deletion
/// of its netdev, and a netdev some time after the deletion of its namespace. Until then it returns `ENFILE` for the
/// device's name (`assign_name()`, `drivers/infiniband/core/device.c`).
impl Drop for World {
    fn drop(&mut self) {
        let quietly = |program: &str, words: &[&str]| {
            let _ = Command::new(program).args(words).output();
        };
        for device in ["rxe0", "rxe1"] {
            quietly("rdma", &["link", "del", device]);
            quietly(
                "ip",
                &["netns", "exec", self.name, "rdma", "link", "del", device],
            );
        }
        // deleting one end of the pair also deletes the other end
        for netdev in ["nic0", "nic1"] {
            quietly("ip", &["link", "del", netdev]);
        }
        quietly("ip", &["netns", "del", self.name]);
    }
}

fn interface(name: &str) -> InterfaceName {
    InterfaceName::try_from(name).expect("a name")
}

fn rdma<'a>(observed: &'a Observed, at: NetnsSide, name: &str) -> Option<&'a RdmaDevice> {
    observed
        .at(at)?
        .rdma
        .iter()
        .find(|device| device.name == name)
}

/// Checks that `device` has a `uverbs` device, and that each character device has one number in `device`, in sysfs and
/// in its file. The check needs no wait after a move: devtmpfs makes the file before the move returns.
#[track_caller]
fn is_whole(device: &RdmaDevice) {
    assert!(
        device
            .char_devices
            .iter()
            .any(|found| found.name.starts_with("uverbs"))
    );
    for found in &device.char_devices {
        assert!(found.is_in_place(), "{found:?}");
        let sysfs = match found.name.starts_with("uverbs") {
            true => format!("/sys/class/infiniband_verbs/{}/dev", found.name),
            false => format!("/sys/class/infiniband_mad/{}/dev", found.name),
        };
        let text = std::fs::read_to_string(sysfs).expect("sysfs");
        assert_eq!(text.trim_end(), format!("{}:{}", found.major, found.minor));
    }
}

#[test]
fn an_rdma_device_and_its_link_go_to_the_pod_and_back() {
    let world = World::new("rdma-there-and-back");
    let pod = world.pod();
    let observe = || world.kernel.observe(Some(&pod)).expect("a state");
    let execute = |op: Op| {
        let begin = Instant::now();
        world
            .kernel
            .execute(&op, Some(&pod))
            .unwrap_or_else(|error| panic!("{error}"));
        println!("{:>8} us  {op}", begin.elapsed().as_micros());
    };
    let before = observe();
    assert_eq!(before.rdma_mode, Some(RdmaMode::Exclusive));
    let device = rdma(&before, NetnsSide::Host, "rxe0").expect("rxe0");
    println!("{device:#?}");
    is_whole(device);
    assert_eq!(device.node_guid.len(), 19);
    assert_eq!(device.ports.len(), 1);
    let link = before.host.link("nic0").expect("nic0");
    assert_eq!(device.ports[0].netdev, Some(link.index));
    assert_eq!(before.host.rdma_of(link), Some(device));

    let device_to = |from, to| Op::MoveRdma {
        device: "rxe0".to_owned(),
        from,
        to,
    };
    execute(device_to(NetnsSide::Host, NetnsSide::Pod));
    execute(Op::MoveLink {
        link: interface("nic0"),
        from: NetnsSide::Host,
        to: NetnsSide::Pod,
        name: interface("rdma0"),
    });
    execute(Op::Link {
        at: NetnsSide::Pod,
        link: interface("rdma0"),
        change: LinkChange::Up(true),
    });
    let moved = observe();
    assert_eq!(rdma(&moved, NetnsSide::Host, "rxe0"), None);
    let there = rdma(&moved, NetnsSide::Pod, "rxe0").expect("in the pod");
    is_whole(there);
    assert_eq!(
        (there.index, &there.node_guid),
        (device.index, &device.node_guid)
    );
    let namespace = moved.pod.as_ref().expect("the pod");
    let link = namespace.link("rdma0").expect("rdma0");
    assert_eq!(namespace.rdma_of(link), Some(there));
    assert_eq!(there.ports[0].netdev, Some(link.index));

    execute(Op::MoveLink {
        link: interface("rdma0"),
        from: NetnsSide::Pod,
        to: NetnsSide::Host,
        name: interface("nic0"),
    });
    execute(device_to(NetnsSide::Pod, NetnsSide::Host));
    execute(Op::Link {
        at: NetnsSide::Host,
        link: interface("nic0"),
        change: LinkChange::Up(true),
    });
    let after = observe();
    let back = rdma(&after, NetnsSide::Host, "rxe0").expect("back");
    is_whole(back);
    assert_eq!(back, device);
    assert_eq!(after.pod.map(|pod| pod.rdma), Some(vec![]));
}

/// uverbs1 becomes uverbs0 when it moves, because number 0 is free.
#[test]
fn a_character_device_gets_another_number_and_it_is_seen() {
    let world = World::new("rdma-numbers");
    let pod = world.pod();
    let numbers = |at| {
        let observed = world.kernel.observe(Some(&pod)).expect("a state");
        let device = rdma(&observed, at, "rxe1").expect("rxe1").clone();
        is_whole(&device);
        device.char_devices
    };
    let before = numbers(NetnsSide::Host);
    run("rdma link del rxe0");
    let (from, to) = (NetnsSide::Host, NetnsSide::Pod);
    let op = Op::MoveRdma {
        device: "rxe1".to_owned(),
        from,
        to,
    };
    world
        .kernel
        .execute(&op, Some(&pod))
        .unwrap_or_else(|error| panic!("{error}"));
    let after = numbers(NetnsSide::Pod);
    println!("{before:?}\n{after:?}");
    assert_ne!(before, after);
}

/// Sets the mode. The kernel changes the mode only if no other namespace exists (EBUSY of `rdma_compatdev_set()`,
/// `drivers/infiniband/core/device.c`). A namespace ends some time after its deletion, so this function tries several
/// times.
#[track_caller]
fn set_mode(mode: RdmaMode) {
    let begin = Instant::now();
    while let Err(error) = Linux::new().set_rdma_mode(mode) {
        assert!(begin.elapsed().as_secs() < 120, "no {mode} mode: {error}");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

#[test]
fn in_shared_mode_a_device_is_everywhere_and_stays() {
    set_mode(RdmaMode::Shared);
    let world = World::new("rdma-shared");
    let pod = world.pod();
    let observed = world.kernel.observe(Some(&pod)).expect("a state");
    assert_eq!(observed.rdma_mode, Some(RdmaMode::Shared));
    let device = rdma(&observed, NetnsSide::Pod, "rxe0").expect("seen in the pod");
    assert_eq!(device.ports[0].netdev, None, "its netdev is elsewhere");
    is_whole(device);
    let (from, to) = (NetnsSide::Host, NetnsSide::Pod);
    let op = Op::MoveRdma {
        device: "rxe0".to_owned(),
        from,
        to,
    };
    let error = world.kernel.execute(&op, Some(&pod)).expect_err("shared");
    assert_eq!(error.errno(), Some(nix::libc::EOPNOTSUPP), "{error}");
    let error = world
        .kernel
        .set_rdma_mode(RdmaMode::Exclusive)
        .expect_err("a namespace is there");
    assert_eq!(error.errno(), Some(nix::libc::EBUSY), "{error}");
    drop((pod, world));
    set_mode(RdmaMode::Exclusive);
}

#[test]
fn looking_is_quick() {
    let world = World::new("rdma-quick");
    let pod = world.pod();
    for (what, pod) in [("host", None), ("host and pod", Some(&pod))] {
        let mut times: Vec<_> = (0..50)
            .map(|_| {
                let begin = Instant::now();
                world.kernel.observe(pod).expect("a state");
                begin.elapsed().as_micros()
            })
            .collect();
        times.sort_unstable();
        println!(
            "{what}: median {} us, most {} us",
            times[times.len() / 2],
            times[times.len() - 1]
        );
    }
}

/// An NVMe target over RDMA on the host: a kernel module that listens on an address of the host.
struct NvmeTarget;

const NVMET: &str = "/sys/kernel/config/nvmet";

impl NvmeTarget {
    fn at(address: &str) -> Self {
        run("modprobe nvmet-rdma");
        if !Path::new(NVMET).exists() {
            run("mount -t configfs configfs /sys/kernel/config");
        }
        let (port, subsystem) = (
            format!("{NVMET}/ports/1"),
            format!("{NVMET}/subsystems/one"),
        );
        fs::create_dir(&subsystem).expect("a subsystem");
        fs::create_dir(&port).expect("a port");
        for (file, value) in [
            ("addr_adrfam", "ipv4"),
            ("addr_trtype", "rdma"),
            ("addr_traddr", address),
            ("addr_trsvcid", "4420"),
        ] {
            fs::write(format!("{port}/{file}"), value).expect(file);
        }
        symlink(&subsystem, format!("{port}/subsystems/one")).expect("it listens");
        Self
    }
}

impl Drop for NvmeTarget {
    fn drop(&mut self) {
        let _ = fs::remove_file(format!("{NVMET}/ports/1/subsystems/one"));
        let _ = fs::remove_dir(format!("{NVMET}/ports/1"));
        let _ = fs::remove_dir(format!("{NVMET}/subsystems/one"));
    }
}

#[test]
fn the_kernels_own_users_of_a_device() {
    let world = World::new("rdma-kernel-users");
    run("ip address add 192.0.2.1/24 dev nic0");
    run("ip address add 192.0.2.2/24 dev nic1");
    let users = |name: &str| -> Vec<String> {
        let observed = world.kernel.observe(None).expect("a state");
        let device = rdma(&observed, NetnsSide::Host, name).expect(name);
        device.kernel_users.clone()
    };
    // the kernel's own queue pairs on each device do not count
    assert_eq!(users("rxe0"), [""; 0]);
    let target = NvmeTarget::at("192.0.2.1");
    assert_eq!(users("rxe0"), ["nvmet_rdma"]);
    assert_eq!(users("rxe1"), [""; 0]);
    // `unshare` makes a PID namespace, because the daemon also has its own
    let inside = Command::new("unshare")
        .args(["--pid", "--fork", "rdma", "resource", "show", "cm_id"])
        .output()
        .expect("unshare");
    println!("{}", String::from_utf8_lossy(&inside.stdout));
    assert!(String::from_utf8_lossy(&inside.stdout).contains("[nvmet_rdma]"));
    drop(target);
    assert_eq!(users("rxe0"), [""; 0]);
    // a listener on the unspecified address uses no particular device
    let target = NvmeTarget::at("0.0.0.0");
    assert_eq!(users("rxe0"), [""; 0]);
    drop(target);
}
