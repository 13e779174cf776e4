// SPDX-License-Identifier: Apache-2.0
//! `mlx5-model [--control SOCKET] [--link ethernet|infiniband] SOCKET=MAC[+SOCKET=MAC][,virtual]...`: cards for QEMU's
//! `vfio-user-pci`. Each argument is a card with one or two functions. See the package's README.

use hardware::{
    mlx5::{
        control,
        fabric::{Card, Fabric, LinkLayer},
        port::{Port, Shared},
    },
    orders, transport,
};
use std::{env, io, process::ExitCode, sync::Arc};

const USAGE: &str = "usage: mlx5-model [--control SOCKET] [--link ethernet|infiniband] \
                     SOCKET=MAC[+SOCKET=MAC][,virtual]...";

#[derive(Default)]
struct Arguments {
    control: Option<String>,
    link: LinkLayer,
    /// The sockets of all functions, card by card.
    sockets: Vec<String>,
    cards: Vec<Card>,
}

fn main() -> ExitCode {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("warn")).init();
    match arguments(env::args().skip(1))
        .and_then(|arguments| run(arguments).map_err(|it| it.to_string()))
    {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mlx5-model: {error}");
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
        if argument == "--link" {
            arguments.link = match given.next().as_deref() {
                Some("ethernet") => LinkLayer::Ethernet,
                Some("infiniband") => LinkLayer::InfiniBand,
                _ => return Err(USAGE.to_owned()),
            };
            continue;
        }
        let mut card = Card::default();
        let functions = argument.strip_suffix(",virtual");
        card.is_virtual = functions.is_some();
        for function in functions.unwrap_or(&argument).split('+') {
            let (socket, mac) = function.split_once('=').ok_or(USAGE)?;
            let mac = orders::mac(mac).ok_or_else(|| format!("{argument}: {mac:?} is no MAC"))?;
            arguments.sockets.push(socket.to_owned());
            card.macs.push(mac);
        }
        if card.macs.len() > 2 {
            return Err(format!("{argument}: a card has one or two functions"));
        }
        arguments.cards.push(card);
    }
    match arguments.cards.is_empty() {
        true => Err(USAGE.to_owned()),
        false => Ok(arguments),
    }
}

fn run(arguments: Arguments) -> io::Result<()> {
    let shared = Shared::new(Fabric::new(arguments.link, &arguments.cards));
    let sockets = arguments.sockets.into_iter().enumerate();
    let ports =
        sockets.map(|(position, socket)| (socket, Port::new(Arc::clone(&shared), position)));
    let endpoints = transport::endpoints(ports)?;
    if let Some(socket) = arguments.control {
        let shared = Arc::clone(&shared);
        orders::serve(&socket, move |line| {
            control::order(&mut shared.fabric(), line)
        })?;
    }
    transport::serve(endpoints);
    shared.run()
}
