//! The CNI protocol: environment and standard input in, one JSON object out.
//! Nothing in here knows of devices.

pub mod environment;
pub mod result;
pub mod version;

pub use environment::{Command, Environment, Target};
pub use version::SpecVersion;
