//! A page of another process: any bytes give a snapshot or an error, and all of it can be printed.
//!
//! A page has megabytes, most of them socket entries, which are zero in most processes. The input is the page's beginning
//! (head, texts), then the first link's entry, then the first sockets' entries; the rest is a hole, over which the reader
//! skips as in a file. So an input costs what it has, and not what a page could have.
#![no_main]

use libfuzzer_sys::fuzz_target;
use netacc_stats_reader::{Error, Snapshot, parse, parse_sparse};
use netacc_stats::{CFG_CAPACITY, LINK_ENTRIES, PAGE_SIZE};
use std::fmt::{self, Write};

/// Where a text goes that has to be made and that nobody reads.
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

/// Where what follows the texts is put: the entries of links, and those of sockets.
const LINKS_AT: usize = 4096 + CFG_CAPACITY;
const SOCKS_AT: usize = LINKS_AT + 128 * LINK_ENTRIES;

fuzz_target!(|bytes: &[u8]| {
    show(parse(bytes));
    let (head, entries) = bytes.split_at(bytes.len().min(LINKS_AT));
    let (link, socks) = entries.split_at(entries.len().min(128));
    let socks = &socks[..socks.len().min(PAGE_SIZE - SOCKS_AT)];
    show(parse_sparse(PAGE_SIZE as u64, &[(0, head), (LINKS_AT as u64, link), (SOCKS_AT as u64, socks)]));
});
