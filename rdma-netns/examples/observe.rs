// SPDX-License-Identifier: Apache-2.0
//! Prints the observed state of this node, and of a pod: `observe [NETNS-PATH]`. If the environment has `TIMES=n`
//! with n above 0, observes n more times, and prints only the first and the median duration.

use rdma_netns::{Kernel, Linux};
use std::{error::Error, num::NonZeroUsize, path::Path, time::Instant};

fn main() -> Result<(), Box<dyn Error>> {
    let begin = Instant::now();
    let kernel = Linux::new();
    let path = std::env::args_os().nth(1);
    let pod = path
        .map(|path| kernel.open_pod(Path::new(&path)))
        .transpose()?;
    let observed = kernel.observe(pod.as_ref())?;
    eprintln!("first: {} us", begin.elapsed().as_micros());
    let times = std::env::var("TIMES")
        .ok()
        .and_then(|times| times.parse::<NonZeroUsize>().ok());
    let Some(count) = times else {
        println!("{}", serde_json::to_string_pretty(&observed)?);
        return Ok(());
    };
    let mut times = Vec::new();
    for _ in 0..count.get() {
        let begin = Instant::now();
        kernel.observe(pod.as_ref())?;
        times.push(begin.elapsed().as_micros());
    }
    times.sort_unstable();
    eprintln!("median: {} us", times[times.len() / 2]);
    Ok(())
}
