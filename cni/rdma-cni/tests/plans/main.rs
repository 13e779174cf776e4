// SPDX-License-Identifier: Apache-2.0
//! Plans as data. Each directory beside this file is a case:
//!
//! | file | has |
//! |---|---|
//! | `request.json` | a network configuration: the plan is ADD's first round |
//! | `record.json` | or an attachment: the plan is one round of bringing it home |
//! | `observed.json` | the state of the host and the pod |
//! | `others.json` | beside a record: other attachments whose devices are not home yet |
//! | `answers.json` | beside a request: what IPAM gave each rail; without it IPAM is still to come |
//! | `plan.txt` | the changes, each as its `ip`/`rdma` equivalent |
//!
//! `UPDATE_PLANS=1 cargo test -p rdma-cni --test plans` writes every `plan.txt` anew, to be
//! read before it is committed.

use attachments::{Attachment, Key, Wanted};
use integration::golden;
use network_conf::{Conf, Devices};
use plan::{
    self,
    select::{self, Choice},
};
use rdma_netns::{InterfaceName, Observed, Op};
use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

#[test]
fn plans_are_as_written() {
    let cases = cases();
    assert!(cases.len() >= 12, "{cases:?}");
    golden::assert_as_written(&cases, |case| case.join("plan.txt"), plan_of);
}

#[test]
fn every_case_is_of_one_kind() {
    for case in cases() {
        let kinds = ["request.json", "record.json"];
        let found = kinds.into_iter().filter(|kind| case.join(kind).exists());
        assert_eq!(found.count(), 1, "{case:?}");
        assert!(case.join("observed.json").exists(), "{case:?}");
    }
}

fn cases() -> Vec<PathBuf> {
    golden::cases(env!("CARGO_MANIFEST_DIR"), "tests/plans", Path::is_dir)
}

fn plan_of(case: &Path) -> String {
    let read = |file: &str| fs::read(case.join(file)).ok();
    let observed = read("observed.json").unwrap();
    let observed: Observed = serde_json::from_slice(&observed)
        .unwrap_or_else(|error| panic!("{case:?}: observed.json: {error}"));
    if let Some(request) = read("request.json") {
        let answers = read("answers.json").map(|answers| {
            serde_json::from_slice::<Vec<Wanted>>(&answers)
                .unwrap_or_else(|error| panic!("{case:?}: answers.json: {error}"))
        });
        return attach(&request, &observed, answers);
    }
    let record: Attachment = serde_json::from_slice(&read("record.json").unwrap())
        .unwrap_or_else(|error| panic!("{case:?}: record.json: {error}"));
    let others = read("others.json").map_or_else(Vec::new, |others| {
        serde_json::from_slice::<Vec<Attachment>>(&others)
            .unwrap_or_else(|error| panic!("{case:?}: others.json: {error}"))
    });
    detach(&record, &others, &observed)
}

fn attach(request: &[u8], observed: &Observed, answers: Option<Vec<Wanted>>) -> String {
    let conf = Conf::parse(cni_protocol::conf::decode(request).unwrap()).unwrap();
    let choice = match conf.required_devices().unwrap() {
        Devices::Address(address) => Choice::Address(address),
        Devices::Selectors(selectors) => Choice::Selectors(selectors),
        Devices::Resources(_) => panic!("kubelet is not asked here"),
    };
    let rails = match select::rails(&conf, &choice, observed, &[]) {
        Ok(rails) => rails,
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
    let attachment = Attachment::new(key, pod, &conf, observed, rails);
    let wanted: Vec<Wanted> = match answers {
        None => rdma_cni::verb::add::wanted(&attachment, observed),
        Some(answers) => {
            let ipv6 = attachment.ipv6();
            let answers = answers.into_iter().map(|it| it.with_detection(ipv6));
            plan::routed(&attachment, observed, answers.collect())
        }
    };
    match plan::attach(&attachment, observed, &wanted) {
        Ok(ops) => lines(&ops),
        Err(obstacle) => format!("# refused: {obstacle}\n"),
    }
}

fn detach(record: &Attachment, others: &[Attachment], observed: &Observed) -> String {
    let plans = plan::detach_beside(record, others, observed, &[]);
    let mut text = String::new();
    for (rail, plan) in record.rails.iter().zip(plans) {
        let _ = writeln!(
            text,
            "# {} in the pod, {} at home",
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
