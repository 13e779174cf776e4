// SPDX-License-Identifier: Apache-2.0
//! One run of a plugin: arguments and environment, one JSON object, the exit code.

use crate::{Command, ConfError, Environment, EnvironmentError, code, conf, version::SUPPORTED};
use conf_reader::one_line;
use serde_json::{Map, Value, json};
use std::{
    collections::BTreeMap,
    io::{self, Read, Write},
    panic::{AssertUnwindSafe, catch_unwind},
    process::ExitCode,
};

/// Arguments and environment of a process.
#[derive(Debug)]
pub struct Input {
    /// Arguments, without the program's name.
    pub arguments: Vec<String>,
    /// The environment.
    pub environment: BTreeMap<String, String>,
}

impl Input {
    /// Returns the arguments and environment of this process.
    pub fn of_process() -> Self {
        let lossy = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
        let mut environment = BTreeMap::new();
        environment.extend(std::env::vars_os().map(|(name, value)| (lossy(name), lossy(value))));
        Self {
            arguments: std::env::args_os().skip(1).map(lossy).collect(),
            environment,
        }
    }
}

/// Constants of a plugin: name, version, help text, and commands that a person can run.
#[derive(Clone, Copy, Debug)]
pub struct Plugin {
    /// Name of the program.
    pub name: &'static str,
    /// Version of the program.
    pub version: &'static str,
    /// Text that `--help` prints.
    pub usage: &'static str,
    /// Commands that a person can run: the argument, and the command for which it stands.
    pub by_hand: &'static [(&'static str, Command)],
}

/// An error with the fields that CNI defines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// CNI error code.
    pub code: u32,
    /// One sentence: what failed, where, and what to do.
    pub message: String,
    /// Additional explanation.
    pub details: Option<&'static str>,
}

impl Failure {
    /// Returns a failure without an additional explanation.
    pub fn new(code: u32, message: impl ToString) -> Self {
        Self {
            code,
            message: message.to_string(),
            details: None,
        }
    }
}

impl From<ConfError> for Failure {
    fn from(error: ConfError) -> Self {
        Self::new(error.code(), error)
    }
}

impl From<EnvironmentError> for Failure {
    fn from(error: EnvironmentError) -> Self {
        Self::new(code::ENVIRONMENT, error)
    }
}

/// Implementation of the verbs. Its arguments are the environment, the decoded configuration, and the output for the
/// result.
pub type Verb<'a> =
    dyn Fn(&Environment, Map<String, Value>, &mut dyn Write) -> Result<(), Failure> + 'a;

impl Plugin {
    /// Runs one verb, or prints the version or the help text. Returns the exit code. `output` gets the result, or the
    /// error object of CNI. This function answers VERSION itself, and calls `verb` for other verbs.
    pub fn run(
        &self,
        input: Input,
        stdin: &mut dyn Read,
        output: &mut dyn Write,
        verb: &Verb<'_>,
    ) -> ExitCode {
        let arguments: Vec<&str> = input.arguments.iter().map(String::as_str).collect();
        let by_hand = match arguments.as_slice() {
            [] => None,
            ["--version" | "-V"] => {
                return print(output, &format!("{} {}\n", self.name, self.version));
            }
            ["--help" | "-h"] => return print(output, self.usage),
            [word] if self.by_hand.iter().any(|(name, _)| name == word) => {
                let found = self.by_hand.iter().find(|(name, _)| name == word);
                found.map(|(_, command)| *command)
            }
            words => {
                let text = format!(
                    "{}: \"{}\" is not one of its commands\n\n{}",
                    self.name,
                    words.join(" ").escape_debug(),
                    self.usage
                );
                let _ = io::stderr().write_all(text.as_bytes());
                return ExitCode::from(2);
            }
        };
        match self.answer(input.environment, by_hand, stdin, output, verb) {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => {
                log::error!("{}; {}", failure.message, failure.details(self.name));
                ExitCode::FAILURE
            }
        }
    }

    /// Runs one verb like [`Plugin::run`], for a program that contains this plugin. Reads no arguments.
    ///
    /// # Errors
    /// The failure of the verb, which is also written to `output`. The caller logs it.
    pub fn answer(
        &self,
        environment: BTreeMap<String, String>,
        by_hand: Option<Command>,
        stdin: &mut dyn Read,
        output: &mut dyn Write,
        verb: &Verb<'_>,
    ) -> Result<(), Failure> {
        let mut version = SUPPORTED[SUPPORTED.len() - 1].as_str().to_owned();
        let done = catch_unwind(AssertUnwindSafe(|| {
            serve(environment, by_hand, stdin, output, verb, &mut version)
        }));
        let failure = match done {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(failure)) => failure,
            Err(_) => Failure::new(
                code::INTERNAL,
                format!(
                    "{} stopped because of a defect; a later DEL undoes its changes; standard error has the position \
                     in the code",
                    self.name
                ),
            ),
        };
        // the exit code shows the failure even if the output cannot be written
        let _ = write(output, &failure.object(self.name, &version));
        Err(failure)
    }
}

/// Initial capacity in bytes of the buffer for standard input. Most configurations are shorter.
const INPUT: usize = 4096;

fn serve(
    environment: BTreeMap<String, String>,
    by_hand: Option<Command>,
    stdin: &mut dyn Read,
    output: &mut dyn Write,
    verb: &Verb<'_>,
    version: &mut String,
) -> Result<(), Failure> {
    let environment = Environment::parse(environment, by_hand)?;
    let mut text = Vec::with_capacity(INPUT);
    stdin
        .read_to_end(&mut text)
        .map_err(|error| ConfError::NotJson(error.to_string()))?;
    if environment.command == Command::Version {
        return write(output, &versions(&text)?).map_err(unwritten);
    }
    let raw = conf::decode(&text)?;
    conf::version_text(&raw).clone_into(version);
    verb(&environment, raw, output)
}

/// Returns the failure of a verb that cannot write its result.
pub fn unwritten(error: io::Error) -> Failure {
    let message = format!("cannot write the answer to standard output: {error}");
    Failure::new(code::IO, message)
}

fn print(output: &mut dyn Write, text: &str) -> ExitCode {
    match output
        .write_all(text.as_bytes())
        .and_then(|()| output.flush())
    {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Answers VERSION. Standard input may be empty.
fn versions(text: &[u8]) -> Result<Value, ConfError> {
    let requested = match text.iter().all(u8::is_ascii_whitespace) {
        true => None,
        false => conf::decode(text)?
            .get("cniVersion")
            .and_then(Value::as_str)
            .map(str::to_owned),
    };
    let newest = SUPPORTED[SUPPORTED.len() - 1].as_str();
    Ok(json!({
        "cniVersion": requested.as_deref().unwrap_or(newest),
        "supportedVersions": SUPPORTED.map(crate::SpecVersion::as_str),
    }))
}

impl Failure {
    fn object(&self, plugin: &str, version: &str) -> Value {
        json!({
            "cniVersion": version,
            "code": self.code,
            // one line, because runtimes log the message and kubectl prints it
            "msg": one_line(&self.message),
            "details": self.details(plugin),
        })
    }

    /// Returns the explanation and the code. Runtimes print only `msg` and `details` (libcni: `types.Error`).
    fn details(&self, plugin: &str) -> String {
        let explanation = self.details.map_or(String::new(), |it| format!("{it}; "));
        format!("{explanation}{plugin} error {}", self.code)
    }
}

/// Writes `value` and a newline to `output`, and flushes it.
pub fn write(output: &mut dyn Write, value: &Value) -> io::Result<()> {
    let mut text = serde_json::to_vec(value)?;
    text.push(b'\n');
    output.write_all(&text)?;
    output.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_line() {
        let failure = Failure {
            code: code::IO,
            message: "process 17 (x\u{1b}[2J\nz) has the lock".into(),
            details: None,
        };
        let object = failure.object("rdma-cni", "1.1.0");
        assert_eq!(object["msg"], "process 17 (x\\u{1b}[2J\\nz) has the lock");
        assert_eq!(object["details"], "rdma-cni error 5");
    }
}
