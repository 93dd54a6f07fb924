//! The reader takes any bytes and says what is wrong with them.

use netacc_stats::reader::{self, Error};
use netacc_stats::{LAYOUT_VERSION, MAGIC, PAGE_SIZE};
use proptest::prelude::*;

/// Where the socket entries begin.
const SOCKS_AT: usize = 4096 + netacc_stats::CFG_CAPACITY;

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
    put(&mut page, 36, &128u32.to_ne_bytes());
    page
}

#[test]
fn the_layout_is_the_one_of_version_1() {
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
    put(&mut page, 4096, b"K\tV\tS\n");
    let seen = reader::parse(&page).unwrap();
    assert_eq!((seen.pid, seen.start_ns), (42, 7));
    assert_eq!((&*seen.program, &*seen.library_version), ("prog", "1.2.3"));
    assert_eq!(seen.counters, [0, 11, 0]);
    assert_eq!(seen.fallbacks, [0, 12]);
    assert_eq!(&*seen.cfg[0].source, "S");
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
    let mut newer = good.clone();
    put(&mut newer, 8, &(LAYOUT_VERSION + 1).to_ne_bytes());
    // A newer page may well be shorter.
    assert!(matches!(error(&newer[..16]), Error::Newer(2)));
    for at in [16, 32, 36] {
        let mut lies = good.clone();
        lies[at] ^= 1;
        assert!(matches!(error(&lies), Error::Corrupt(_)));
    }
}

#[test]
fn a_change_that_never_ends_gives_no_address() {
    let mut page = blank();
    let entry = &mut page[SOCKS_AT..SOCKS_AT + 128];
    entry.fill(0x11);
    let sock = reader::parse(&page).unwrap().socks[0];
    assert_eq!(sock.local.to_string(), "-");
    assert_eq!(sock.state.to_string(), "?286331153");
    assert_eq!(sock.msgs_in, 0x1111_1111_1111_1111);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_bytes_are_taken(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = reader::parse(&bytes);
    }

    #[test]
    fn any_content_behind_a_valid_beginning_is_taken(
        scribbles in prop::collection::vec((40usize..PAGE_SIZE, any::<u64>()), 0..200),
        head in prop::collection::vec(any::<u8>(), 4096 - 40),
        cfg in prop::collection::vec(any::<u8>(), 8192),
        cut in prop::option::of(0..PAGE_SIZE),
    ) {
        let mut page = blank();
        put(&mut page, 40, &head);
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
