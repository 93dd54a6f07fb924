//! A page of another process: any bytes give a snapshot or an error, and all of it can be printed.
#![no_main]

use libfuzzer_sys::fuzz_target;
use netacc_stats::reader::parse;

fuzz_target!(|bytes: &[u8]| {
    match parse(bytes) {
        Ok(page) => {
            let _ = format!("{page:?}");
        }
        Err(e) => {
            let _ = e.to_string();
        }
    }
});
