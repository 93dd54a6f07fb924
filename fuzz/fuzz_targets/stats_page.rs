//! Fuzzes the reader of another process's page: any bytes give a snapshot or an error, which can be printed.
//!
//! A page has megabytes, most of them socket entries, which are zero in most processes. The input is the page's beginning
//! (head, texts), then the first link's entry, then the first sockets' entries; the rest is a hole, which the reader
//! skips as in a file. So the time for an input depends on its own length, and not on that of a page.
#![no_main]

use libfuzzer_sys::fuzz_target;
use netacc_stats_reader::{Error, Snapshot, parse, parse_sparse};
use netacc_stats::{CFG_CAPACITY, LINK_ENTRIES, PAGE_SIZE};
use std::fmt::{self, Write};

/// Discards a text that only has to be formatted.
struct Nowhere;

impl Write for Nowhere {
    fn write_str(&mut self, _: &str) -> fmt::Result {
        Ok(())
    }
}

fn show(found: Result<Snapshot, Error>) {
    let _ = match found {
        Ok(page) => write!(Nowhere, "{page:?}"),
        Err(e) => write!(Nowhere, "{e}"),
    };
}

/// The offset of the links' entries in a page.
const LINKS_AT: usize = 4096 + CFG_CAPACITY;
/// The offset of the sockets' entries in a page.
const SOCKS_AT: usize = LINKS_AT + 128 * LINK_ENTRIES;

fuzz_target!(|bytes: &[u8]| {
    show(parse(bytes));
    let (head, entries) = bytes.split_at(bytes.len().min(LINKS_AT));
    let (link, socks) = entries.split_at(entries.len().min(128));
    let socks = &socks[..socks.len().min(PAGE_SIZE - SOCKS_AT)];
    show(parse_sparse(PAGE_SIZE as u64, &[(0, head), (LINKS_AT as u64, link), (SOCKS_AT as u64, socks)]));
});
