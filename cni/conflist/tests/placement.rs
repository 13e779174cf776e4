// SPDX-License-Identifier: Apache-2.0
//! Tests of the place of our entry: in the network's list, or in the network's own directory.

use conflist::{
    Called, Change, Directory, Entry, File, Obstacle, Placed, Placement, Programs, Runtime, called,
    plan::{self, Plan},
};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

const LIST: &str = "10-cbr0.conflist";
const OURS: &str = "cbr0/99-rdma-cni.conf";
/// Files of another program's plugins: one file sorts before our file, and one after it.
const THEIRS: [&str; 2] = ["cbr0/50-rdma.conf", "cbr0/99-zz.conf"];
const TEXT: &str = r#"{"cniVersion":"0.3.1","name":"cbr0","plugins":[{"type":"flannel"}]}"#;

/// A directory of lists, with the names of our files in it.
#[derive(Clone)]
struct Net {
    files: BTreeMap<String, String>,
    placed: Placed,
    entry: Entry,
}

impl Net {
    fn new(files: &[(&str, &str)]) -> Self {
        let files = files
            .iter()
            .map(|(name, text)| (name.to_string(), text.to_string()));
        let fields = json!({"stateDir": "/state"});
        Self {
            files: files.collect(),
            placed: Placed::new(),
            entry: Entry::new(fields.as_object().cloned().expect("fields")),
        }
    }

    fn directory(&self) -> Directory {
        let files = self.files.iter().map(|(name, text)| File {
            name: name.clone(),
            text: Ok(text.clone()),
        });
        Directory::new(files.collect())
    }

    fn plan(&self, placement: &Placement) -> Plan {
        let programs = ["flannel", "terway", "multus-shim", "rdma-cni"].map(str::to_owned);
        let programs = Programs {
            dirs: vec![],
            names: Ok(BTreeSet::from(programs)),
        };
        let (directory, runtime) = (self.directory(), Runtime::Containerd);
        let wanted = (&self.entry, placement);
        plan::attach(&directory, &runtime, wanted, &self.placed, &programs)
    }

    fn carry_out(&mut self, change: Change) -> String {
        match change {
            Change::Write { file, text, .. } => {
                let entry = self.entry.fields().clone();
                self.placed.insert(file.clone(), vec![entry]);
                self.files.insert(file.clone(), text);
                format!("write {file}")
            }
            Change::Remove { file } => {
                self.files.remove(&file);
                self.placed.remove(&file);
                format!("remove {file}")
            }
        }
    }

    /// Applies one plan, after which the next plan must be empty. If the runtime called our plugin before, checks after
    /// each change that the runtime still calls it.
    fn turn(&mut self, placement: &Placement) -> (Vec<String>, Result<Called, Obstacle>) {
        let plan = self.plan(placement);
        let is_called = |net: &Self| {
            net.entries() != [0, 0] || THEIRS.iter().any(|it| net.files.contains_key(*it))
        };
        let was_called = is_called(self);
        let mut done = vec![];
        for change in plan.changes {
            done.push(self.carry_out(change));
            assert!(!was_called || is_called(self), "{done:?}");
        }
        assert_eq!(self.plan(placement).changes, [], "there is more to do");
        let called =
            || called(&self.directory(), &Runtime::Containerd, &self.placed).expect("called");
        (done, plan.obstacle.map_or_else(|| Ok(called()), Err))
    }

    /// Returns the number of real entries in the list and in the directory.
    fn entries(&self) -> [usize; 2] {
        let text = |name: &str| self.files.get(name).map_or("{}", String::as_str);
        let ours = |value: &Value| value["type"] == "rdma-cni" && value["detect"] != true;
        let list: Value = serde_json::from_str(text(LIST)).expect("JSON");
        let plugins = list["plugins"].as_array();
        let in_list = plugins.into_iter().flatten().filter(|it| ours(it));
        let file = serde_json::from_str(text(OURS)).expect("JSON");
        [in_list.count(), usize::from(ours(&file))]
    }
}

fn auto(read: &[&str]) -> Placement {
    let read = read.iter().map(|network| (*network).to_owned());
    Placement::Auto {
        read: read.collect(),
    }
}

#[track_caller]
fn is_in(place: &Result<Called, Obstacle>, file: &str) {
    let expected = Called {
        file: file.to_owned(),
        network: "cbr0".to_owned(),
        by_others: false,
    };
    assert_eq!(place.as_ref(), Ok(&expected));
}

#[test]
fn the_directory_has_a_file_of_ours_and_the_list_is_not_touched() {
    let mut net = Net::new(&[(LIST, TEXT)]);
    let (done, place) = net.turn(&Placement::Directory);
    assert_eq!(done, [format!("write {OURS}")]);
    is_in(&place, OURS);
    assert_eq!(net.files[LIST], TEXT);
    let expected = json!({
        "type": "rdma-cni",
        "stateDir": "/state",
        "capabilities": {"io.kubernetes.cri.pod-annotations": true},
    });
    let text: Value = serde_json::from_str(&net.files[OURS]).expect("JSON");
    assert_eq!(text, expected);
    // if a program writes the list again, our entry in the directory remains
    net.files
        .insert(LIST.into(), TEXT.replace("0.3.1", "1.0.0"));
    assert_eq!(net.turn(&Placement::Directory).0, [] as [&str; 0]);
    // our entry gets another configuration
    net.entry = Entry::default();
    assert_eq!(net.turn(&Placement::Directory).0, [format!("write {OURS}")]);
    let (changes, obstacles) = plan::detach(&net.directory(), &net.placed);
    let file = OURS.to_owned();
    assert_eq!(
        (changes, obstacles),
        (vec![Change::Remove { file }], vec![])
    );
}

/// The entry moves to the directory and back. A pod that starts at any moment gets rails.
#[test]
fn evidence_moves_the_entry_and_its_loss_moves_it_back() {
    let mut net = Net::new(&[(LIST, TEXT)]);
    for _ in 0..2 {
        let (done, place) = net.turn(&auto(&["other"]));
        assert_eq!(done, [format!("write {LIST}"), format!("write {OURS}")]);
        is_in(&place, LIST);
        assert_eq!(net.entries(), [1, 0]);
        let detecting: Value = serde_json::from_str(&net.files[OURS]).expect("JSON");
        let expected = json!({
            "type": "rdma-cni", "detect": true, "resources": ["rdma-cni.invalid/none"], "stateDir": "/state",
        });
        assert_eq!(detecting, expected);
        let (done, place) = net.turn(&auto(&["cbr0"]));
        // the directory is changed first: meanwhile the runtime calls our plugin twice, and the second call has no
        // effect
        assert_eq!(done, [format!("write {OURS}"), format!("write {LIST}")]);
        is_in(&place, OURS);
        assert_eq!((net.entries(), net.files[LIST].as_str()), ([0, 1], TEXT));
    }
    let (done, place) = net.turn(&Placement::List);
    assert_eq!(done, [format!("write {LIST}"), format!("remove {OURS}")]);
    is_in(&place, LIST);
}

#[test]
fn a_list_whose_directory_is_not_read_has_the_entry_itself() {
    let inlined =
        |value: &str| TEXT.replacen('{', &format!("{{\"loadOnlyInlinedPlugins\":{value},"), 1);
    for value in ["true", "\"True\"", "1"] {
        let mut net = Net::new(&[(LIST, &inlined(value))]);
        for placement in [auto(&["cbr0"]), auto(&[])] {
            let (_, place) = net.turn(&placement);
            is_in(&place, LIST);
            assert_eq!((net.entries(), net.files.len()), ([1, 0], 1), "{value}");
        }
        let (done, place) = Net::new(&[(LIST, &inlined(value))]).turn(&Placement::Directory);
        assert_eq!(done, [] as [&str; 0]);
        let why = place.expect_err("an obstacle").to_string();
        assert!(
            why.starts_with("rdma-device-plugin does not change 10-cbr0.conflist"),
            "{why}"
        );
        assert!(why.contains("loadOnlyInlinedPlugins"), "{why}");
    }
    let (_, place) = Net::new(&[(LIST, &inlined("false"))]).turn(&Placement::Directory);
    is_in(&place, OURS);
    // from now on the list forbids libcni to read the directory
    let mut net = Net::new(&[(LIST, TEXT)]);
    net.turn(&auto(&["cbr0"])).1.expect("placed");
    net.files.insert(LIST.into(), inlined("true"));
    let (done, place) = net.turn(&auto(&["cbr0"]));
    assert_eq!(done, [format!("write {LIST}"), format!("remove {OURS}")]);
    is_in(&place, LIST);
}

/// The directory is not used for a single configuration, and not for the network that Multus calls.
#[test]
fn a_runtime_without_a_directory_uses_the_list() {
    let single = r#"{"cniVersion":"0.4.0","name":"cbr0","type":"terway"}"#;
    let multus = r#"{"cniVersion":"0.3.1","name":"m","type":"multus-shim",
        "clusterNetwork":"/host/etc/cni/net.d/10-cbr0.conflist"}"#;
    for placement in [Placement::Directory, auto(&["cbr0"]), auto(&[])] {
        let mut net = Net::new(&[("10-terway.conf", single)]);
        is_in(&net.turn(&placement).1, "10-terway+rdma-cni.conflist");
        assert_eq!(net.files.len(), 2);
        let mut net = Net::new(&[("00-multus.conf", multus), (LIST, TEXT)]);
        let (_, place) = net.turn(&placement);
        match placement {
            Placement::Directory => {
                let why = place.expect_err("an obstacle").to_string();
                assert!(why.contains("Multus calls the network"), "{why}");
            }
            _ => is_in(&place, LIST),
        }
        assert_eq!(net.files.len(), 2);
    }
}

#[test]
fn a_foreign_entry_stays_and_is_not_doubled() {
    let text = r#"{"type":"rdma","deviceID":"0000:3b:00.2"}"#;
    let placements = [
        Placement::Directory,
        Placement::List,
        auto(&["cbr0"]),
        auto(&[]),
    ];
    for (placement, theirs) in placements
        .iter()
        .flat_map(|it| THEIRS.map(|name| (it, (name, text))))
    {
        let mut net = Net::new(&[(LIST, TEXT), theirs]);
        let (done, place) = net.turn(placement);
        assert_eq!(done, [] as [&str; 0]);
        let place = place.expect("placed");
        assert_eq!((place.file.as_str(), place.by_others), (theirs.0, true));
        // another program writes its file after ours
        let mut net = Net::new(&[(LIST, TEXT)]);
        net.turn(placement).1.expect("placed");
        net.files.insert(theirs.0.into(), theirs.1.into());
        assert!(net.turn(placement).1.expect("placed").by_others);
        assert_eq!((net.entries(), net.files[LIST].as_str()), ([0, 0], TEXT));
        assert_eq!(net.files.len(), 2);
        // libcni does not read this extension
        let mut net = Net::new(&[(LIST, TEXT), ("cbr0/50-rdma.conflist", theirs.1)]);
        assert!(!net.turn(placement).1.expect("placed").by_others);
    }
    // another program's entry in the list has another type than ours
    let in_list = TEXT.replace("}]", r#"},{"type":"rdma"}]"#);
    for placement in [Placement::Directory, auto(&["cbr0"]), auto(&[])] {
        let mut net = Net::new(&[(LIST, &in_list)]);
        let (done, place) = net.turn(&placement);
        assert_eq!(done, [] as [&str; 0]);
        assert!(place.expect("placed").by_others);
    }
    // another program's file has the name of our file
    let other = (OURS, r#"{"type":"tuning"}"#);
    let (done, place) = Net::new(&[(LIST, TEXT), other]).turn(&Placement::Directory);
    assert_eq!(done, [] as [&str; 0]);
    let why = place.expect_err("an obstacle").to_string();
    assert!(why.contains("another program wrote this file"), "{why}");
    let mut net = Net::new(&[(LIST, TEXT), other]);
    is_in(&net.turn(&auto(&[])).1, LIST);
    assert_eq!(net.files[OURS], other.1);
}

#[test]
fn a_directory_of_a_network_that_is_not_used_any_more_has_no_file_of_ours() {
    for placement in [Placement::Directory, auto(&["cbr0", "new"])] {
        let mut net = Net::new(&[(LIST, TEXT)]);
        net.turn(&placement).1.expect("placed");
        net.files
            .insert("05-new.conflist".into(), TEXT.replace("cbr0", "new"));
        let plan = net.plan(&placement);
        assert_eq!(plan.obstacle, None);
        plan.changes
            .into_iter()
            .for_each(|it| drop(net.carry_out(it)));
        let called = called(&net.directory(), &Runtime::Containerd, &net.placed);
        assert_eq!(called.expect("called").file, "new/99-rdma-cni.conf");
        let names: Vec<&String> = net.files.keys().collect();
        assert_eq!(names, ["05-new.conflist", LIST, "new/99-rdma-cni.conf"]);
        // another program has written half of a file: everything stays
        net.files.insert("05-new.conflist".into(), "{".into());
        assert_eq!(net.plan(&placement).changes, []);
    }
}
