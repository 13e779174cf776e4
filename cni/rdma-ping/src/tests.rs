// SPDX-License-Identifier: Apache-2.0
//! Tests of the command without RDMA devices.

use super::*;
use clap::Parser;

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    arguments: Arguments,
}

fn pinged(arguments: &[&str]) -> (ExitCode, String, String) {
    let state = tempfile::tempdir().expect("a directory");
    let directory = state.path().to_str().expect("UTF-8");
    let fixed = ["ping", "--state-dir", directory, "--dev", directory];
    let all = fixed.iter().chain(arguments);
    let arguments = Command::parse_from(all).arguments;
    let (mut output, mut errors) = (vec![], vec![]);
    let code = run(&arguments, &mut output, &mut errors);
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (code, text(output), text(errors))
}

#[test]
fn a_node_without_a_connection_manager_is_one_sentence() {
    let (code, output, errors) = pinged(&["192.0.2.1", "--count", "3"]);
    assert_eq!((code, errors.as_str()), (ExitCode::FAILURE, ""));
    assert!(output.contains("load the module rdma_ucm"), "{output}");
    let summary = "192.0.2.1: 0 sent, 0 answered";
    assert!(output.contains(summary), "{output}");
}

#[test]
fn a_pod_without_rails_here_is_one_sentence() {
    for arguments in [&["a/b"][..], &["192.0.2.1", "--pod", "a/b"]] {
        let (code, output, errors) = pinged(arguments);
        assert_eq!((code, output.as_str()), (ExitCode::FAILURE, ""));
        assert_eq!(
            errors,
            "rdma-device-plugin ping: pod a/b has no rails on this node: if it runs on another node, ping the \
             addresses of its rails\n"
        );
    }
}

#[test]
fn a_node_is_pinged_alone() {
    for arguments in [&["node-b", "192.0.2.1"][..], &["node-b", "--pod", "a/b"]] {
        let (code, output, errors) = pinged(arguments);
        assert_eq!((code, output.as_str()), (ExitCode::FAILURE, ""));
        let begin =
            "rdma-device-plugin ping: a node cannot be combined with other targets or --pod";
        assert!(errors.starts_with(begin), "{errors}");
    }
}

#[test]
fn rails_of_other_places_than_the_other_node_s_are_refused() {
    let rail = |netdev: &str| Rail::new(netdev.to_owned(), None, vec![]);
    let of_node = |number: i64| Rail {
        place: Some(("rdma/hca".to_owned(), number)),
        ..rail(&format!("eth{number}"))
    };
    let nodes = |others: &[i64]| Nodes {
        name: "a".to_owned(),
        own: vec![of_node(0), of_node(1)],
        others: others.iter().map(|it| of_node(*it)).collect(),
    };
    let found = |from, others: &[i64]| {
        let rails = ["eth0", "eth1", "eth2"].map(rail);
        let found = in_slices(rails.to_vec(), from, &nodes(others), "b");
        found
            .map(|it| it.into_iter().map(|it| it.netdev).collect::<Vec<_>>())
            .map_err(|it| it.to_string())
    };
    let refused = |rail: &str| {
        Err(format!(
            "{rail} in the ResourceSlices of node b: rails pair by resource and number, so give both nodes the \
             same resources, or ping the addresses of the rails"
        ))
    };
    let all = Ok(vec!["eth0".to_owned(), "eth1".to_owned()]);
    assert_eq!(found(None, &[0]), all);
    assert_eq!(found(None, &[2]), refused("no rail of this node is also"));
    assert_eq!(found(Some("eth0"), &[0]), Ok(vec!["eth0".to_owned()]));
    for from in ["eth1", "eth2"] {
        let rail = format!("rail {from} of this node is not");
        assert_eq!(found(Some(from), &[0]), refused(&rail));
    }
}

#[test]
fn an_unknown_rail_is_refused_with_those_that_are_there() {
    let rail = |netdev: &str| Rail::new(netdev.to_owned(), None, vec![]);
    for (pod, message) in [
        (None, "rdma2 is no rail here (rails here: rdma0, rdma1)"),
        (
            Some("a/b"),
            "rdma2 is no rail of pod a/b (rails of pod a/b: rdma0, rdma1)",
        ),
    ] {
        let error = named(vec![rail("rdma0"), rail("rdma1")], "rdma2", pod);
        assert_eq!(error.expect_err("unknown").to_string(), message);
    }
    let found = named(vec![rail("rdma0"), rail("rdma1")], "rdma1", None).expect("known");
    assert_eq!(found, [rail("rdma1")]);
}
