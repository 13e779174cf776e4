// SPDX-License-Identifier: Apache-2.0
//! Generates Rust code from `proto/cri.proto`, without `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto/cri.proto");
    let descriptors = protox::compile(["proto/cri.proto"], ["proto"])?;
    tonic_prost_build::configure()
        .build_server(false)
        .build_transport(false)
        .compile_fds(descriptors)?;
    Ok(())
}
