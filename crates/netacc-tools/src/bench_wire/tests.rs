//! Tests of the protocol: what we say is understood, and what strangers say does no harm.

use std::io::{self, Read};

use proptest::prelude::*;

use super::*;

/// Gives its bytes in pieces of chosen lengths.
struct Pieces {
    bytes: Vec<u8>,
    lengths: Vec<usize>,
    at: usize,
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.lengths.pop().unwrap_or(buffer.len()).max(1);
        let rest = &self.bytes[self.at..];
        let count = rest.len().min(length).min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        self.at += count;
        Ok(count)
    }
}

fn lines(bytes: &[u8]) -> Lines<&[u8]> {
    Lines::new(bytes)
}

#[test]
fn lines_and_their_ends() {
    let mut two = lines(b"a\n\nb");
    assert_eq!((two.next_line().unwrap(), two.next_line().unwrap()), ("a".into(), String::new()));
    assert!(matches!(two.next_line(), Err(Ended::Cut(begun)) if begun == "b"));
    assert!(matches!(lines(b"").next_line(), Err(Ended::Closed)));
    assert!(matches!(lines(b"\xff\n").next_line(), Err(Ended::NotText(_))));
    assert!(matches!(lines(&vec![b'x'; 10 * MAX_LINE]).next_line(), Err(Ended::TooLong(_))));
    let silent = io::Error::from(io::ErrorKind::WouldBlock);
    struct Silent(Option<io::Error>);
    impl Read for Silent {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            self.0.take().map_or(Ok(0), Err)
        }
    }
    assert!(matches!(Lines::new(Silent(Some(silent))).next_line(), Err(Ended::Silent)));
}

#[test]
fn greetings_of_all_versions_are_known() {
    let own = BenchHello::own();
    assert_eq!(BenchHello::parse(&own.to_string()), Some(own.clone()));
    assert_eq!(own.objection(), None);
    let later = BenchHello::parse("netacc_bench 7 3.1.4 and more").unwrap();
    let said = later.objection().unwrap();
    assert!(said.contains("version 7") && said.contains("3.1.4") && said.contains("same version"), "{said}");
    for stranger in ["SSH-2.0-OpenSSH_9.2", "", "netacc_bench", "netacc_bench x 1", "netacc_bench 1 ", "+OK 1 2"] {
        assert_eq!(BenchHello::parse(stranger), None, "{stranger}");
    }
}

#[test]
fn messages_come_back() {
    let door = Door { port: 9, obstacle: Some("no".into()) };
    let host = HostFacts { kernel: "6".into(), cpu: "x".into(), cores: 2, version: "1".into() };
    for reply in [
        Reply::Welcome(Welcome { plain: door.clone(), netacc: door, host }),
        Reply::Busy { with: "a".into() },
        Reply::Mark { cpu_ns: u64::MAX },
        Reply::Failed { text: "b\n".into() },
    ] {
        let line = write(&reply);
        assert_eq!(line.matches('\n').count(), 1, "{line}");
        assert_eq!(parse(line.trim_end()), Ok(reply));
    }
    for request in [Request::Mark { side: Side::Netacc, seconds: 3 }, Request::Bye {}] {
        assert_eq!(parse(write(&request).trim_end()), Ok(request));
    }
    for wrong in
        ["", "{}", "[]", "\"bye\"", "{\"bye\":{},\"bye\":{}}", "{\"mark\":{\"side\":\"plain\"}}", "{\"bye\":{\"x\":1}}"]
    {
        let error = parse::<Request>(wrong).unwrap_err();
        assert!(error.contains("no message of the protocol"), "{wrong}: {error}");
    }
    let forged = parse::<Reply>("{\"m\\rk\":{}}").unwrap_err();
    assert!(!forged.chars().any(char::is_control), "{forged:?}");
    assert!(parse::<Reply>(&"[".repeat(MAX_LINE)).is_err(), "nesting is bounded");
}

#[test]
fn headers_with_impossible_sizes() {
    let good = Header { job: Job::Count, waiting: Waiting::Select, request: 1, reply: MAX_MESSAGE };
    assert_eq!(Header::decode(&good.encode()), Some(good));
    for (request, reply) in [(0, 1), (1, 0), (MAX_MESSAGE + 1, 1), (1, u32::MAX)] {
        assert_eq!(
            Header::decode(&Header { job: Job::Answer, waiting: Waiting::Usual, request, reply }.encode()),
            None
        );
    }
}

proptest! {
    #[test]
    fn any_bytes_are_cut_into_the_same_lines(
        bytes in prop::collection::vec(prop_oneof![4 => any::<u8>(), 1 => Just(b'\n')], 0..2000),
        lengths in prop::collection::vec(1..50_usize, 0..100),
    ) {
        let mut found = Vec::new();
        let mut cut = Lines::new(Pieces { bytes: bytes.clone(), lengths, at: 0 });
        let end = loop {
            match cut.next_line() {
                Ok(line) => found.push(line),
                Err(end) => break end,
            }
        };
        let _ = end.to_string();
        let mut expected: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
        expected.pop();
        let valid = expected.iter().take_while(|line| std::str::from_utf8(line).is_ok()).count();
        prop_assert_eq!(found.len(), valid);
        prop_assert!(found.iter().zip(expected).all(|(line, bytes)| line.as_bytes() == bytes));
    }

    #[test]
    fn any_line_is_judged(line in ".{0,300}") {
        let _ = BenchHello::parse(&line).map(|hello| hello.objection());
        for said in [parse::<Request>(&line).err(), parse::<Reply>(&line).err()].into_iter().flatten() {
            prop_assert!(!said.chars().any(char::is_control), "{said:?}");
        }
    }

    #[test]
    fn any_header_is_refused_or_comes_back(bytes in any::<[u8; HEADER_LEN]>(), near in 0..HEADER_LEN, to in any::<u8>()) {
        let mut almost = Header { job: Job::Answer, waiting: Waiting::Usual, request: 64, reply: 64 }.encode();
        almost[near] = to;
        for bytes in [bytes, almost] {
            if let Some(header) = Header::decode(&bytes) {
                prop_assert_eq!(header.encode(), bytes);
            }
        }
    }
}
