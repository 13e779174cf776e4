// SPDX-License-Identifier: Apache-2.0
//! Tests plans as data. Each file in `cases` names a base in `bases`, and has the differences from this base (see the
//! crate `cases`):
//!
//! | member | has |
//! |---|---|
//! | `request` | a network configuration: the plan is ADD's first round |
//! | `record` | instead of a request, an attachment: the plan is one round of its restore to the host |
//! | `observed` | the state of the host and the pod |
//! | `others` | with a record: other attachments whose devices are not restored yet |
//! | `answers` | with a request: IPAM's answer for each rail. If this member is missing, ADD has not called IPAM yet |
//!
//! The text file of the same name has the changes, each as the equivalent `ip` or `rdma` command.
//! `UPDATE_PLANS=1 cargo test -p rdma-cni --test plans` writes every text again. Read the texts before you commit
//! them.

use attachments::{Attachment, DesiredLink, Key};
use network_conf::{Conf, Devices};
use plan::{
    self,
    select::{self, Choice},
};
use rdma_cni::verb::{addresses, draft};
use rdma_netns::{InterfaceName, Observed, Op};
use serde::Deserialize;
use serde_json::Value;
use std::{fmt::Write as _, path::Path};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    request: Option<Value>,
    record: Option<Attachment>,
    observed: Observed,
    #[serde(default)]
    others: Vec<Attachment>,
    answers: Option<Vec<DesiredLink>>,
}

#[test]
fn plans_are_as_written() {
    let cases = cases::list(env!("CARGO_MANIFEST_DIR"), "tests/plans/cases");
    assert!(cases.len() >= 12, "{cases:?}");
    cases::assert_as_written(&cases, plan_of);
}

fn plan_of(case: &Path) -> String {
    let Case {
        request,
        record,
        observed,
        others,
        answers,
    } = cases::read_as(case);
    match (request, record) {
        (Some(request), None) => {
            assert!(others.is_empty(), "{case:?}");
            attach(request.to_string().as_bytes(), &observed, answers)
        }
        (None, Some(record)) => {
            assert_eq!(answers, None, "{case:?}");
            detach(&record, &others, &observed)
        }
        _ => panic!("{case:?}: a request or a record"),
    }
}

fn attach(request: &[u8], observed: &Observed, answers: Option<Vec<DesiredLink>>) -> String {
    let conf = Conf::parse(cni_protocol::conf::decode(request).unwrap()).unwrap();
    let choice = match conf.required_devices().unwrap() {
        Devices::Address(address) => Choice::Address(address),
        Devices::Selectors(selectors) => Choice::Selectors(selectors),
        Devices::Resources(_) => panic!("kubelet gets no request here"),
    };
    let rails = match select::rails(&conf, &choice, observed, &[]) {
        Ok(selected) => selected.rails,
        Err(error) => return format!("# refused: {error}\n"),
    };
    let key = Key {
        network: conf.network.name.clone(),
        container: "a".to_owned(),
        interface: InterfaceName::try_from("eth0").unwrap(),
    };
    let pod = (
        Path::new("/run/netns/pod"),
        observed.pod.as_ref().unwrap().id,
    );
    let mut attachment = Attachment::new(key, pod, &conf, observed, rails);
    if let Err(obstacle) = plan::choose_tables(&mut attachment, observed, &[]) {
        return format!("# refused: {obstacle}\n");
    }
    match answers {
        None => draft::give(&mut attachment, observed),
        Some(answers) => {
            let ipv6 = attachment.ipv6();
            let answers = answers.into_iter().map(|it| it.with_detection(ipv6));
            let desired = plan::routed(&attachment, observed, answers.collect());
            addresses::give(&mut attachment, observed, desired);
        }
    }
    match plan::attach(&attachment, observed) {
        Ok(ops) => lines(&ops),
        Err(obstacle) => format!("# refused: {obstacle}\n"),
    }
}

fn detach(record: &Attachment, others: &[Attachment], observed: &Observed) -> String {
    let others = plan::Others {
        unrestored: others.to_vec(),
        ..plan::Others::default()
    };
    let plans = plan::detach(record, &others, observed, &[]);
    let mut text = String::new();
    for (rail, plan) in record.rails.iter().zip(plans) {
        let _ = writeln!(
            text,
            "# {} in the pod, {} on the host",
            rail.pod_name,
            rail.name()
        );
        match plan {
            Ok(ops) if ops.is_empty() => text.push_str("# nothing\n"),
            Ok(ops) => text.push_str(&lines(&ops)),
            Err(obstacle) => {
                let _ = writeln!(text, "# not possible: {obstacle}");
            }
        }
    }
    text
}

fn lines(ops: &[Op]) -> String {
    ops.iter().map(|op| format!("{op}\n")).collect()
}
