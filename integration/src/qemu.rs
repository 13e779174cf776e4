// SPDX-License-Identifier: Apache-2.0
//! In the lab, access to the machine from outside: QEMU's monitor (`docs/interop/qmp-spec.rst` of QEMU). The guest
//! reaches it with `integration/lab/vm --monitor`. The virtual functions of an igb NIC are no devices of QEMU's command
//! line, so they can only be unplugged together with their NIC.

use crate::lab::NICS;
use serde_json::{Value, json};
use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Write},
    sync::mpsc::{Receiver, channel},
    thread,
    time::{Duration, Instant},
};

/// Port that is connected with the monitor.
const PORT: &str = "/dev/vport0p3";

/// Time limit for any command of QEMU. A guest's kernel waits five seconds before it releases a slot
/// (`drivers/pci/hotplug/pciehp_ctrl.c`).
const TIMEOUT: Duration = Duration::from_secs(60);

/// The monitor of this machine.
#[derive(Debug)]
pub struct Qemu {
    port: File,
    messages: Receiver<Value>,
}

/// An unplugged NIC, with the arguments that plug it in again.
#[derive(Debug)]
pub struct Unplugged(Value);

impl Qemu {
    /// Opens the machine's only monitor. Only one test program at a time can use it.
    #[track_caller]
    pub fn monitor() -> Self {
        let port = File::options().read(true).write(true).open(PORT);
        let port = port.unwrap_or_else(|error| {
            panic!("{PORT}: {error}: this test runs in the lab, by integration/lab/vm --monitor")
        });
        let lines = BufReader::new(port.try_clone().expect("a second handle"));
        let (sender, messages) = channel();
        // nothing but the process's end can end a read of the port, so this thread ends with the process
        thread::spawn(move || {
            for line in lines.lines().map_while(Result::ok) {
                let line = serde_json::from_str(&line).expect("the monitor speaks JSON");
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let mut qemu = Self { port, messages };
        // QEMU refuses this command if an earlier test program of this boot used the monitor
        let answer = qemu.ask("qmp_capabilities", &json!({}));
        let error = answer.get("error");
        assert!(
            error.is_none_or(|it| it["class"] == "CommandNotFound"),
            "{answer}"
        );
        qemu
    }

    /// Unplugs [`NICS`]`[nic]` with its functions, whichever namespaces they are in, as a hypervisor does: QEMU
    /// requests the release, and the guest releases the NIC. Returns when the NIC has disappeared.
    #[track_caller]
    pub fn unplug(&mut self, nic: usize) -> Unplugged {
        let address = format!("/sys/class/net/{}/address", NICS[nic]);
        let address = fs::read_to_string(address).expect("the NIC is there");
        // the ids and properties of `integration/lab/vm`
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

    /// Plugs a NIC in again. The guest detects it a little later.
    #[track_caller]
    pub fn plug(&mut self, nic: &Unplugged) {
        self.execute("device_add", &nic.0);
    }

    /// Sets or clears the carrier of NIC number `nic`, as a cable does. The NIC is QEMU's device `nic0` or `nic1` in
    /// the tiers `full` and `erdma` of `integration/lab/vm`.
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

    /// Sends `command`. Returns the answer, which has `return` or `error`.
    #[track_caller]
    fn ask(&mut self, command: &str, arguments: &Value) -> Value {
        let line = format!("{}\n", json!({"execute": command, "arguments": arguments}));
        self.port.write_all(line.as_bytes()).expect("sent");
        self.wait_for(command, |it| {
            it.get("return").is_some() || it.get("error").is_some()
        })
    }

    #[track_caller]
    fn wait_for(&self, what: &str, is_it: impl Fn(&Value) -> bool) -> Value {
        let end = Instant::now() + TIMEOUT;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.messages.recv_timeout(left) {
                Ok(message) if is_it(&message) => return message,
                Ok(_) => {}
                Err(error) => panic!("QEMU's monitor, {what}: {error}"),
            }
        }
    }
}
