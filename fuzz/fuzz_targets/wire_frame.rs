//! What comes over a queue pair, from anybody: the private data of a connect, the beginning of a message, and the payload
//! of the one that opens a connection; and the first bytes of a base. Whatever decodes is exactly what it encodes to.
#![no_main]

use libfuzzer_sys::fuzz_target;
use netacc_wire::base::{HELLO, hello, token};
use netacc_wire::frame::{FRAME, Frame, Greeting, decode_addresses, encode_addresses};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(greeting) = Greeting::decode(bytes) {
        assert!(bytes.starts_with(&greeting.encode()));
    }
    if let Some((client, server)) = decode_addresses(bytes) {
        assert_eq!(encode_addresses(client, server), bytes);
    }
    if let Some(said) = bytes.first_chunk::<HELLO>()
        && let Some(token) = token(said)
    {
        assert_eq!(hello(&token), *said);
    }
    if let Some((head, payload)) = bytes.split_first_chunk::<FRAME>()
        && let Some(frame) = Frame::decode(head)
    {
        assert_eq!(frame.encode(), *head);
        if let Some((client, server)) = decode_addresses(payload) {
            assert_eq!(encode_addresses(client, server), payload);
        }
    }
});
