// SPDX-License-Identifier: Apache-2.0
//! `rdma-device-plugin doctor`: looks at a node, and says of all that is not as it should be what
//! to do. It changes nothing.
//!
//! ```text
//! gather   → Facts          sysfs, netlink, files, sockets; what cannot be seen is told
//! examine  → Vec<Finding>   pure
//! report   → text           one screen
//! ```

mod arguments;
pub mod examine;
pub mod facts;
pub mod gather;
pub mod pod;
mod report;

pub use arguments::Paths;

use arguments::{Arguments, Format, Parsed};
use conf_reader::one_line;
use examine::{Finding, Severity};
use facts::Facts;
use rdma_netns::Linux;
use serde_json::json;
use std::{
    io::{self, Write},
    path::Path,
    process::ExitCode,
};

const USAGE: &str = "\
rdma-device-plugin doctor [--json|--facts] [--strict] [--root DIR] [--cni-conf-dir DIR]
                          [--cni-bin-dir DIR] [--state-dir DIR] [--kubelet-dir DIR]
rdma-device-plugin doctor pod [NAMESPACE/]NAME [--gid-index N] [--root DIR] [--state-dir DIR]

Looks at this node, and says what keeps pods from RDMA and what to do. It changes nothing.

  --json               the findings as JSON
  --facts              all that was seen, as JSON; for a report of a defect
  --strict             warnings count as errors do
  --root DIR           the host's file system, in a container that has it mounted (default /)
  --cni-conf-dir DIR   default /etc/cni/net.d
  --cni-bin-dir DIR    default /opt/cni/bin; once for each directory of the runtime
  --state-dir DIR      default: as configured, else /var/lib/cni/rdma-cni
  --kubelet-dir DIR    default /var/lib/kubelet

pod: the pod's rails, with the GID index of each address, what a program uses that has pinned another
one (NCCL_IB_GID_INDEX), and what NCCL takes without.

  --gid-index N        the pinned one; default 3

Exit code: 0 no errors, 1 an error: some pod will fail or go without RDMA, 2 wrong usage, or no
errors as far as it could look.
";

/// How a run ends.
const ERRORS: u8 = 1;
const NOT_SEEN: u8 = 2;

/// Runs with the `arguments` after the word `doctor`. What was found goes to `output`; what keeps
/// it from being told is one sentence on `errors`.
pub fn run(arguments: &[String], output: &mut dyn Write, errors: &mut dyn Write) -> ExitCode {
    let arguments = match arguments::parse(arguments) {
        Ok(Parsed::Examine(arguments)) => arguments,
        Ok(Parsed::Help) => return print(USAGE, 0, output, errors),
        Ok(Parsed::Pod(question, paths)) => return of_pod(&question, &paths, output, errors),
        Err(error) => {
            let _ = write!(errors, "rdma-device-plugin doctor: {error}\n\n{USAGE}");
            return ExitCode::from(NOT_SEEN);
        }
    };
    let Arguments {
        paths,
        format,
        strict,
    } = arguments;
    let kernel = Linux::with_roots(paths.root.join("sys"), paths.root.join("dev"));
    let facts = gather::gather(&kernel, &paths);
    let findings = examine::examine(&facts);
    let text = match format {
        Format::Text => report(&facts, &findings),
        Format::Json => format!(
            "{:#}\n",
            json!({ "version": facts.version, "findings": findings, "unseen": facts.unseen })
        ),
        Format::Facts => format!("{:#}\n", json!(facts)),
    };
    print(&text, code(&facts, &findings, strict), output, errors)
}

fn of_pod(
    question: &pod::Question,
    paths: &Paths,
    output: &mut dyn Write,
    errors: &mut dyn Write,
) -> ExitCode {
    let kernel = Linux::with_roots(paths.root.join("sys"), paths.root.join("dev"));
    let state_dir = paths.state_dir.as_deref();
    let state_dir = state_dir.unwrap_or_else(|| Path::new("/var/lib/cni/rdma-cni"));
    match pod::answer(&kernel, &paths.root, state_dir, question) {
        Ok(text) => print(&text, 0, output, errors),
        Err(error) => {
            let error = error.to_string();
            let _ = writeln!(errors, "rdma-device-plugin doctor: {}", one_line(&error));
            ExitCode::from(NOT_SEEN)
        }
    }
}

/// The findings as people read them.
pub fn report(facts: &Facts, findings: &[Finding]) -> String {
    report::text(facts, findings)
}

/// The exit code.
pub fn code(facts: &Facts, findings: &[Finding], strict: bool) -> u8 {
    let worst = findings.iter().map(|it| it.severity).max();
    let bad = match strict {
        true => Severity::Warning,
        false => Severity::Error,
    };
    match worst {
        Some(worst) if worst >= bad => ERRORS,
        _ if !facts.unseen.is_empty() => NOT_SEEN,
        _ => 0,
    }
}

fn print(text: &str, code: u8, output: &mut dyn Write, errors: &mut dyn Write) -> ExitCode {
    let written = output
        .write_all(text.as_bytes())
        .and_then(|()| output.flush());
    match written {
        Ok(()) => ExitCode::from(code),
        // whoever read it has seen enough
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::from(code),
        Err(error) => {
            let _ = writeln!(
                errors,
                "rdma-device-plugin doctor: cannot write to standard output: {error}"
            );
            ExitCode::from(NOT_SEEN)
        }
    }
}
