// SPDX-License-Identifier: Apache-2.0
//! Tests of the eRDMA agent's flags, alone and with a configuration file.

use ::erdma::conf::DriverMode;
use clap::Parser;
use daemon_conf::{Allocate, Ids, Origin, Parsed};
use rdma_device_plugin::cli::Arguments;
use std::fs;

fn with_flags(file: Option<&str>, flags: &[&str]) -> Result<Parsed, String> {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("config.yaml");
    let mut line = vec!["rdma-device-plugin".to_owned()];
    if let Some(text) = file {
        fs::write(&path, text).expect("written");
        line.extend(["--config".to_owned(), path.to_string_lossy().into_owned()]);
    }
    line.extend(flags.iter().map(|flag| (*flag).to_owned()));
    let arguments = Arguments::try_parse_from(line).map_err(|error| error.to_string())?;
    arguments.conf().map_err(|error| error.to_string())
}

#[test]
fn the_agents_flags_are_enough() {
    let parsed = with_flags(
        None,
        &[
            "--prefer-driver",
            "compat",
            "--allocate-all-devices",
            "--local-eri-discovery",
            "--exposed-local-eris",
            "i-bp1 erdma_0/erdma_1,i-* erdma_*",
            "--jumbo-frame-mtu=8500",
        ],
    )
    .expect("flags");
    assert_eq!(parsed.remarks, [] as [&str; 0]);
    assert_eq!(parsed.conf.erdma.prefer_driver, Some(DriverMode::Compat));
    assert_eq!(parsed.conf.erdma.exposed.len(), 2);
    assert_eq!(parsed.conf.resources[0].name.as_str(), "aliyun/erdma");
    assert_eq!(allocates(&parsed), Some(Allocate::All));
}

fn allocates(parsed: &Parsed) -> Option<Allocate> {
    let resource = parsed.conf.resources.iter();
    let resource = resource
        .into_iter()
        .find(|it| it.name.as_str() == "aliyun/erdma")?;
    match resource.ids {
        Ids::PerNic { allocate, .. } | Ids::Shared { allocate, .. } => Some(allocate),
        Ids::Exclusive => None,
    }
}

#[test]
fn flags_as_go_reads_them() {
    for (flags, all) in [
        (&["--allocate-all-devices=true"][..], Allocate::All),
        (&["--allocate-all-devices=1"], Allocate::All),
        (&["--allocate-all-devices=False"], Allocate::Numa),
        (&["--local-eri-discovery"], Allocate::Numa),
        (&["--prefer-driver", ""], Allocate::Numa),
        (&["--exposed-local-eris", ""], Allocate::Numa),
        // a container gets all named NICs, as with the agent
        (&["--exposed-local-eris=i-* erdma_0"], Allocate::All),
        (
            &[
                "--exposed-local-eris=i-* erdma_0",
                "--allocate-all-devices=false",
            ],
            Allocate::Numa,
        ),
    ] {
        let parsed = with_flags(None, flags).unwrap_or_else(|error| panic!("{flags:?}: {error}"));
        assert_eq!(allocates(&parsed), Some(all), "{flags:?}");
        assert_eq!(parsed.conf.erdma.origin, Origin::User, "{flags:?}");
    }
    let zero = with_flags(None, &["--jumbo-frame-mtu=0"]).expect("the agent's own choice");
    assert_eq!(zero.conf.erdma.bring_up.expect("on").mtu, 8500);
    for (flags, why) in [
        (&[][..], "--config"),
        (
            &["--prefer-driver=roce"],
            "must be one of default, compat, ofed",
        ),
        (&["--allocate-all-devices=yes"], "must be true or false"),
        (&["--exposed-local-eris=erdma_0"], "i-* erdma_0/erdma_1"),
        (
            &["--exposed-local-eris=i-* erdma_0,"],
            "i-* erdma_0/erdma_1",
        ),
        (&["--jumbo-frame-mtu=100"], "from 1280 to 65535"),
        (&["--jumbo-frame-mtu=much"], "from 1280 to 65535"),
    ] {
        let error = with_flags(None, flags).expect_err("a wrong value");
        assert!(error.contains(why), "{flags:?}: {error}");
    }
}

#[test]
fn flags_take_precedence_over_the_file_and_that_is_reported() {
    let file = "erdma: {preferDriver: default, exposedLocalERIs: ['i-* erdma_0'], jumboFrameMTU: \
                4200}\nresources: [{name: aliyun/erdma, kind: perNic}]";
    let parsed = with_flags(
        Some(file),
        &[
            "--prefer-driver=ofed",
            "--exposed-local-eris=i-* erdma_1",
            "--jumbo-frame-mtu=9000",
            "--local-eri-discovery=false",
        ],
    );
    let parsed = parsed.expect("both");
    assert_eq!(
        parsed.remarks,
        [
            "--prefer-driver=ofed overrides erdma.preferDriver of the file",
            "--exposed-local-eris overrides erdma.exposedLocalERIs of the file",
            "--jumbo-frame-mtu=9000 overrides erdma.jumboFrameMTU of the file",
            "--local-eri-discovery=false: ignored, because the daemon itself discovers the NICs, without a controller",
            "--exposed-local-eris sets resources[0].allocate to all, and overrides the file",
        ]
    );
    assert_eq!(parsed.conf.erdma.prefer_driver, Some(DriverMode::Ofed));
    assert_eq!(parsed.conf.erdma.bring_up.expect("on").mtu, 9000);

    // a flag with the file's value overrides nothing
    let same = with_flags(
        Some("erdma: {preferDriver: compat}"),
        &["--prefer-driver=compat"],
    );
    assert_eq!(same.expect("both").remarks, [] as [&str; 0]);
    // with a flag, the daemon also brings NICs up if the file has a foreign format
    let foreign = with_flags(Some("mode: hca"), &["--allocate-all-devices"]).expect("both");
    assert!(foreign.conf.erdma.bring_up.is_some());
    assert_eq!(
        foreign.remarks,
        [
            "--allocate-all-devices=true: has no effect, because the configuration has no resource aliyun/erdma",
        ]
    );
    let off = with_flags(
        Some("erdma: {configureNICs: false}"),
        &["--jumbo-frame-mtu=8500"],
    );
    assert_eq!(
        off.expect("both").remarks,
        ["--jumbo-frame-mtu=8500: has no effect with configureNICs: false"]
    );
}
