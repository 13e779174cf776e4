// SPDX-License-Identifier: Apache-2.0
//! A server and a client with connections over SMC or TCP. They exchange bytes that both ends can compute, and compare
//! every byte.
//!
//! ```text
//! smc-peer server [--tcp|--ipproto] [--hold] ADDRESS:PORT
//! smc-peer client [--tcp|--ipproto] [--bytes N] [--connections K] [--hold] ADDRESS:PORT
//! ```
//! The sockets are of AF_SMC. With `--tcp` they are plain TCP sockets, with `--ipproto` sockets of AF_INET with
//! IPPROTO_SMC (Linux 6.11). The client opens K connections one after the other. It then sends N bytes by each of them
//! simultaneously, and the server sends the same number back. If the client was started with a scheduling priority, it
//! drops the priority after connecting. Server and client print events on standard output, one JSON object per line.
//! The server ends when its standard input is closed. With `--hold` the client keeps its connections open until its own
//! standard input is closed, and the server keeps its ends open until it ends. Exit code 1: an operation failed, or
//! bytes differed.

mod payload;
mod sockets;

use integration::smc::schedule;
use nix::libc::SCHED_OTHER;
use payload::Exchange;
use serde_json::{Value, json};
use sockets::Kind;
use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    process::ExitCode,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Instant,
};

struct Arguments {
    serve: bool,
    kind: Kind,
    bytes: u64,
    connections: u64,
    hold: bool,
    address: SocketAddr,
}

/// True if an operation in a thread failed.
static FAILED: AtomicBool = AtomicBool::new(false);

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let Some(arguments) = parse(&words) else {
        eprintln!(
            "smc-peer: unknown arguments {words:?}: see the header of src/bin/smc-peer/main.rs"
        );
        return ExitCode::from(2);
    };
    let done = match arguments.serve {
        true => serve(&arguments),
        false => connect(&arguments),
    };
    if let Err(error) = done {
        eprintln!("smc-peer: {error}");
        return ExitCode::FAILURE;
    }
    match FAILED.load(Ordering::Relaxed) {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    }
}

fn parse(words: &[String]) -> Option<Arguments> {
    let (role, words) = words.split_first()?;
    let (address, options) = words.split_last()?;
    let mut arguments = Arguments {
        serve: match role.as_str() {
            "server" => true,
            "client" => false,
            _ => return None,
        },
        kind: Kind::Smc,
        bytes: 0,
        connections: 1,
        hold: false,
        address: address.parse().ok()?,
    };
    let mut options = options.iter();
    while let Some(option) = options.next() {
        match option.as_str() {
            "--tcp" => arguments.kind = Kind::Tcp,
            "--ipproto" => arguments.kind = Kind::IpProto,
            "--hold" => arguments.hold = true,
            "--bytes" => arguments.bytes = options.next()?.parse().ok()?,
            "--connections" => arguments.connections = options.next()?.parse().ok()?,
            _ => return None,
        }
    }
    Some(arguments)
}

fn emit(event: &Value) {
    let mut output = io::stdout().lock();
    // a closed pipe is no failure of the connections
    let _ = writeln!(output, "{event}");
    let _ = output.flush();
}

/// Accepts connections until standard input is closed. Without `--hold`, the server closes its end of a connection when
/// the client closes the other end.
fn serve(arguments: &Arguments) -> io::Result<()> {
    let listener = sockets::listen(arguments.kind, arguments.address)?;
    let hold = arguments.hold;
    emit(&json!({"event": "listening", "address": listener.local_addr()?}));
    thread::spawn(move || {
        for number in 0_u64.. {
            match listener.accept() {
                Ok((stream, peer)) => {
                    emit(&json!({"event": "accepted", "connection": number, "peer": peer}));
                    thread::spawn(move || answer(number, &stream, hold));
                }
                Err(error) => {
                    failed(number, &error);
                    return;
                }
            }
        }
    });
    wait_for_the_end()
}

fn answer(number: u64, stream: &TcpStream, hold: bool) {
    let exchanged = Exchange::requested(stream).and_then(|exchange| exchange.run(stream));
    report(number, exchanged);
    // waits until the client closes the connection
    let _ = (&*stream).read(&mut [0]);
    if hold {
        loop {
            thread::park();
        }
    }
}

fn connect(arguments: &Arguments) -> io::Result<()> {
    let mut streams = vec![];
    for number in 0..arguments.connections {
        let begin = Instant::now();
        let stream = sockets::connect(arguments.kind, arguments.address)?;
        let microseconds = begin.elapsed().as_micros() as u64;
        let local = stream.local_addr()?;
        emit(&json!({
            "event": "connected", "connection": number, "microseconds": microseconds,
            "local": local,
        }));
        streams.push(stream);
    }
    // the exchange has no scheduling priority
    schedule(SCHED_OTHER, 0)?;
    thread::scope(|scope| {
        for (number, stream) in (0..).zip(&streams) {
            let bytes = arguments.bytes;
            scope.spawn(move || {
                let exchanged = Exchange::ask(stream, number, bytes);
                report(number, exchanged.and_then(|exchange| exchange.run(stream)));
            });
        }
    });
    emit(&json!({"event": "exchanged"}));
    match arguments.hold {
        true => wait_for_the_end(),
        false => Ok(()),
    }
}

fn report(number: u64, exchanged: io::Result<Exchange>) {
    match exchanged {
        Ok(exchange) => emit(&json!({
            "event": "equal", "connection": number, "bytes": exchange.bytes,
        })),
        Err(error) => failed(number, &error),
    }
}

fn failed(number: u64, error: &io::Error) {
    FAILED.store(true, Ordering::Relaxed);
    emit(&json!({"event": "failed", "connection": number, "why": error.to_string()}));
}

fn wait_for_the_end() -> io::Result<()> {
    io::copy(&mut io::stdin(), &mut io::sink()).map(drop)
}
