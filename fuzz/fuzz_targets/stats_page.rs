//! A page of another process: any bytes give a snapshot or an error, and all of it can be printed.
//!
//! A page has megabytes, most of them socket entries. The input is its beginning (head, texts), then the first link's
//! entry, then the first sockets' entries; the rest is zero.
#![no_main]

use libfuzzer_sys::fuzz_target;
use netacc_stats::{CFG_CAPACITY, LINK_ENTRIES, PAGE_SIZE};
use netacc_stats::reader::parse;
use std::cell::RefCell;

thread_local! {
    static PAGE: RefCell<Vec<u8>> = RefCell::new(vec![0; PAGE_SIZE]);
}

fn look(bytes: &[u8]) {
    match parse(bytes) {
        Ok(page) => {
            let _ = format!("{page:?}");
        }
        Err(e) => {
            let _ = e.to_string();
        }
    }
}

/// Where what follows the texts is put: the entries of links, and those of sockets.
const LINKS_AT: usize = 4096 + CFG_CAPACITY;
const SOCKS_AT: usize = LINKS_AT + 128 * LINK_ENTRIES;

fuzz_target!(|bytes: &[u8]| {
    look(bytes);
    let (head, entries) = bytes.split_at(bytes.len().min(LINKS_AT));
    let (link, socks) = entries.split_at(entries.len().min(128));
    let socks = &socks[..socks.len().min(PAGE_SIZE - SOCKS_AT)];
    PAGE.with_borrow_mut(|page| {
        for (at, part) in [(0, head), (LINKS_AT, link), (SOCKS_AT, socks)] {
            page[at..at + part.len()].copy_from_slice(part);
        }
        look(page);
        for (at, part) in [(0, head), (LINKS_AT, link), (SOCKS_AT, socks)] {
            page[at..at + part.len()].fill(0);
        }
    });
});
