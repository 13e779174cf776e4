// SPDX-License-Identifier: Apache-2.0
//! `erdma-model [--control SOCKET] SOCKET=MAC[,roce]...`: eRDMA functions for QEMU's `vfio-user-pci`, one on each
//! socket. All of them are on one fabric, whichever virtual machines they are in. See the package's README.

use hardware::{
    erdma::{
        Mac, Protocol, control,
        device::Device,
        fabric::Fabric,
        port::{Port, Shared},
    },
    orders, transport,
};
use std::{env, io, process::ExitCode, sync::Arc};

const USAGE: &str = "usage: erdma-model [--control SOCKET] SOCKET=MAC[,roce]...";

#[derive(Default)]
struct Arguments {
    control: Option<String>,
    functions: Vec<(String, Mac, Protocol)>,
}

fn main() -> ExitCode {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("warn")).init();
    match arguments(env::args().skip(1))
        .and_then(|arguments| run(arguments).map_err(|it| it.to_string()))
    {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("erdma-model: {error}");
            ExitCode::FAILURE
        }
    }
}

fn arguments(mut given: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let mut arguments = Arguments::default();
    while let Some(argument) = given.next() {
        if argument == "--control" {
            arguments.control = Some(given.next().ok_or(USAGE)?);
            continue;
        }
        let (socket, rest) = argument.split_once('=').ok_or(USAGE)?;
        let (mac, protocol) = match rest.split_once(',') {
            None => (rest, Protocol::Iwarp),
            Some((mac, "roce")) => (mac, Protocol::Roce),
            Some((_, other)) => {
                return Err(format!("{argument}: {other:?} is no option; there is roce"));
            }
        };
        let mac = orders::mac(mac).ok_or_else(|| format!("{argument}: {mac:?} is no MAC"))?;
        arguments.functions.push((socket.to_owned(), mac, protocol));
    }
    match arguments.functions.is_empty() {
        true => Err(USAGE.to_owned()),
        false => Ok(arguments),
    }
}

fn run(arguments: Arguments) -> io::Result<()> {
    let mut fabric = Fabric::default();
    let mut places = Vec::new();
    for (socket, mac, protocol) in arguments.functions {
        places.push((socket, fabric.add(Device::new(mac, protocol))));
    }
    let shared = Shared::new(fabric);
    let ports = places.into_iter();
    let ports = ports.map(|(socket, position)| (socket, Port::new(Arc::clone(&shared), position)));
    let endpoints = transport::endpoints(ports)?;
    if let Some(socket) = arguments.control {
        let shared = Arc::clone(&shared);
        orders::serve(&socket, move |line| {
            shared.change(|fabric| control::order(fabric, line))
        })?;
    }
    transport::serve(endpoints);
    shared.run()
}
