// SPDX-License-Identifier: Apache-2.0
//! Rust code of the interfaces in `proto/`, without `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let everything = std::env::var_os("CARGO_FEATURE_DEVICE_PLUGIN").is_some();
    compile("proto/pod_resources.proto", everything)?;
    if everything {
        compile("proto/device_plugin.proto", true)?;
        compile("proto/dra.proto", true)?;
        compile("proto/plugin_registration.proto", true)?;
    }
    Ok(())
}

fn compile(file: &str, server: bool) -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed={file}");
    let descriptors = protox::compile([file], ["proto"])?;
    tonic_prost_build::configure()
        .build_server(server)
        .build_transport(false)
        .compile_fds(descriptors)?;
    Ok(())
}
