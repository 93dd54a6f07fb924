//! The configuration of NetACC: its keys, the sources of their values, and the diagnostics about wrong ones.
//!
//! A value may come from four places, each overriding the one before it: the built-in default, the
//! configuration file, a `NACC_*` environment variable, and an option of `netacc_run`. Bytes from all of
//! them are foreign: whatever they hold, the result is a valid [`Config`] and a list of [`Diagnostic`]s.
//!
//! Every key is one entry of [`KEYS`]. Parsing, the environment, the display and the sample file are all
//! derived from that table, so a new key is added in one place.
//!
//! This crate runs inside programs that do not know of it. It therefore opens no file, reads no environment and uses
//! no threads; the caller supplies the bytes.
//!
//! ```
//! let mut config = netacc_conf::Config::default();
//! let mut diags = Vec::new();
//! config.apply_file("/etc/netacc.conf", b"[netacc]\nNACC_SOR_IO_THREADS=x\n", &mut diags);
//! config.apply_env("NACC_LOG_LEVEL", b"DEBUG", &mut diags);
//! config.finish(&mut diags);
//! assert_eq!(config.io_threads, 1);
//! assert_eq!(
//!     diags[0].to_string(),
//!     "/etc/netacc.conf:2: NACC_SOR_IO_THREADS: \"x\" is not a number; allowed: 1..=64; using 1",
//! );
//! ```
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod apply;
mod choice;
mod diagnostic;
mod ini;
mod keys;
mod matcher;
mod relations;
mod rules;
mod sample;
mod suggest;
mod value;

#[cfg(test)]
mod tests;

pub use choice::{Choice, accelerates, choose};
pub use diagnostic::{Diagnostic, Source};
pub use keys::{Config, KEYS, Key, Relation};
pub use matcher::{Call, Matcher, Transports};
pub use rules::{Rule, Rules};
pub use sample::sample;
pub use suggest::nearest_key;
pub use value::{Kind, LogLevel, Value};

/// The configuration file that is read unless another one is named.
pub const DEFAULT_PATH: &str = "/etc/netacc.conf";

/// The environment variable in which `netacc_run -f` names the configuration file.
pub const ENV_CONFIG_FILE: &str = "NACC_CONFIG_FILE";

/// The environment variable in which `netacc_run` passes its other options, as `KEY=VALUE;KEY=VALUE`.
pub const ENV_CMDLINE: &str = "NACC_CMDLINE";

/// The key that a Go program's environment is asked for before the configuration is read.
pub const ENV_ENABLE_GO: &str = "NACC_ENABLE_GO";

/// The most bytes of a configuration file that are read; a longer file is a mistake.
pub const MAX_FILE_BYTES: usize = 1 << 20;

/// Looks up a key by its exact name, which may be a former one.
pub fn key(name: &str) -> Option<&'static Key> {
    let name = keys::canonical(name);
    KEYS.iter().find(|key| key.name == name)
}

/// Checks one value of one key as it would be written in a file, without its quotes.
///
/// Returns the value in its canonical form, or what is wrong with it and what is allowed. Relations between keys are
/// not checked here; [`Config::finish`] does that.
pub fn check_value(name: &str, value: &[u8]) -> Result<alloc::string::String, alloc::string::String> {
    use alloc::{format, string::ToString};
    let Some(key) = key(name) else {
        return Err(format!("unknown key{}", suggest::hint(name)));
    };
    match value::parse(&key.kind, value) {
        Ok(parsed) => Ok(parsed.to_string()),
        Err(problem) => Err(format!("{} {problem}; allowed: {}", diagnostic::Quoted(value), key.kind)),
    }
}
