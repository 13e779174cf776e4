// SPDX-License-Identifier: Apache-2.0
//! The program from the view of a virtual machine.

use std::{
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    path::PathBuf,
    process::{Child, Command},
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
    /// Starts the program. `kind` is the end of the argument that describes the card.
    fn start(link: &str, kind: &str) -> Model {
        let directory = tempfile::tempdir().expect("a directory");
        let path = |name: &str| directory.path().join(name).display().to_string();
        let card = format!(
            "{}=52:54:00:bb:00:01+{}=52:54:00:bb:00:02{kind}",
            path("0"),
            path("1")
        );
        let process = Command::new(env!("CARGO_BIN_EXE_mlx5-model"))
            .args(["--control", &path("control"), "--link", link, &card])
            .spawn()
            .expect("the program");
        let model = Model { process, directory };
        let begin = Instant::now();
        // the program creates the control socket last, and listens some time after the file exists
        while UnixStream::connect(model.socket("control")).is_err() {
            assert!(begin.elapsed() < Duration::from_secs(20));
            thread::sleep(Duration::from_millis(2));
        }
        model
    }

    fn socket(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

#[test]
fn a_machine_finds_a_card_of_two_functions() {
    for (link, kind, device, class) in [
        ("ethernet", "", 0x17, [0, 0, 2]),
        ("ethernet", ",virtual", 0x1e, [0, 0, 2]),
        ("infiniband", "", 0x17, [0, 7, 2]),
    ] {
        is_a_card(&Model::start(link, kind), device, class);
    }
}

/// Checks the identity of both functions. `device` is the lower byte of the device ID. `class` is programming
/// interface, subclass and class.
fn is_a_card(model: &Model, device: u8, class: [u8; 3]) {
    for name in ["0", "1"] {
        let mut client = Client::new(&model.socket(name)).expect("a connection");
        let mut config = [0; 256];
        (client.region_read(7, 0, &mut config)).expect("the configuration space");
        assert_eq!(config[..4], [0xb3, 0x15, device, 0x10]);
        assert_eq!(config[9..12], class);
        assert_eq!(client.region(0).expect("BAR 0").size, 32 << 20);
        assert_eq!(client.get_irq_info(2).expect("MSI-X").count, 64);
        let mut version = [0; 4];
        (client.region_read(0, 0, &mut version)).expect("a register");
        assert_eq!(version, [0, 35, 0, 16]);
        has_a_gateway(&mut client, &config, device != 0x1e);
    }
}

/// Checks that only a physical function has the vendor-specific capability, and that a driver gets the gateway's
/// semaphore but no address space, as `mlx5_vsc_gw_lock()` and `mlx5_vsc_gw_set_space()` try.
fn has_a_gateway(client: &mut Client, config: &[u8], is_physical: bool) {
    let mut capabilities = Vec::new();
    let mut at = config[0x34];
    while at != 0 {
        capabilities.push((config[usize::from(at)], u64::from(at)));
        at = config[usize::from(at) + 1];
    }
    let gateway = capabilities.iter().find(|it| it.0 == 0x09);
    assert_eq!(gateway.is_some(), is_physical, "{capabilities:?}");
    let Some(&(_, at)) = gateway else { return };
    let mut register = |offset: u64, written: Option<u32>| {
        if let Some(value) = written {
            (client.region_write(7, at + offset, &value.to_le_bytes())).expect("a register");
        }
        let mut value = [0; 4];
        (client.region_read(7, at + offset, &mut value)).expect("a register");
        u32::from_le_bytes(value)
    };
    let [control, counter, semaphore] = [0x4, 0x8, 0xc];
    assert_eq!(register(semaphore, None), 0, "the gateway is free");
    let ticket = register(counter, None);
    assert_ne!(ticket, 0);
    assert_eq!(register(semaphore, Some(ticket)), ticket);
    assert_eq!(register(control, Some(2)) >> 29, 0, "no address space");
    assert_eq!(register(semaphore, Some(0)), 0);
}

#[test]
fn orders_are_executed() {
    let model = Model::start("ethernet", "");
    let mut stream = UnixStream::connect(model.socket("control")).expect("the socket of orders");
    let mut lines = BufReader::new(stream.try_clone().expect("a second handle")).lines();
    for (order, answer) in [
        ("link all down", "ok"),
        ("flap", "error: \"flap\" is no order"),
        (
            "status",
            "52:54:00:bb:00:01 down started=false bonded=false roce-addresses=0",
        ),
    ] {
        writeln!(stream, "{order}").expect("an order");
        assert_eq!(lines.next().expect("an answer").expect("text"), answer);
    }
}

#[test]
fn a_wrong_command_line_is_refused() {
    for (arguments, message) in [
        (&[][..], "usage:"),
        (&["a"], "usage:"),
        (&["--link", "token-ring", "a=02:00:00:00:00:01"], "usage:"),
        (&["a=02:00"], "\"02:00\" is no MAC"),
        (
            &["a=02:00:00:00:00:01+b=02:00:00:00:00:02+c=02:00:00:00:00:03"],
            "one or two functions",
        ),
        (&["/nonexistent/a=02:00:00:00:00:01"], "/nonexistent/a: "),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_mlx5-model"))
            .args(arguments)
            .output()
            .expect("the program");
        assert!(!output.status.success());
        let text = String::from_utf8(output.stderr).expect("text");
        assert!(
            text.starts_with("mlx5-model: ") && text.contains(message),
            "{text}"
        );
    }
}
