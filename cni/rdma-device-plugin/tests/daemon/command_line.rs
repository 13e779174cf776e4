// SPDX-License-Identifier: Apache-2.0
//! Tests of the program's output for operators.

use crate::{
    FIRST, HCA, Machine, SECOND, TWO,
    program::{command, run},
};
use integration::{Daemon, Netns, wait};
use std::process::Command;

fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_rdma-device-plugin"))
}

#[test]
fn a_table_of_the_resources_to_advertise() {
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
fn a_node_without_rdma_is_reported() {
    let machine = Machine::bare();
    machine.configure(HCA);
    let done = run(command(&machine).arg("--check-config"));
    assert!(done.status.success(), "{done:?}");
    let table = String::from_utf8_lossy(&done.stdout).into_owned();
    let line = table.lines().find(|line| line.starts_with("rdma/hca"));
    let words: Vec<&str> = line.unwrap_or_default().split_whitespace().collect();
    let why = "not offered: this node has no RDMA devices";
    assert_eq!(
        words.join(" "),
        format!("rdma/hca shared, all 0 - - - - {why}")
    );
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
            let errors = String::from_utf8_lossy(&done.stderr).into_owned();
            assert_eq!(errors.trim_end().lines().count(), 1, "{text:?}: {errors}");
            assert!(errors.contains("config.json"), "{text:?}: {errors}");
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
fn version_and_help_are_printed() {
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

/// Runs in a namespace whose netdevs have the names of the made-up NICs' netdevs.
#[test]
fn a_nic_without_the_pods_address_is_reported() {
    let netns = Netns::new("no-ipv6");
    netns.ip("link set lo up");
    netns.ip("link add ens1 type veth peer name ens2");
    netns.ip("link set ens1 up");
    netns.ip("link set ens2 up");
    netns.ip("address add 2001:db8::1/64 dev ens1 nodad");
    let machine = Machine::with(&[FIRST, SECOND]);
    let lists = machine.path("net.d");
    let plugin = r#"{"ipam": {"type": "rdma-ipam", "from": "parent"}}"#;
    machine.configure(&format!(
        r#"{{"mode": "hca", "chain": {{"confDir": {lists:?}, "plugin": {plugin}}}}}"#
    ));
    let inside = |more: &[&str]| {
        let own = command(&machine);
        let mut command = netns.command(own.get_program());
        command.args(own.get_args()).args(more);
        command
    };
    let done = run(&mut inside(&["--check-config"]));
    assert!(done.status.success(), "{done:?}");
    let table = String::from_utf8(done.stdout).expect("UTF-8");
    assert!(
        table.contains("ens2 (mlx5_1) has no global IPv6 address"),
        "{table}"
    );
    assert!(!table.contains("ens1 (mlx5_0) has no"), "{table}");
    let daemon = Daemon::start(&mut inside(&[]));
    daemon.wait_for_log("ens2 (mlx5_1) has no global IPv6 address");
    assert_eq!(daemon.count("ens1 (mlx5_0) has no"), 0);
    let script = "exec 3<>/dev/tcp/127.0.0.1/9102 && \
                  printf 'GET /metrics HTTP/1.0\\r\\n\\r\\n' >&3 && cat <&3";
    let figures = || {
        let output = run(netns.command("bash").args(["-c", script]));
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        let lines = text
            .lines()
            .filter(|it| it.starts_with("rdma_device_plugin_nic_"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let lacking = r#"rdma_device_plugin_nic_without_ipv6{device="mlx5_1",netdev="ens2"} 1"#;
    wait::until("the NIC is among the figures", || figures() == [lacking]);
    // the report disappears as soon as the NIC has an address
    netns.ip("address add 2001:db8:1::1/64 dev ens2 nodad");
    wait::until("it is not any more", || figures().is_empty());
}

/// A misspelt command or option causes an error that names the nearest one, and has no other
/// effect.
#[test]
fn a_misspelt_word_gets_a_suggestion() {
    for (line, wrong, nearest) in [
        ("doctr", "'doctr'", "'doctor'"),
        ("doctor pods", "'pods'", "'pod'"),
        ("doctor --jso", "'--jso'", "'--json'"),
        ("doctor pod a --gid-indx 5", "'--gid-indx'", "'--gid-index'"),
        ("smc --jsn", "'--jsn'", "'--json'"),
        ("instal", "'instal'", "'install'"),
        ("install --confg a", "'--confg'", "'--config'"),
        ("--confg a", "'--confg'", "'--config'"),
        (
            "--config a --check-confg",
            "'--check-confg'",
            "'--check-config'",
        ),
    ] {
        let done = run(program().args(line.split(' ')));
        assert_eq!(done.status.code(), Some(2), "{line}: {done:?}");
        assert!(done.stdout.is_empty(), "{line}: {done:?}");
        let error = String::from_utf8_lossy(&done.stderr).into_owned();
        for word in [wrong, nearest] {
            assert!(error.contains(word), "{line}: no {word} in {error}");
        }
    }
}

#[test]
fn a_wrong_level_is_answered_with_the_levels() {
    let done = run(program().args(["--config", "a", "--log-level", "dbg"]));
    let error = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(error.contains("error, warn, info, debug, trace"), "{error}");
}

#[test]
fn without_a_word_it_names_its_commands() {
    let done = run(&mut program());
    assert_eq!(done.status.code(), Some(2), "{done:?}");
    let help = String::from_utf8_lossy(&done.stderr).into_owned();
    for word in ["install", "doctor", "--config"] {
        assert!(help.contains(word), "{help}");
    }
}

#[test]
fn smc_reads_its_options() {
    let done = run(program().args(["smc", "--help"]));
    assert!(done.status.success(), "{done:?}");
    let help = String::from_utf8_lossy(&done.stdout).into_owned();
    for word in ["[NAMESPACE|POD]", "--json", "--state-dir"] {
        assert!(help.contains(word), "{help}");
    }
    for wrong in ["--yaml", "a/b/c"] {
        let done = run(program().args(["smc", wrong]));
        assert_eq!(done.status.code(), Some(2), "{done:?}");
        let error = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(error.contains(wrong), "{error}");
    }
    let done = run(program().args(["smc", "--json", "no-such-namespace"]));
    assert_eq!(done.status.code(), Some(1), "{done:?}");
}
