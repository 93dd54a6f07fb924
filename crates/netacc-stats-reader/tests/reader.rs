//! Tests that the reader accepts any bytes and says what is wrong with them.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

use netacc_stats::{LAYOUT_VERSION, LINK_ENTRIES, LinkKind, MAGIC, PAGE_SIZE, State};
use netacc_stats_reader::{self as reader, Error, Snapshot};
use proptest::prelude::*;

/// The offset at which the entries of links begin.
const LINKS_AT: usize = 4096 + netacc_stats::CFG_CAPACITY;
/// The offset at which the entries of sockets begin.
const SOCKS_AT: usize = LINKS_AT + 128 * LINK_ENTRIES;

/// Overwrites the bytes from `at` on.
fn put(page: &mut [u8], at: usize, bytes: &[u8]) {
    for (to, from) in page.iter_mut().skip(at).zip(bytes) {
        *to = *from;
    }
}

/// A valid page without entries.
fn blank() -> Vec<u8> {
    let mut page = vec![0; PAGE_SIZE];
    put(&mut page, 0, &MAGIC.to_ne_bytes());
    put(&mut page, 8, &LAYOUT_VERSION.to_ne_bytes());
    put(&mut page, 16, &(PAGE_SIZE as u64).to_ne_bytes());
    put(&mut page, 32, &65536u32.to_ne_bytes());
    put(&mut page, 36, &256u32.to_ne_bytes());
    put(&mut page, 52, &1024u32.to_ne_bytes());
    put(&mut page, 152, &128u32.to_ne_bytes());
    page
}

#[test]
fn the_layout_is_the_one_of_version_2() {
    let mut page = blank();
    put(&mut page, 12, &42u32.to_ne_bytes());
    put(&mut page, 24, &7u64.to_ne_bytes());
    put(&mut page, 40, &3u32.to_ne_bytes());
    put(&mut page, 44, &2u32.to_ne_bytes());
    put(&mut page, 48, &6u32.to_ne_bytes());
    put(&mut page, 56, b"prog");
    put(&mut page, 120, b"1.2.3");
    put(&mut page, 256 + 8, &11u64.to_ne_bytes());
    put(&mut page, 2304 + 8, &12u64.to_ne_bytes());
    put(&mut page, 2304 + 512 + 8, &13u64.to_ne_bytes());
    put(&mut page, 2304 + 1024 + 8, &14u64.to_ne_bytes());
    put(&mut page, 4096, b"K\tV\tS\n");
    let link = LINKS_AT + 128 * 5;
    for (at, word) in [(0, 9u32), (4, 1), (8, 1), (12, 77), (40, 3), (44, 30), (48, 511)] {
        put(&mut page, link + at, &word.to_ne_bytes());
    }
    for (at, word) in [(16, 100u64), (24, 200), (32, 300), (56, 0x7f00_0000_0000)] {
        put(&mut page, link + at, &word.to_ne_bytes());
    }
    // One entry is free, and one is being filled.
    put(&mut page, LINKS_AT + 4, &1u32.to_ne_bytes());
    put(&mut page, LINKS_AT + 128, &u32::MAX.to_ne_bytes());
    let seen = reader::parse(&page).unwrap();
    assert_eq!((seen.pid, seen.start_ns), (42, 7));
    assert_eq!((&*seen.program, &*seen.library_version), ("prog", "1.2.3"));
    assert_eq!(seen.counters, [0, 11, 0]);
    assert_eq!(seen.fallbacks, [0, 12]);
    assert_eq!((&*seen.promotions, &*seen.demotions), (&[0, 13][..], &[0, 14][..]));
    assert_eq!(&*seen.cfg[0].source, "S");
    let [link] = &*seen.links else { panic!("{:?}", seen.links) };
    assert_eq!((link.id, link.kind.get(), link.server, link.peer_pid), (9, Some(LinkKind::Shm), true, 77));
    assert_eq!((link.opened_ns, link.idle_ns, link.expires_ns), (100, 200, 300));
    assert_eq!((link.in_use, link.ever, link.capacity, link.address), (3, 30, 511, 0x7f00_0000_0000));
}

#[test]
fn what_is_wrong_is_said() {
    let error = |page: &[u8]| reader::parse(page).unwrap_err();
    assert!(matches!(error(&[]), Error::Truncated(0)));
    let good = blank();
    assert!(matches!(error(&good[..15]), Error::Truncated(15)));
    assert!(matches!(error(&good[..100]), Error::Truncated(100)));
    assert!(matches!(error(&good[..PAGE_SIZE - 1]), Error::Truncated(_)));
    assert!(matches!(error(&vec![0; PAGE_SIZE]), Error::Starting));
    assert!(matches!(error(&vec![1; PAGE_SIZE]), Error::Corrupt(_)));
    for (found, advice) in [(LAYOUT_VERSION + 1, "use the tools of that version"), (1, "restart it")] {
        let mut other = good.clone();
        put(&mut other, 8, &found.to_ne_bytes());
        put(&mut other, 120, b"9.8.7\x1b");
        // A page of another layout may be shorter.
        let text = error(&other[..200]).to_string();
        assert!(
            text.contains(advice)
                && text.contains("NetACC 9.8.7\\u{1b} (")
                && text.contains(&format!("layout {found}"))
        );
        assert!(matches!(error(&other[..16]), Error::Layout { library, .. } if library.is_empty()));
    }
    let mut none = good.clone();
    put(&mut none, 8, &[0; 4]);
    assert!(matches!(error(&none), Error::Corrupt(_)));
    for at in [16, 32, 36, 52, 152] {
        let mut lies = good.clone();
        lies[at] ^= 1;
        assert!(matches!(error(&lies), Error::Corrupt(_)));
    }
}

#[test]
fn a_change_that_never_ends_gives_no_address() {
    let mut page = blank();
    let entry = &mut page[SOCKS_AT..SOCKS_AT + 256];
    entry.fill(0x11);
    let sock = reader::parse(&page).unwrap().socks[0];
    assert_eq!(sock.local.to_string(), "-");
    assert_eq!(sock.state.to_string(), "?286331153");
    assert_eq!(sock.msgs_in, 0x1111_1111_1111_1111);
}

/// A recorded page of a process: the text has lines `OFFSET HEX`, and all other bytes are zero.
fn recorded(text: &str) -> Vec<u8> {
    let mut lines = text.lines().filter(|line| !line.starts_with('#'));
    let size = lines.next().unwrap().strip_prefix("size ").unwrap();
    let mut page = vec![0; size.parse().unwrap()];
    for (at, hex) in lines.map(|line| line.split_once(' ').unwrap()) {
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        let bytes: Vec<u8> = hex.as_bytes().chunks(2).map(byte).collect();
        put(&mut page, at.parse().unwrap(), &bytes);
    }
    page
}

#[test]
fn a_page_of_layout_1_is_told_with_its_release() {
    let page = recorded(include_str!("pages/redis-server.1"));
    let error = reader::parse(&page).unwrap_err();
    assert!(matches!(&error, Error::Layout { found: 1, library } if library == "0.1.0"), "{error}");
}

#[test]
fn a_recorded_page_is_read_to_the_last_number() {
    let page = recorded(include_str!("pages/redis-server.2"));
    let seen = reader::parse(&page).unwrap();
    assert_eq!((&*seen.program, &*seen.library_version, seen.cfg.len()), ("redis-server", "0.1.0", 18));
    let listeners = seen.socks.iter().filter(|sock| sock.state.get() == Some(State::Listening));
    assert_eq!((seen.socks.len(), listeners.count()), (5, 2));
    assert_eq!((seen.links.len(), seen.links[0].in_use, seen.links[0].ever), (1, 3, 4));
    // The total includes three open connections and a closed one.
    assert_eq!(seen.moved.shm.msgs_in, 804_279);
    // A page that is cut anywhere is reported as cut; a flipped bit anywhere causes no panic.
    for cut in (0..SOCKS_AT).step_by(997) {
        assert!(matches!(reader::parse(&page[..cut]), Err(Error::Truncated(_))), "cut at {cut}");
    }
    for at in (0..SOCKS_AT + 12 * 256).step_by(401) {
        let mut wrong = page.clone();
        wrong[at] ^= 1 << (at % 8);
        let _ = reader::parse(&wrong);
    }
}

#[test]
fn a_page_with_holes_is_read_as_one_with_zeros() {
    let page = recorded(include_str!("pages/redis-server.2"));
    let seen = |found: Result<Snapshot, Error>| format!("{:?}", found.unwrap());
    let last = page.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    // The stretches begin and end in the middle of a batch, and of an entry.
    let ends = [0, SOCKS_AT - 1, SOCKS_AT + 300, SOCKS_AT + 301, last];
    let stretches: Vec<_> = ends.windows(2).map(|two| (two[0] as u64, &page[two[0]..two[1]])).collect();
    assert_eq!(seen(reader::parse_sparse(page.len() as u64, &stretches)), seen(reader::parse(&page)));
    let short = reader::parse_sparse(page.len() as u64 - 1, &stretches);
    assert!(matches!(short, Err(Error::Truncated(_))));
    // Stretches beyond the end of the page must cause no panic.
    let _ = reader::parse_sparse(page.len() as u64, &[(page.len() as u64 - 1, &page[..64]), (u64::MAX, &page[..64])]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_bytes_are_taken(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = reader::parse(&bytes);
    }

    #[test]
    fn any_content_behind_a_valid_beginning_is_taken(
        scribbles in prop::collection::vec((160usize..PAGE_SIZE, any::<u64>()), 0..200),
        head in prop::collection::vec(any::<u8>(), 4096 - 160),
        cfg in prop::collection::vec(any::<u8>(), 8256),
        cut in prop::option::of(0..PAGE_SIZE),
    ) {
        let mut page = blank();
        put(&mut page, 160, &head);
        put(&mut page, 4096, &cfg);
        for (at, word) in scribbles {
            let at = at.min(PAGE_SIZE - 8);
            put(&mut page, at, &word.to_ne_bytes());
        }
        page.truncate(cut.unwrap_or(PAGE_SIZE));
        match reader::parse(&page) {
            Ok(seen) => {
                prop_assert_eq!(page.len(), PAGE_SIZE);
                let printable = |text: &str| !text.chars().any(char::is_control);
                prop_assert!(printable(&seen.program));
                prop_assert!(seen.cfg.iter().all(|line| printable(&line.value)));
                prop_assert!(seen.socks.iter().all(|sock| sock.fd < 65536));
            }
            Err(error) => {
                prop_assert!(cut.is_some());
                prop_assert!(matches!(error, Error::Truncated(_)));
            }
        }
    }
}
