// SPDX-License-Identifier: Apache-2.0
//! Parts that both model programs share: hardware addresses in command lines, and the control socket.

use std::{
    fs,
    io::{self, BufRead, BufReader, Write},
    os::unix::net::{UnixListener, UnixStream},
    sync::Arc,
    thread,
};

/// Parses a hardware address.
pub fn mac(text: &str) -> Option<[u8; 6]> {
    let bytes = text.split(':').map(|it| u8::from_str_radix(it, 16).ok());
    bytes.collect::<Option<Vec<u8>>>()?.try_into().ok()
}

/// Returns the positions of the functions that `mac` selects: the function with this name, or all of them
/// for `all`.
///
/// # Errors
/// No function has this name.
pub fn named<'a>(
    names: impl IntoIterator<Item = &'a str>,
    mac: &str,
) -> Result<Vec<usize>, String> {
    let names = names.into_iter().enumerate();
    let found: Vec<usize> = names
        .filter(|(_, name)| mac == "all" || name.eq_ignore_ascii_case(mac))
        .map(|(position, _)| position)
        .collect();
    match found.is_empty() {
        true => Err(format!("no function has the MAC {mac:?}")),
        false => Ok(found),
    }
}

/// Executes the orders that arrive on `socket`, one per line, in threads. The answer to a failed order is
/// `error: ` and the reason.
///
/// # Errors
/// The socket cannot be created.
pub fn serve(
    socket: &str,
    execute: impl Fn(&str) -> Result<String, String> + Send + Sync + 'static,
) -> io::Result<()> {
    match fs::remove_file(socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(socket)
        .map_err(|it| io::Error::new(it.kind(), format!("{socket}: {it}")))?;
    let execute = Arc::new(execute);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let execute = Arc::clone(&execute);
            thread::spawn(move || obey(&*execute, &stream));
        }
    });
    Ok(())
}

/// Executes the orders of a connection until it ends.
fn obey(execute: &dyn Fn(&str) -> Result<String, String>, mut stream: &UnixStream) {
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        let answer = execute(&line).unwrap_or_else(|error| format!("error: {error}\n"));
        if stream.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}
