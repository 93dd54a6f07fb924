//! What the two ends of `netacc_bench` say to each other.
//!
//! A control connection carries lines of text: a hello from each end, then JSON, one message a line. A data
//! connection begins with a [`Header`] of fixed length; what follows is what is measured. Everything here comes from
//! somebody unknown: lengths are bounded before anything is kept, and nothing is believed but what parses whole.

mod header;
mod line;
mod message;

pub use header::{HEADER_LEN, Header, Job, MAX_MESSAGE, Waiting};
pub use line::{Ended, Lines, MAX_LINE};
pub use message::{BenchHello, Door, HostFacts, PROTOCOL, Reply, Request, Side, Welcome, parse, write};

#[cfg(test)]
mod tests;
