//! A page of another process: any bytes give a snapshot or an error, and all of it can be printed.
//!
//! A page has megabytes, most of them socket entries. The input is its beginning (head, texts) and, in
//! what follows, the first entries; the rest is zero.
#![no_main]

use libfuzzer_sys::fuzz_target;
use netacc_stats::PAGE_SIZE;
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

fuzz_target!(|bytes: &[u8]| {
    look(bytes);
    PAGE.with_borrow_mut(|page| {
        let n = bytes.len().min(page.len());
        page[..n].copy_from_slice(&bytes[..n]);
        look(page);
        page[..n].fill(0);
    });
});
