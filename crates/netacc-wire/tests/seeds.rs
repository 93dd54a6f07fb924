//! Checks that the seeds of the fuzz targets `wire_frame` and `wire_message` are what their names say, in this version of the protocol.
//! After a change of the format `NETACC_WRITE_SEEDS=1 cargo test -p netacc-wire --test seeds` writes them again.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
#![cfg(not(netacc_next_version))]

use core::net::SocketAddr;
use netacc_wire::Message;
use netacc_wire::companion::{CompanionOffer, hello, welcome};
use netacc_wire::frame::{FRAME, Frame, Kind, WINDOW, encode_addresses};
use netacc_wire::probe::{NONCE, RdmaProbe};
use netacc_wire::qp_hello::{QP_HELLO, QpHello};
use std::path::Path;

const TOKEN: [u8; 16] = *b"a token of a qp.";

fn addresses(client: &str, server: &str) -> Vec<u8> {
    encode_addresses(client.parse::<SocketAddr>().unwrap(), server.parse::<SocketAddr>().unwrap()).to_vec()
}

fn frame(kind: Kind) -> Vec<u8> {
    Frame { kind, credits: 1, large: false, conn: 3, generation: 7, window: 4096, acked: 65_535, next: 0 }
        .encode()
        .to_vec()
}

/// A frame of data with `next` in its field of that name.
fn followed(payload: &[u8], next: u16) -> Vec<u8> {
    let head = Frame { kind: Kind::Data, credits: 1, large: false, conn: 3, generation: 7, window: 0, acked: 9, next };
    [&head.encode(), payload].concat()
}

fn qp_hello(companion: CompanionOffer) -> Vec<u8> {
    QpHello { receives: 4, size: 16_384, companion }.encode().to_vec()
}

fn with(mut bytes: Vec<u8>, at: usize, byte: u8) -> Vec<u8> {
    bytes[at] = byte;
    bytes
}

fn qp_hellos() -> Vec<(&'static str, Vec<u8>)> {
    let plain = qp_hello(CompanionOffer::None);
    vec![
        ("qp-hello", plain.clone()),
        ("hello-wants-companion", qp_hello(CompanionOffer::Wanted)),
        ("hello-with-companion", qp_hello(CompanionOffer::At(40_123, TOKEN))),
        ("companion-without-port", with(with(qp_hello(CompanionOffer::At(40_123, TOKEN)), 16, 0), 17, 0)),
        ("wanted-with-token", with(qp_hello(CompanionOffer::Wanted), QP_HELLO - 1, 1)),
        ("spare-byte-set", with(plain.clone(), 19, 1)),
        ("half-a-qp-hello", plain[..10].to_vec()),
        ("other-version", with(plain.clone(), 4, plain[4] - 1)),
        ("another-window", with(plain.clone(), 12, 1)),
        ("no-receives", with(plain.clone(), 6, 0)),
        ("size-of-a-head", with(with(plain, 8, FRAME as u8), 9, 0)),
        ("hello", hello(&TOKEN).to_vec()),
    ]
}

fn frames() -> Vec<(&'static str, Vec<u8>)> {
    let four = addresses("10.8.0.2:40000", "10.8.0.1:6379");
    let six = addresses("[fd00::2]:40000", "[fd00::1]:6379");
    let too_much = Frame {
        kind: Kind::Window,
        credits: 0,
        large: false,
        conn: 0,
        generation: 1,
        window: WINDOW + 1,
        acked: 0,
        next: 0,
    };
    vec![
        ("open", [frame(Kind::Open), four.clone()].concat()),
        ("open-ipv6", [frame(Kind::Open), six].concat()),
        ("half-addresses", [frame(Kind::Open), four[..20].to_vec()].concat()),
        ("data", [frame(Kind::Data), b"hello".to_vec()].concat()),
        ("part", [frame(Kind::Part), b"hello".to_vec()].concat()),
        ("data-and-fin", [followed(b"hello", 6), frame(Kind::Fin)].concat()),
        ("followed-too-late", [followed(b"hello", 7), frame(Kind::Fin)].concat()),
        ("fin", frame(Kind::Fin)),
        ("reset", frame(Kind::Reset)),
        ("window", too_much.encode().to_vec()),
        ("credit", frame(Kind::Credit)),
        ("large-credit", with(frame(Kind::Credit), 1, 0x81)),
        ("probe", frame(Kind::Probe)),
        ("resume", frame(Kind::Resume)),
        ("own-port", frame(Kind::OwnPort)),
        ("unknown-kind", with(frame(Kind::Data), 0, 99)),
        ("short", frame(Kind::Data)[..FRAME - 1].to_vec()),
    ]
}

fn others() -> Vec<(&'static str, Vec<u8>)> {
    let four = addresses("10.8.0.2:40000", "10.8.0.1:6379");
    let question = RdmaProbe::Question([7; NONCE]).encode().to_vec();
    let answer = RdmaProbe::Answer([7; NONCE]).encode().to_vec();
    vec![
        ("addresses", four.clone()),
        ("four-that-is-six", with(four, 13, 0)),
        ("welcome", welcome().to_vec()),
        ("question", question),
        ("answer", answer),
    ]
}

fn messages() -> Vec<(&'static str, Vec<u8>)> {
    let (slot, generation) = (7, 3);
    let of = |m: Message| m.encode().to_vec();
    let hello = of(Message::Hello { pid: 4711, segment: 1 << 28 });
    vec![
        ("hello", hello.clone()),
        ("waker", of(Message::Waker { id: 64, token: 0 })),
        ("named-waker", of(Message::Waker { id: 64, token: 0x0123_4567_89ab_cdef })),
        ("wake", of(Message::Wake { id: 64 })),
        ("liveness", of(Message::Liveness { slot, generation, token: 0 })),
        ("heir-waker", of(Message::HeirWaker { slot, generation })),
        ("switch", of(Message::SwitchToKernel { slot, generation })),
        ("old-subflow", of(Message::OldSubflow { slot, generation })),
        ("promote", of(Message::Promote { slot, generation })),
        ("promote-neighbour", of(Message::PromoteNeighbour { slot, generation, stamp: 99 })),
        ("confirm-neighbour", of(Message::ConfirmNeighbour { slot, generation })),
        ("other-version", with(hello.clone(), 4, hello[4] - 1)),
        ("generation-too-large", with(of(Message::HeirWaker { slot, generation }), 20, 1)),
        ("unused-byte", with(hello.clone(), 31, 1)),
        ("short", hello[..hello.len() - 1].to_vec()),
    ]
}

#[test]
fn the_seeds_are_of_this_version() {
    let frames = [qp_hellos(), frames(), others()].concat().into_iter().map(|seed| ("wire_frame", seed));
    let messages = messages().into_iter().map(|seed| ("wire_message", seed));
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    for (target, (name, bytes)) in frames.chain(messages) {
        let path = corpus.join(target).join(name);
        if std::env::var_os("NETACC_WRITE_SEEDS").is_some() {
            std::fs::write(&path, &bytes).expect(name);
        }
        assert_eq!(std::fs::read(&path).expect(name), bytes, "{name}: see the head of this file");
    }
}

#[test]
fn what_is_called_right_decodes_and_what_is_called_wrong_does_not() {
    for (name, bytes) in qp_hellos() {
        let right = ["qp-hello", "hello-wants-companion", "hello-with-companion"].contains(&name);
        assert_eq!(QpHello::decode(&bytes).is_ok(), right, "{name}");
    }
    for (name, bytes) in messages() {
        let right = !["other-version", "generation-too-large", "unused-byte", "short"].contains(&name);
        assert_eq!(Message::decode(&bytes).is_some(), right, "{name}");
    }
    for (name, bytes) in frames() {
        let right = !["unknown-kind", "short"].contains(&name);
        assert_eq!(bytes.first_chunk().and_then(Frame::decode).is_some(), right, "{name}");
    }
}
