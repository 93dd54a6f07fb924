//! Which libc the process has.

use crate::weak;
use core::sync::atomic::{AtomicU32, Ordering};

/// A libc.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Libc {
    /// glibc 2.n.
    Glibc(u32),
    /// Another libc, or a glibc whose version says nothing.
    Other,
}

/// The oldest glibc (2.n) under which connections are accelerated.
pub const OLDEST: u32 = 17;

/// 0: not known yet; 1: another libc; else the minor version + 2.
static KNOWN: AtomicU32 = AtomicU32::new(0);

/// The libc of this process.
#[inline]
pub fn libc() -> Libc {
    // Relaxed: every thread finds the same value.
    match KNOWN.load(Ordering::Relaxed) {
        0 => find(),
        1 => Libc::Other,
        n => Libc::Glibc(n - 2),
    }
}

#[cold]
fn find() -> Libc {
    let minor = weak::glibc_version().and_then(|version| minor(version.to_bytes()));
    KNOWN.store(minor.map_or(1, |n| n.saturating_add(2)), Ordering::Relaxed);
    minor.map_or(Libc::Other, Libc::Glibc)
}

/// The n of glibc 2.n; a glibc 3 would be newer than all of them.
fn minor(version: &[u8]) -> Option<u32> {
    let number = |text: Option<&[u8]>| core::str::from_utf8(text?).ok()?.parse::<u32>().ok();
    let mut parts = version.split(|b| *b == b'.');
    match (number(parts.next())?, number(parts.next())?) {
        (2, minor) => Some(minor.min(999)),
        (major, _) => (major > 2).then_some(1000),
    }
}

/// Whether connections can be accelerated under this libc: we know what its functions do by internal calls.
#[inline]
pub fn is_known() -> bool {
    matches!(libc(), Libc::Glibc(minor) if minor >= OLDEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        for (version, n) in [("2.17", 17), ("2.33.9000", 33), ("2.34", 34), ("3.1", 1000)] {
            assert_eq!(minor(version.as_bytes()), Some(n), "{version}");
        }
        assert!([&b""[..], b"1.9", b"2", b"x.y"].iter().all(|version| minor(version).is_none()));
        assert!(is_known());
    }
}
