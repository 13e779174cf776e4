// SPDX-License-Identifier: Apache-2.0
//! `cluster-seed DIRECTORY` makes there, anew, what a control plane in the lab starts from: etcd's data
//! after a first start on this machine, keys and certificates.

use integration::ControlPlane;
use std::{env, fs, path::Path, process};

fn main() {
    let Some(directory) = env::args_os().nth(1) else {
        eprintln!("cluster-seed: name a directory");
        process::exit(2);
    };
    let directory = Path::new(&directory);
    if directory.exists() {
        fs::remove_dir_all(directory).expect("what was left is removed");
    }
    fs::create_dir_all(directory).expect("the seed's directory");
    ControlPlane::leave_seed(directory);
}
