//! Fuzzes what an unknown peer can send to netacc_bench, at either end: lines, greetings, messages, headers.
#![no_main]

use libfuzzer_sys::fuzz_target;
use netacc_tools::bench_wire::{
    BenchHello, HEADER_LEN, Header, Lines, MAX_LINE, Reply, Request, parse, write,
};

fuzz_target!(|bytes: &[u8]| {
    let mut lines = Lines::new(bytes);
    let end = loop {
        match lines.next_line() {
            Ok(line) => look(&line),
            Err(end) => break end,
        }
    };
    shown(&end.to_string());
    if let Some(Ok(head)) = bytes.get(..HEADER_LEN).map(<[u8; HEADER_LEN]>::try_from)
        && let Some(header) = Header::decode(&head)
    {
        assert_eq!(header.encode(), head);
    }
});

fn look(line: &str) {
    assert!(line.len() <= MAX_LINE + 4096);
    if let Some(objection) = BenchHello::parse(line).and_then(|greeting| greeting.objection()) {
        shown(&objection);
    }
    match parse::<Request>(line) {
        Ok(request) => assert_eq!(parse::<Request>(write(&request).trim_end()), Ok(request)),
        Err(text) => shown(&text),
    }
    match parse::<Reply>(line) {
        Ok(reply) => assert_eq!(parse::<Reply>(write(&reply).trim_end()), Ok(reply)),
        Err(text) => shown(&text),
    }
}

/// Checks that a text for the user has no control characters, which could garble a terminal.
fn shown(text: &str) {
    assert!(!text.chars().any(char::is_control), "{text:?}");
}
