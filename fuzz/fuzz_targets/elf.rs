//! Fuzzes the reader of a program's file: any bytes are read within bounds and in limited time.
#![no_main]

use libfuzzer_sys::fuzz_target;
use netacc_tools::elf::parse_data;

fuzz_target!(|bytes: &[u8]| {
    if let Some(elf) = parse_data(bytes) {
        assert!(
            elf.interpreter
                .is_none_or(|path| path.len() <= 4096 && !path.contains(&0))
        );
    }
});
