//! Unmaps memory that a copy of the program's process does not need.
//!
//! The kernel copies a page when either process writes to it, so a long-lived copy would keep all memory that the
//! program had at the fork: perhaps gigabytes of a program that has ended or executed another one. Besides, System V
//! shared memory counts its users (shmctl(2)), and the copy should not be one of them.
#![allow(unsafe_code)]

use netacc_sys::{raw, reserved_fds};
use rustix::fd::AsRawFd;
use rustix::fs::{Mode, OFlags, open};
use rustix::mm::{Advice, madvise, munmap};

/// Smallest size (bytes) of a mapping that is unmapped: smaller ones may be the data of libraries, and are not worth
/// the calls.
const WORTH: usize = 1 << 20;
/// Largest number of shared files that may be mapped at the needed addresses.
const FILES: usize = 4;

/// A line of /proc/PID/maps (proc(5)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mapping {
    from: usize,
    to: usize,
    shared: bool,
    writable: bool,
    /// Set if the kernel made the mapping: the main thread's stack, or a page such as the vDSO.
    special: bool,
    /// Device and inode of the file; zeroes: the mapping is anonymous.
    file: (u64, u64),
}

impl Mapping {
    fn has(&self, address: usize) -> bool {
        (self.from..self.to).contains(&address)
    }
}

/// Unmaps all mappings that contain none of the needed addresses. The caller is a process with one thread that
/// afterwards uses only the memory around these addresses and the code and small data of libraries. If a shared file is
/// mapped at one of the addresses, all of its mappings stay.
pub fn shed(needed: &[usize]) {
    let mut kept = [(0, 0); FILES];
    let mut places = kept.iter_mut();
    each(|m| {
        if m.shared
            && needed.iter().any(|a| m.has(*a))
            && let Some(place) = places.next()
        {
            *place = m.file;
        }
    });
    each(|m| {
        if m.special || needed.iter().any(|a| m.has(*a)) {
            return;
        }
        let at = core::ptr::with_exposed_provenance_mut::<core::ffi::c_void>(m.from);
        if m.shared && !kept.contains(&m.file) {
            // SAFETY: the caller guarantees that the process no longer uses this memory.
            let _ = unsafe { munmap(at, m.to - m.from) };
        } else if !m.shared && m.writable && m.file == (0, 0) && m.to - m.from >= WORTH {
            // SAFETY: the caller guarantees that the process no longer uses this memory; the range stays mapped, and
            // reads as zeroes.
            let _ = unsafe { madvise(at, m.to - m.from, Advice::LinuxDontNeed) };
        }
    });
}

/// Calls `f` for every mapping, without allocating.
fn each(mut f: impl FnMut(Mapping)) {
    let Ok(maps) = open(c"/proc/self/maps", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else { return };
    let mut buf = [0u8; 8192];
    let mut len = 0;
    while let Some(room) = buf.get_mut(len..).filter(|room| !room.is_empty()) {
        let Ok(n @ 1..) = raw::read(maps.as_raw_fd(), room.as_mut_ptr(), room.len(), None) else { break };
        len += n;
        let mut done = 0;
        while let Some(line) = buf.get(done..len).and_then(|rest| rest.split_inclusive(|b| *b == b'\n').next())
            && line.ends_with(b"\n")
        {
            done += line.len();
            if let Some(m) = parse(line) {
                f(m);
            }
        }
        buf.copy_within(done..len, 0);
        len -= done;
    }
    reserved_fds::drop_raw(maps);
}

/// Parses a line of the form `from-to perms offset major:minor inode name`.
fn parse(line: &[u8]) -> Option<Mapping> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let mut fields = line.split(|b| *b == b' ').filter(|field| !field.is_empty());
    let number = |text: &[u8], radix| u64::from_str_radix(core::str::from_utf8(text).ok()?, radix).ok();
    let pair = |text: &[u8], by: u8| {
        let at = text.iter().position(|b| *b == by)?;
        Some((number(text.get(..at)?, 16)?, number(text.get(at + 1..)?, 16)?))
    };
    let (from, to) = pair(fields.next()?, b'-')?;
    let perms = fields.next()?;
    let (major, minor) = pair(fields.nth(1)?, b':')?;
    let inode = number(fields.next()?, 10)?;
    let name = fields.next().unwrap_or_default();
    let plain = !name.starts_with(b"[") || name.starts_with(b"[heap]") || name.starts_with(b"[anon");
    Some(Mapping {
        from: from as usize,
        to: to as usize,
        shared: perms.get(3) == Some(&b's'),
        writable: perms.get(1) == Some(&b'w'),
        special: !plain,
        file: (major << 32 | minor, inode),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_all_kinds() {
        let one = parse(b"7f00-7f20 rw-s 00001000 00:01 4711 /memfd:netacc link (deleted)\n");
        let file = (1, 4711);
        let expected = Mapping { from: 0x7f00, to: 0x7f20, shared: true, writable: true, special: false, file };
        assert_eq!(one, Some(expected));
        let anonymous = parse(b"1000-2000 rw-p 00000000 00:00 0 \n").unwrap();
        assert_eq!((anonymous.file, anonymous.shared, anonymous.special), ((0, 0), false, false));
        assert!(parse(b"1000-2000 rw-p 00000000 00:00 0                          [stack]\n").unwrap().special);
        assert!(!parse(b"1000-2000 rw-p 00000000 00:00 0                          [heap]\n").unwrap().special);
        for garbage in [&b""[..], b"\n", b"1000 rw-p", b"zz-2000 rw-p 0 00:00 0\n", b"1000-2000 rw-p 0 0000 0\n"] {
            assert_eq!(parse(garbage), None);
        }
    }

    #[test]
    fn every_mapping_is_seen() {
        let (mut code, mut stack) = (false, false);
        let local = 0u8;
        each(|m| {
            code |= m.has(parse as *const () as usize);
            stack |= m.has((&raw const local).addr());
        });
        assert!(code && stack);
    }
}
