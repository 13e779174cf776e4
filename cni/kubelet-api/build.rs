// SPDX-License-Identifier: Apache-2.0
//! Generates the Rust code of the interfaces in `proto/`, without `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let everything = std::env::var_os("CARGO_FEATURE_DEVICE_PLUGIN").is_some();
    compile("proto/pod_resources.proto", everything)?;
    if everything {
        compile("proto/device_plugin.proto", true)?;
        compile("proto/dra.proto", true)?;
        // use a separate directory, because dra_health.proto has a package of the same name as pod_resources.proto
        compile_to(Some("dra-health"), "proto/dra_health.proto", true)?;
        compile("proto/plugin_registration.proto", true)?;
    }
    Ok(())
}

fn compile(file: &str, server: bool) -> Result<(), Box<dyn std::error::Error>> {
    compile_to(None, file, server)
}

fn compile_to(
    directory: Option<&str>,
    file: &str,
    server: bool,
) -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed={file}");
    let descriptors = protox::compile([file], ["proto"])?;
    let mut builder = tonic_prost_build::configure()
        .build_server(server)
        .build_transport(false);
    if let Some(directory) = directory {
        let directory = std::path::PathBuf::from(std::env::var("OUT_DIR")?).join(directory);
        std::fs::create_dir_all(&directory)?;
        builder = builder.out_dir(directory);
    }
    builder.compile_fds(descriptors)?;
    Ok(())
}
