// SPDX-License-Identifier: Apache-2.0
//! `erdma-model [--control SOCKET] SOCKET=MAC[,roce]...`: eRDMA functions for QEMU's `vfio-user-pci`, one on each socket.
//! All of them are one fabric, whichever virtual machine they are in. The README of the package says more.

use hardware::{
    erdma::{
        Mac, Protocol, control,
        device::Device,
        fabric::Fabric,
        port::{Port, Shared},
    },
    transport::Endpoint,
};
use std::{
    env, fs,
    io::{self, BufRead, BufReader, Write},
    os::unix::net::{UnixListener, UnixStream},
    path::Path,
    process::ExitCode,
    sync::Arc,
    thread,
};

const USAGE: &str = "usage: erdma-model [--control SOCKET] SOCKET=MAC[,roce]...";

/// The command line.
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
        let mac = self::mac(mac).ok_or_else(|| format!("{argument}: {mac:?} is no MAC"))?;
        arguments.functions.push((socket.to_owned(), mac, protocol));
    }
    match arguments.functions.is_empty() {
        true => Err(USAGE.to_owned()),
        false => Ok(arguments),
    }
}

fn mac(text: &str) -> Option<Mac> {
    let bytes = text.split(':').map(|it| u8::from_str_radix(it, 16).ok());
    bytes.collect::<Option<Vec<u8>>>()?.try_into().ok()
}

fn run(arguments: Arguments) -> io::Result<()> {
    let mut fabric = Fabric::default();
    let mut places = Vec::new();
    for (socket, mac, protocol) in arguments.functions {
        places.push((socket, fabric.add(Device::new(mac, protocol))));
    }
    let shared = Shared::new(fabric);
    let mut endpoints = Vec::new();
    for (socket, position) in places {
        let endpoint = Endpoint::new(Path::new(&socket), Port::new(Arc::clone(&shared), position));
        let endpoint =
            endpoint.map_err(|it| io::Error::new(it.kind(), format!("{socket}: {it}")))?;
        endpoints.push((socket, endpoint));
    }
    if let Some(socket) = arguments.control {
        let orders = Arc::clone(&shared);
        let listener =
            listen(&socket).map_err(|it| io::Error::new(it.kind(), format!("{socket}: {it}")))?;
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let orders = Arc::clone(&orders);
                thread::spawn(move || obey(&orders, &stream));
            }
        });
    }
    for (socket, mut endpoint) in endpoints {
        thread::spawn(move || {
            loop {
                if let Err(error) = endpoint.serve() {
                    log::warn!("{socket}: {error}");
                }
            }
        });
    }
    shared.run()
}

fn listen(socket: &str) -> io::Result<UnixListener> {
    match fs::remove_file(socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    UnixListener::bind(socket)
}

/// Executes the orders of a connection until it ends.
fn obey(shared: &Shared, stream: &UnixStream) {
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        let answer = shared.change(|fabric| control::order(fabric, &line));
        let answer = answer.unwrap_or_else(|error| format!("error: {error}\n"));
        let mut stream = stream;
        if stream.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}
