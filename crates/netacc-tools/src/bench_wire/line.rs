//! Lines of bounded length from a stream.

use std::fmt;
use std::io::{self, Read};

use crate::text::quote;

/// No message is longer; a peer that sends more without an end of line is none of ours.
pub const MAX_LINE: usize = 64 * 1024;

/// Why there is no further line.
#[derive(Debug)]
pub enum Ended {
    /// The stream ended between two lines.
    Closed,
    /// The stream ended within a line; here is what there was of it.
    Cut(String),
    /// The line has no end.
    TooLong(String),
    /// The line is not UTF-8.
    NotText(String),
    /// Nothing came in time.
    Silent,
    /// The system says why.
    Os(io::Error),
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("closed the connection"),
            Self::Cut(begun) => write!(f, "closed the connection in the middle of a message ({})", quote(begun)),
            Self::TooLong(begun) => {
                write!(f, "sent a line of more than {MAX_LINE} bytes, beginning with {}", quote(begun))
            }
            Self::NotText(begun) => write!(f, "sent what is not text, beginning with {}", quote(begun)),
            Self::Silent => f.write_str("says nothing"),
            Self::Os(error) => write!(f, "cannot be read from: {error}"),
        }
    }
}

impl std::error::Error for Ended {}

/// Cuts a stream into lines.
#[derive(Debug)]
pub struct Lines<R> {
    from: R,
    pending: Vec<u8>,
}

impl<R: Read> Lines<R> {
    /// Reads from `from`.
    pub fn new(from: R) -> Self {
        Self { from, pending: Vec::new() }
    }

    /// What is read from.
    pub fn inner(&mut self) -> &mut R {
        &mut self.from
    }

    /// The next line without its end.
    ///
    /// # Errors
    ///
    /// There is none, or it is none; the stream is of no further use.
    pub fn next_line(&mut self) -> Result<String, Ended> {
        let mut searched = 0;
        loop {
            let fresh = self.pending.get(searched..).unwrap_or_default();
            if let Some(at) = fresh.iter().position(|byte| *byte == b'\n') {
                let rest = self.pending.split_off(searched + at + 1);
                let mut line = std::mem::replace(&mut self.pending, rest);
                line.truncate(searched + at);
                return String::from_utf8(line).map_err(|error| Ended::NotText(lossy(error.as_bytes())));
            }
            searched = self.pending.len();
            if searched > MAX_LINE {
                return Err(Ended::TooLong(lossy(&self.pending)));
            }
            self.read_more()?;
        }
    }

    fn read_more(&mut self) -> Result<(), Ended> {
        let mut part = [0; 4096];
        match self.from.read(&mut part) {
            Ok(0) if self.pending.is_empty() => Err(Ended::Closed),
            Ok(0) => Err(Ended::Cut(lossy(&self.pending))),
            Ok(count) => {
                self.pending.extend_from_slice(part.get(..count).unwrap_or_default());
                Ok(())
            }
            Err(error) => match error.kind() {
                io::ErrorKind::Interrupted => Ok(()),
                // What SO_RCVTIMEO makes of a silence differs by system.
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Err(Ended::Silent),
                io::ErrorKind::ConnectionReset if self.pending.is_empty() => Err(Ended::Closed),
                _ => Err(Ended::Os(error)),
            },
        }
    }
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.get(..bytes.len().min(256)).unwrap_or_default()).into_owned()
}
