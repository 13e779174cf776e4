//! Standard input, output and environment of the process, and the real kernel.

use rdma_netns::Linux;
use std::process::ExitCode;

fn main() -> ExitCode {
    let lossy = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
    let input = rdma_cni::Input {
        arguments: std::env::args_os().skip(1).map(lossy).collect(),
        environment: std::env::vars_os()
            .map(|(name, value)| (lossy(name), lossy(value)))
            .collect(),
    };
    rdma_cni::run(
        input,
        &mut std::io::stdin(),
        &mut std::io::stdout(),
        &Linux::new(),
    )
}
