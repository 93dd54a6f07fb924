//! Reads a configuration file as carefully as the library does.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use netacc_conf::MAX_FILE_BYTES;

/// Why a configuration file was not read.
#[derive(Debug)]
pub enum Unreadable {
    /// The system says why.
    Os(std::io::Error),
    /// Reading a FIFO would wait, and use up what the library is to read.
    NotRegular,
    /// Longer than anybody's configuration.
    TooLong,
}

impl std::fmt::Display for Unreadable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Unreadable::Os(error) => error.fmt(f),
            Unreadable::NotRegular => f.write_str("not a regular file"),
            Unreadable::TooLong => write!(f, "longer than {MAX_FILE_BYTES} bytes"),
        }
    }
}

/// Reads the whole file.
pub fn read(path: &Path) -> Result<Vec<u8>, Unreadable> {
    if !fs::metadata(path).map_err(Unreadable::Os)?.is_file() {
        return Err(Unreadable::NotRegular);
    }
    let file = File::open(path).map_err(Unreadable::Os)?;
    let mut text = Vec::new();
    // One byte more than allowed tells a longer file from one that just fits.
    file.take(MAX_FILE_BYTES as u64 + 1).read_to_end(&mut text).map_err(Unreadable::Os)?;
    if text.len() > MAX_FILE_BYTES { Err(Unreadable::TooLong) } else { Ok(text) }
}
