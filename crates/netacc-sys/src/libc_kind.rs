//! Which libc the process has, and so whether the library works in it or leaves every call alone.
#![allow(unsafe_code)]

use crate::{static_program, symbol_tables, weak};
use core::ffi::{CStr, c_int, c_void};
use core::ptr;
use core::sync::atomic::{AtomicU32, Ordering};

/// A libc.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Libc {
    /// glibc 2.n.
    Glibc(u32),
    /// musl 1.2.2 or newer.
    Musl,
    /// None: see [`crate::static_program`].
    None,
    /// Another libc, an older musl, or a glibc whose version says nothing. Also the libc of a process that has gained
    /// rights ([`weak::has_gained_rights`]), whichever it is.
    ///
    /// Environment, configuration and log of such a process would be its caller's choice, who has fewer rights. The
    /// library therefore reads none of them there: every call is passed on, and nothing else happens.
    Other,
}

/// The oldest glibc (2.n) under which connections are accelerated.
pub const OLDEST: u32 = 17;

const UNKNOWN: u32 = 0;
const OTHER: u32 = 1;
const MUSL: u32 = 2;
const NONE: u32 = 3;
/// Glibc 2.n is n more than this.
const GLIBC: u32 = 4;

static KNOWN: AtomicU32 = AtomicU32::new(UNKNOWN);

/// The libc of this process.
#[inline]
pub fn libc() -> Libc {
    // Relaxed: every thread finds the same value.
    match KNOWN.load(Ordering::Relaxed) {
        UNKNOWN => find(),
        OTHER => Libc::Other,
        MUSL => Libc::Musl,
        NONE => Libc::None,
        n => Libc::Glibc(n - GLIBC),
    }
}

#[cold]
fn find() -> Libc {
    // musl comes before glibc, since a library that helps programs of glibc to run on musl (gcompat) gives a version of glibc.
    let libc = if static_program::is_one() {
        Libc::None
    } else if weak::has_gained_rights() {
        Libc::Other
    } else if has_musl() {
        // musl does not tell its version. This function came with 1.2.2; ours of the same name does not count.
        if symbol_tables::next(c"_Fork").is_null() { Libc::Other } else { Libc::Musl }
    } else {
        let minor = weak::glibc_version().and_then(|version| minor(version.to_bytes()));
        minor.map_or(Libc::Other, Libc::Glibc)
    };
    let known = match libc {
        Libc::Other => OTHER,
        Libc::Musl => MUSL,
        Libc::None => NONE,
        Libc::Glibc(minor) => minor.saturating_add(GLIBC),
    };
    KNOWN.store(known, Ordering::Relaxed);
    libc
}

/// Whether musl's dynamic loader, which is the whole of its libc, is in the process.
fn has_musl() -> bool {
    // SAFETY: the callback needs no data.
    unsafe { symbol_tables::each_object(look_for_musl, ptr::null_mut()) != 0 }
}

unsafe extern "C" fn look_for_musl(info: *mut libc::dl_phdr_info, _size: usize, _data: *mut c_void) -> c_int {
    // SAFETY: the linker gives a valid description of a loaded object.
    let name = unsafe { (*info).dlpi_name };
    // SAFETY: the linker's name of the object ends with NUL.
    c_int::from(!name.is_null() && is_musls_loader(unsafe { CStr::from_ptr(name) }.to_bytes()))
}

/// Whether a path is that of musl's dynamic loader (`/lib/ld-musl-x86_64.so.1`).
#[must_use]
pub fn is_musls_loader(path: &[u8]) -> bool {
    path.rsplit(|b| *b == b'/').next().is_some_and(|name| name.starts_with(b"ld-musl-"))
}

/// The n of glibc 2.n; a glibc 3 would be newer than all of them.
fn minor(version: &[u8]) -> Option<u32> {
    let digit = |n: u32, b: &u8| n.checked_mul(10)?.checked_add(char::from(*b).to_digit(10)?);
    let number = |text: Option<&[u8]>| text.filter(|t| !t.is_empty())?.iter().try_fold(0, digit);
    let mut parts = version.split(|b| *b == b'.');
    match (number(parts.next())?, number(parts.next())?) {
        (2, minor) => Some(minor.min(999)),
        (major, _) => (major > 2).then_some(1000),
    }
}

/// Whether connections can be accelerated under this libc, or without any: we know what its functions do by internal
/// calls. Where they cannot, the library does nothing at all.
#[inline]
pub fn is_known() -> bool {
    match libc() {
        Libc::Glibc(minor) => minor >= OLDEST,
        Libc::Musl | Libc::None => true,
        Libc::Other => false,
    }
}

/// Whether the process has musl.
#[inline]
pub fn is_musl() -> bool {
    libc() == Libc::Musl
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
        assert!(is_known() && !is_musl());
    }

    #[test]
    fn the_loader_of_musl() {
        assert!(is_musls_loader(b"/lib/ld-musl-x86_64.so.1") && is_musls_loader(b"ld-musl-aarch64.so.1"));
        assert!(![&b""[..], b"/lib64/ld-linux-x86-64.so.2", b"/ld-musl-x/libc.so"].iter().any(|p| is_musls_loader(p)));
    }
}
