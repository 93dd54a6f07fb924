//! Fuzzes the decoder of messages on a control socket: whatever decodes must encode to the same bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use netacc_wire::Message;

fuzz_target!(|bytes: &[u8]| {
    if let Some(m) = Message::decode(bytes) {
        assert_eq!(m.encode(), bytes);
    }
});
