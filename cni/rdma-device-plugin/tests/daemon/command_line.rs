//! What the program says to people.

use crate::{
    FIRST, HCA, Machine, SECOND, TWO,
    program::{command, run},
};
use std::process::Command;

fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_rdma-device-plugin"))
}

#[test]
fn a_table_of_what_would_be_advertised() {
    let machine = Machine::with(&[FIRST, SECOND]);
    machine.configure(TWO);
    let done = run(command(&machine).arg("--check-config"));
    assert!(done.status.success(), "{done:?}");
    let table = String::from_utf8(done.stdout).expect("UTF-8");
    for word in [
        "rdma/hca",
        "rdma/nic",
        "0000:3b:00.0",
        "0000:af:00.0",
        "mlx5_1",
        "ens2",
    ] {
        assert!(table.contains(word), "no {word} in\n{table}");
    }
    assert!(!machine.path("kubelet").exists(), "something was changed");
    assert!(!machine.path("state/resources.json").exists());
}

#[test]
fn a_node_without_rdma_is_told_so() {
    let machine = Machine::bare();
    machine.configure(HCA);
    let done = run(command(&machine).arg("--check-config"));
    assert!(done.status.success(), "{done:?}");
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(said.contains("no RDMA devices"), "{said}");
}

#[test]
fn a_wrong_configuration_is_one_sentence_and_status_1() {
    let machine = Machine::with(&[FIRST]);
    for text in [
        "",
        "{",
        "[]",
        r#"{"mode":"x"}"#,
        r#"{"resources":[]}"#,
        "a: [",
        "\u{0}",
    ] {
        machine.configure(text);
        for check in [true, false] {
            let mut command = command(&machine);
            if check {
                command.arg("--check-config");
            }
            let done = run(&mut command);
            assert_eq!(done.status.code(), Some(1), "{text:?}: {done:?}");
            let said = String::from_utf8_lossy(&done.stderr).into_owned();
            assert_eq!(said.trim_end().lines().count(), 1, "{text:?}: {said}");
            assert!(said.contains("config.json"), "{text:?}: {said}");
        }
    }
    std::fs::remove_file(machine.path("etc/config.json")).expect("removed");
    let done = run(&mut command(&machine));
    assert_eq!(done.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&done.stderr).contains("config.json"));
}

#[test]
fn a_wrong_command_line_is_status_2() {
    for arguments in [
        &[][..],
        &["--config"],
        &["--config", "a", "--metrics-address", "nowhere"],
        &["--config", "a", "--log-level", "loud"],
        &["--config", "a", "b"],
        &["--confg", "a"],
    ] {
        let done = run(program().args(arguments));
        assert_eq!(done.status.code(), Some(2), "{arguments:?}: {done:?}");
        assert!(done.stdout.is_empty(), "{arguments:?}");
        assert!(!done.stderr.is_empty(), "{arguments:?}");
    }
}

#[test]
fn its_version_and_its_help() {
    let done = run(program().arg("--version"));
    assert!(done.status.success());
    let version = format!("rdma-device-plugin {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(String::from_utf8_lossy(&done.stdout), version);
    let done = run(program().arg("--help"));
    assert!(done.status.success());
    let help = String::from_utf8_lossy(&done.stdout).into_owned();
    for flag in [
        "--config",
        "--kubelet-dir",
        "--cdi-dir",
        "--metrics-address",
        "--check-config",
        "--sysfs",
        "--dev",
        "--state-dir",
        "--log-level",
        "--release",
        "--prefer-driver",
        "--allocate-all-devices",
        "--local-eri-discovery",
        "--exposed-local-eris",
        "--jumbo-frame-mtu",
    ] {
        assert!(help.contains(flag), "no {flag} in\n{help}");
    }
}
