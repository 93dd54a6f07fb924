//! Fuzzes the decoders of what an unknown peer may send for RDMA: the private data of a connect; a message of one frame
//! or several, or with its head in the immediate data; the payload of a message that opens a connection; the first
//! bytes of a companion connection; and a probe. Whatever decodes must encode to the same bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use netacc_wire::companion::{HELLO, hello, token};
use netacc_wire::frame::{Brief, FRAME, Frame, decode_addresses, encode_addresses};
use netacc_wire::qp_hello::QpHello;
use netacc_wire::probe::RdmaProbe;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(qp_hello) = QpHello::decode(bytes) {
        assert!(bytes.starts_with(&qp_hello.encode()));
    }
    if let Some((client, server)) = decode_addresses(bytes) {
        assert_eq!(encode_addresses(client, server), bytes);
    }
    if let Ok(probe) = RdmaProbe::decode(bytes) {
        assert_eq!(probe.encode(), bytes);
    }
    if let Some(said) = bytes.first_chunk::<HELLO>()
        && let Some(token) = token(said)
    {
        assert_eq!(hello(&token), *said);
    }
    if let Some((number, rest)) = bytes.split_first_chunk() {
        let brief = Brief::decode(u32::from_le_bytes(*number));
        assert_eq!(brief.encode().to_le_bytes(), *number);
        let acked = rest.first_chunk().map_or(0, |acked| u16::from_le_bytes(*acked));
        assert_eq!(Brief::of(&brief.frame(acked), acked), Some(brief));
    }
    if let Some((head, payload)) = bytes.split_first_chunk::<FRAME>()
        && let Some(frame) = Frame::decode(head)
    {
        assert_eq!(frame.encode(), *head);
        if let Some((client, server)) = decode_addresses(payload) {
            assert_eq!(encode_addresses(client, server), payload);
        }
        frames(frame, payload);
    }
});

/// Walks over all frames of a message: the payload of each must lie within the message, so that each leaves less.
fn frames(mut frame: Frame, mut rest: &[u8]) {
    while let Some((len, more)) = frame.payload(rest.len()) {
        let after = &rest[len..];
        if !more {
            assert!(after.is_empty());
            return;
        }
        let (head, after) = after.split_first_chunk::<FRAME>().expect("room for the next frame");
        let Some(next) = Frame::decode(head) else { return };
        (frame, rest) = (next, after);
    }
}
