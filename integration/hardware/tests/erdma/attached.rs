// SPDX-License-Identifier: Apache-2.0
//! The program from the view of a virtual machine. The client speaks vfio-user as QEMU does, and shares its memory by a
//! file descriptor.

use crate::driver::{Bus, Command, Completions, Driver, MACS, MEMORY, MEMORY_SIZE, work::*};
use std::{
    fs::File,
    io::{BufRead, BufReader, Read, Write},
    os::{
        fd::AsRawFd,
        unix::{fs::FileExt, net::UnixStream},
    },
    path::{Path, PathBuf},
    process::{Child, Command as Process},
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;
use vfio_user::Client;

struct Model {
    process: Child,
    directory: TempDir,
}

impl Drop for Model {
    fn drop(&mut self) {
        self.process.kill().expect("it runs");
        self.process.wait().expect("it ends");
    }
}

impl Model {
    fn start() -> Model {
        let directory = tempfile::tempdir().expect("a directory");
        let path = |name: &str| directory.path().join(name).display().to_string();
        let process = Process::new(env!("CARGO_BIN_EXE_erdma-model"))
            .args(["--control", &path("control")])
            .args([
                format!("{}=02:00:00:00:00:01", path("0")),
                format!("{}=02:00:00:00:00:02", path("1")),
            ])
            .spawn()
            .expect("the program");
        let model = Model { process, directory };
        // the program creates the control socket last, and listens some time after the file exists
        wait_for(|| UnixStream::connect(model.socket("control")).is_ok());
        model
    }

    fn socket(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn order(&self, line: &str) -> String {
        let mut stream = UnixStream::connect(self.socket("control")).expect("the socket of orders");
        writeln!(stream, "{line}").expect("an order");
        let mut answer = String::new();
        BufReader::new(stream)
            .read_line(&mut answer)
            .expect("an answer");
        answer
    }
}

fn wait_for(mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(
            begin.elapsed() < Duration::from_secs(20),
            "the model takes too long"
        );
        thread::sleep(Duration::from_millis(2));
    }
}

struct Attached {
    client: Client,
    memory: File,
}

impl Attached {
    fn new(socket: &Path) -> Attached {
        let mut client = Client::new(socket).expect("a connection");
        let memory = tempfile::tempfile().expect("memory");
        memory.set_len(MEMORY_SIZE as u64).expect("memory");
        client
            .dma_map(0, MEMORY, MEMORY_SIZE as u64, memory.as_raw_fd())
            .expect("a mapping");
        Attached { client, memory }
    }
}

impl Bus for Attached {
    fn write(&mut self, offset: u64, data: &[u8]) {
        self.client.region_write(0, offset, data).expect("a write");
    }
    fn read(&mut self, offset: u64, data: &mut [u8]) {
        self.client.region_read(0, offset, data).expect("a read");
    }
    fn load(&self, address: u64, into: &mut [u8]) {
        self.memory
            .read_exact_at(into, address - MEMORY)
            .expect("memory");
    }
    fn store(&mut self, address: u64, data: &[u8]) {
        self.memory
            .write_all_at(data, address - MEMORY)
            .expect("memory");
    }
}

#[test]
fn a_machine_finds_an_erdma_function() {
    let model = Model::start();
    let mut client = Client::new(&model.socket("0")).expect("a connection");
    let mut config = [0; 256];
    client
        .region_read(7, 0, &mut config)
        .expect("the configuration space");
    assert_eq!(config[..4], [0xed, 0x1d, 0x7f, 0x10]);
    assert_eq!(config[9..12], [0, 0xff, 0], "class 00ff");
    assert_eq!(config[0x40], 0x11, "MSI-X");
    assert_eq!(config[0x42], 31, "32 vectors");
    let sizes: Vec<u64> = (0..7)
        .map(|it| client.region(it).expect("a region").size)
        .collect();
    // ERDMA_BAR_MASK: only BAR 0 and 2, no ROM
    assert_eq!(sizes, [512 << 10, 0, 4096, 0, 0, 0, 0]);
    assert_eq!(client.get_irq_info(2).expect("MSI-X").count, 32);
    client.reset().expect("a reset");
}

/// Two machines, a connection between their functions, and a memory region on each side.
struct Machines {
    near: Driver<Attached>,
    far: Driver<Attached>,
    queue: Completions,
    pair: Pair,
    here: (u64, u32),
    there: (u64, u32),
}

impl Machines {
    fn new(model: &Model) -> Machines {
        let mut near = Driver::start(Attached::new(&model.socket("0")));
        let mut far = Driver::start(Attached::new(&model.socket("1")));
        let (queue, far_queue) = (near.completion_queue(1, 4), far.completion_queue(1, 4));
        let (pair, other) = (near.pair(1, 4, &queue), far.pair(7, 4, &far_queue));
        near.connect(&pair, other.cookie);
        far.connect(&other, pair.cookie);
        let (here, there) = (near.region(1, ALL, 1), far.region(3, ALL, 1));
        Machines {
            near,
            far,
            queue,
            pair,
            here,
            there,
        }
    }

    fn write(&mut self, text: &[u8]) {
        self.near.bus.store(self.here.0, text);
        let segment = (self.here.0, text.len() as u32, self.here.1);
        self.near
            .post_send(&mut self.pair, &write(self.there, &[segment]));
    }

    /// Waits for the next completion. Returns its status.
    fn status(&mut self) -> u8 {
        let mut status = None;
        wait_for(|| {
            status = self.near.poll(&mut self.queue).map(|it| it.status);
            status.is_some()
        });
        status.expect("a completion")
    }
}

#[test]
fn a_driver_starts_it_and_machines_exchange_data() {
    let model = Model::start();
    let mut it = Machines::new(&model);
    assert_eq!(it.near.read32(0x18), u32::from_be_bytes([0, 0, 0, 1]));
    assert_eq!(it.near.read32(0x1c), u32::from_be_bytes([0, 0, 2, 0]));
    it.write(b"from one machine to the other");
    assert_eq!(it.status(), 0);
    assert_eq!(
        it.far.load(it.there.0, 29),
        b"from one machine to the other"
    );
}

#[test]
fn waiting_requests_proceed_without_a_doorbell() {
    let model = Model::start();
    let mut it = Machines::new(&model);
    assert_eq!(model.order("delay all 60"), "ok\n");
    let begin = Instant::now();
    it.write(b"late");
    assert_eq!(it.status(), 0);
    assert!(begin.elapsed() >= Duration::from_millis(60));
    assert_eq!(it.far.load(it.there.0, 4), b"late");
    for order in ["delay all 0", "no-answer 80", "link all down"] {
        assert_eq!(model.order(order), "ok\n");
    }
    let begin = Instant::now();
    it.write(b"lost");
    assert_eq!(it.status(), 16);
    assert!(begin.elapsed() >= Duration::from_millis(80));
    assert_eq!(it.far.load(it.there.0, 4), b"late");
}

#[test]
fn a_client_that_does_not_speak_vfio_user_ends_nothing() {
    let model = Model::start();
    // a version that is not text, half a header, and an unknown command
    let version = [
        &[1u8, 0, 1, 0, 24, 0, 0, 0][..],
        &[0; 8],
        &[0, 0, 1, 0, 9, 9, 9, 9],
    ]
    .concat();
    for bytes in [&version[..], &[1, 2, 3], &[0xff; 16], &[0xff; 4096]] {
        let mut stream = UnixStream::connect(model.socket("0")).expect("a connection");
        // the server may have closed the connection
        let _sent = stream.write_all(bytes);
    }
    let mut driver = Driver::start(Attached::new(&model.socket("0")));
    assert!(driver.command(Command::new(1, 2)).is_ok());
}

#[test]
fn interrupts_reach_the_machine() {
    use vfio_bindings::bindings::vfio::{
        VFIO_IRQ_SET_ACTION_TRIGGER, VFIO_IRQ_SET_DATA_EVENTFD, VFIO_PCI_MSIX_IRQ_INDEX,
    };
    let model = Model::start();
    let mut driver = Driver::start(Attached::new(&model.socket("0")));
    // a socket instead of an eventfd: the function writes 8 bytes to either
    let (ours, theirs) = UnixStream::pair().expect("sockets");
    let flags = VFIO_IRQ_SET_ACTION_TRIGGER | VFIO_IRQ_SET_DATA_EVENTFD;
    (driver.bus.client)
        .set_irqs(VFIO_PCI_MSIX_IRQ_INDEX, flags, 0, 1, &[theirs.as_raw_fd()])
        .expect("a vector");
    driver.write64(0x300, 1 << 31);
    driver
        .command(Command::new(1, 2))
        .expect("the version of the firmware");
    let mut raised = [0; 8];
    (&ours).read_exact(&mut raised).expect("an interrupt");
    assert_eq!(u64::from_ne_bytes(raised), 1);
}

#[test]
fn a_machine_that_detaches_leaves_nothing() {
    let model = Model::start();
    let mut driver = Driver::start(Attached::new(&model.socket("0")));
    let queue = driver.completion_queue(1, 4);
    driver.pair(1, 4, &queue);
    assert!(model.order("status").contains("queue-pairs=1"));
    drop(driver);
    wait_for(|| model.order("status").contains("queue-pairs=0"));
    let mut again = Driver::start(Attached::new(&model.socket("0")));
    let queue = again.completion_queue(1, 4);
    assert_eq!(again.pair(1, 4, &queue).number, 1);
    // the other function still accepts a client
    assert!(Client::new(&model.socket("1")).is_ok());
    assert_eq!(MACS[0][5], 1);
}

#[test]
fn a_machine_resets_a_function_and_takes_its_memory_away() {
    let model = Model::start();
    let mut driver = Driver::start(Attached::new(&model.socket("0")));
    let queue = driver.completion_queue(1, 4);
    driver.pair(1, 4, &queue);
    assert!(model.order("status").contains("queue-pairs=1"));
    driver.bus.client.reset().expect("a reset");
    assert!(model.order("status").contains("queue-pairs=0"));
    assert_eq!(driver.read32(0x14), 1, "as after power-on");
    driver.restart();
    assert!(driver.command(Command::new(1, 2)).is_ok());
    let unmapped = driver.bus.client.dma_unmap(MEMORY, MEMORY_SIZE as u64);
    unmapped.expect("the memory is unmapped");
    driver.post(&Command::new(1, 2));
    assert_eq!(driver.answered(), None, "the function has no memory");
}

#[test]
fn a_function_falls_off_its_bus_and_comes_back() {
    let model = Model::start();
    let mut driver = Driver::start(Attached::new(&model.socket("0")));
    let client = &mut driver.bus.client;
    client.region_write(7, 4, &[6, 0]).expect("the command");
    let mut command = [0; 2];
    client.region_read(7, 4, &mut command).expect("a read");
    assert_eq!(command, [6, 0]);
    assert_eq!(model.order("unplug 02:00:00:00:00:01"), "ok\n");
    assert_eq!(driver.read32(0), u32::MAX);
    let mut config = [0; 4];
    (driver.bus.client)
        .region_read(7, 0, &mut config)
        .expect("a read");
    assert_eq!(config, [0xff; 4]);
    driver.post(&Command::new(1, 2));
    assert_eq!(
        driver.answered(),
        None,
        "a function that is gone writes no memory"
    );
    assert_eq!(model.order("plug all"), "ok\n");
    let client = &mut driver.bus.client;
    client.region_read(7, 4, &mut command).expect("a read");
    assert_eq!(command, [0, 0], "the function is no bus master");
    assert_eq!(driver.read32(0x14), 1, "as after power-on");
    driver.restart();
    assert!(driver.command(Command::new(1, 2)).is_ok());
}

#[test]
fn unknown_orders_are_refused() {
    let model = Model::start();
    for (order, answer) in [
        ("flap", "error: \"flap\" is no order\n"),
        (
            "link 02:00:00:00:00:09 down",
            "error: no function has the MAC \"02:00:00:00:00:09\"\n",
        ),
        (
            "loss all 101",
            "error: \"101\" is no percentage from 0 to 100\n",
        ),
        (
            "delay all soon",
            "error: \"soon\" is no number of milliseconds\n",
        ),
    ] {
        assert_eq!(model.order(order), answer);
    }
}

#[test]
fn a_wrong_command_line_is_refused() {
    for (arguments, message) in [
        (&[][..], "usage:"),
        (&["a"], "usage:"),
        (&["a=02:00"], "\"02:00\" is no MAC"),
        (&["a=02:00:00:00:00:01,tcp"], "\"tcp\" is no option"),
        (&["/nonexistent/a=02:00:00:00:00:01"], "/nonexistent/a: "),
    ] {
        let output = Process::new(env!("CARGO_BIN_EXE_erdma-model"))
            .args(arguments)
            .output();
        let output = output.expect("the program");
        assert!(!output.status.success());
        let text = String::from_utf8(output.stderr).expect("text");
        assert!(
            text.starts_with("erdma-model: ") && text.contains(message),
            "{text}"
        );
        assert_eq!(text.lines().count(), 1, "{text}");
    }
}
