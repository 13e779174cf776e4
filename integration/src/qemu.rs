// SPDX-License-Identifier: Apache-2.0
//! In the lab, the machine from outside: QEMU's monitor, which the guest has if `integration/lab/vm --monitor` started
//! it (`docs/interop/qmp-spec.rst` of QEMU). The virtual functions of an igb NIC are no devices of QEMU's command line:
//! they are unplugged with their NIC.

use crate::lab::NICS;
use serde_json::{Value, json};
use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Write},
    sync::mpsc::{Receiver, channel},
    thread,
    time::{Duration, Instant},
};

/// The port that leads to the monitor.
const PORT: &str = "/dev/vport0p3";

/// Limit for any command of QEMU. A guest's kernel waits five seconds before it releases a slot
/// (`drivers/pci/hotplug/pciehp_ctrl.c`).
const PATIENCE: Duration = Duration::from_secs(60);

/// The monitor of the machine that this runs on.
#[derive(Debug)]
pub struct Qemu {
    port: File,
    told: Receiver<Value>,
}

/// An unplugged NIC, with the order that plugs the NIC in again.
#[derive(Debug)]
pub struct Unplugged(Value);

impl Qemu {
    /// The monitor. A machine has one, for one test program at a time.
    #[track_caller]
    pub fn monitor() -> Self {
        let port = File::options().read(true).write(true).open(PORT);
        let port = port.unwrap_or_else(|error| {
            panic!("{PORT}: {error}: this test runs in the lab, by integration/lab/vm --monitor")
        });
        let lines = BufReader::new(port.try_clone().expect("a second handle"));
        let (tell, told) = channel();
        // it ends with the process: nothing else ends a read of the port
        thread::spawn(move || {
            for line in lines.lines().map_while(Result::ok) {
                let line = serde_json::from_str(&line).expect("the monitor speaks JSON");
                if tell.send(line).is_err() {
                    break;
                }
            }
        });
        let mut qemu = Self { port, told };
        // QEMU refuses it if a test program of this boot had the monitor before
        let answer = qemu.ask("qmp_capabilities", &json!({}));
        let error = answer.get("error");
        assert!(
            error.is_none_or(|it| it["class"] == "CommandNotFound"),
            "{answer}"
        );
        qemu
    }

    /// Unplugs [`NICS`]`[nic]` with its functions, wherever they are, as a hypervisor does: it requests the release,
    /// and the guest releases the NIC. Returns when it is gone.
    #[track_caller]
    pub fn unplug(&mut self, nic: usize) -> Unplugged {
        let address = format!("/sys/class/net/{}/address", NICS[nic]);
        let address = fs::read_to_string(address).expect("the NIC is there");
        // as `integration/lab/vm` has it
        let id = format!("nic{nic}");
        let back = json!({
            "driver": "igb", "id": id, "bus": format!("rp{nic}"), "netdev": format!("hub{nic}"),
            "mac": address.trim(),
        });
        self.execute("device_del", &json!({"id": id}));
        self.wait_for(&format!("{id} is unplugged"), |it| {
            it["event"] == "DEVICE_DELETED" && it["data"]["device"] == *id
        });
        Unplugged(back)
    }

    /// Plugs a NIC in again. The guest sees it a little later.
    #[track_caller]
    pub fn plug(&mut self, nic: &Unplugged) {
        self.execute("device_add", &nic.0);
    }

    /// Takes the carrier from the NIC with this number, or gives it back, as a cable does. Its device is `nic0` or
    /// `nic1` in `integration/lab/vm`, on each tier with NICs.
    #[track_caller]
    pub fn set_link(&mut self, nic: usize, up: bool) {
        let arguments = json!({"name": format!("nic{nic}"), "up": up});
        self.execute("set_link", &arguments);
    }

    #[track_caller]
    fn execute(&mut self, command: &str, arguments: &Value) {
        let answer = self.ask(command, arguments);
        assert!(answer.get("error").is_none(), "{command}: {answer}");
    }

    /// The answer to `command`: it has `return` or `error`.
    #[track_caller]
    fn ask(&mut self, command: &str, arguments: &Value) -> Value {
        let line = format!("{}\n", json!({"execute": command, "arguments": arguments}));
        self.port.write_all(line.as_bytes()).expect("it is asked");
        self.wait_for(command, |it| {
            it.get("return").is_some() || it.get("error").is_some()
        })
    }

    #[track_caller]
    fn wait_for(&self, what: &str, is_it: impl Fn(&Value) -> bool) -> Value {
        let end = Instant::now() + PATIENCE;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.told.recv_timeout(left) {
                Ok(told) if is_it(&told) => return told,
                Ok(_) => {}
                Err(error) => panic!("QEMU's monitor, {what}: {error}"),
            }
        }
    }
}
