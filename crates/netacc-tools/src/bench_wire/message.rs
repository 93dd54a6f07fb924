//! The lines of a control connection.

use std::fmt;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::text::{clean, quote};

/// Both ends must speak the same one; it grows whenever a message or a header changes.
pub const PROTOCOL: u32 = 2;
/// The first word of either end.
const NAME: &str = "netacc_bench";

/// The first line of either end: `netacc_bench PROTOCOL VERSION`. Its form stays for ever, so that other versions are
/// recognised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BenchHello {
    /// The protocol that is spoken.
    pub protocol: u32,
    /// The version of the program, for people.
    pub version: String,
}

impl BenchHello {
    /// The hello of this program.
    #[must_use]
    pub fn own() -> Self {
        Self { protocol: PROTOCOL, version: env!("CARGO_PKG_VERSION").into() }
    }

    /// Reads the first line of a peer; `None` if that is not a netacc_bench.
    #[must_use]
    pub fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let name = words.next()?;
        let protocol = words.next()?.parse().ok()?;
        let version = words.next()?.to_owned();
        // What a later version may add stands behind these.
        (name == NAME && !version.is_empty()).then_some(Self { protocol, version })
    }

    /// What is to be done about a peer of another version; `None` if it is of ours.
    #[must_use]
    pub fn objection(&self) -> Option<String> {
        (self.protocol != PROTOCOL).then(|| {
            format!(
                "speaks version {} of the protocol (netacc_bench {}), this end version {PROTOCOL} (netacc_bench {}); \
                 install the same version of NetACC on both hosts",
                self.protocol,
                clean(&self.version),
                env!("CARGO_PKG_VERSION")
            )
        })
    }
}

impl fmt::Display for BenchHello {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{NAME} {} {}", self.protocol, self.version)
    }
}

/// How a measuring process was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Side {
    /// Without the library.
    Plain,
    /// With it.
    Netacc,
}

/// What a client asks of the server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// How much CPU time the listener of a side has used by now.
    Mark {
        /// Which listener.
        side: Side,
        /// Seconds for which the client may now say nothing.
        seconds: u32,
    },
    /// All is done.
    Bye {},
}

/// What the server says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Reply {
    /// The client may begin.
    Welcome(Welcome),
    /// Another client measures.
    Busy {
        /// Its address.
        with: String,
    },
    /// The answer to [`Request::Mark`].
    Mark {
        /// CPU time of the listener's process since its start.
        cpu_ns: u64,
    },
    /// The server cannot go on.
    Failed {
        /// Why.
        text: String,
    },
}

/// Where a client finds what.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Welcome {
    /// The listener without the library.
    pub plain: Door,
    /// The listener with it.
    pub netacc: Door,
    /// The server's host.
    pub host: HostFacts,
}

/// A listener for data connections.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Door {
    /// Its port.
    pub port: u16,
    /// Why it is not accelerated though it should be.
    pub obstacle: Option<String>,
}

/// Description of a host in the protocol.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostFacts {
    /// The kernel's release.
    pub kernel: String,
    /// The processor's name.
    pub cpu: String,
    /// CPUs that can be used.
    pub cores: u32,
    /// Version of netacc_bench.
    pub version: String,
}

/// Reads a message.
///
/// # Errors
///
/// What the line is instead.
pub fn parse<T: DeserializeOwned>(line: &str) -> Result<T, String> {
    serde_json::from_str(line).map_err(|error| {
        // It may repeat a name that the peer has chosen.
        let why = clean(&error.to_string());
        format!("sent {}, which is no message of the protocol ({why})", quote(line))
    })
}

/// A message with its end of line.
#[must_use]
pub fn write<T: Serialize>(message: &T) -> String {
    // These types have string keys only and always can be written.
    let mut line = serde_json::to_string(message).unwrap_or_default();
    line.push('\n');
    line
}
