//! The process's mappings, as the kernel lists them (proc_pid_maps(5)).

use crate::{raw, reserved_fds};
use rustix::fd::AsRawFd;
use rustix::fs::{Mode, OFlags, open};

/// Longest line that is read whole; a path is cut off.
const LONGEST: usize = 512;

/// Calls `f` for each line of the list. Without /proc there is none.
fn each_line(mut f: impl FnMut(&[u8])) {
    let Ok(file) = open(c"/proc/self/maps", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else { return };
    let mut line = [0u8; LONGEST];
    let mut length = 0;
    let mut bytes = [0u8; 4096];
    while let Ok(n @ 1..) = raw::read(file.as_raw_fd(), bytes.as_mut_ptr(), bytes.len(), None) {
        for byte in bytes.iter().take(n) {
            if *byte != b'\n' {
                if let Some(place) = line.get_mut(length) {
                    *place = *byte;
                    length += 1;
                }
                continue;
            }
            f(line.get(..length).unwrap_or(&[]));
            length = 0;
        }
    }
    reserved_fds::drop_raw(file);
}

/// Calls `f` with address and length of each mapping of a file whose path begins with one of `paths`. `f` may replace the
/// mapping by another one.
pub fn each_of(paths: &[&[u8]], mut f: impl FnMut(usize, usize)) {
    each_line(|line| {
        if let Some((start, len)) = of_path(line, paths) {
            f(start, len);
        }
    });
}

/// Address and length of the mapping in a line, if its path begins with one of `paths`.
fn of_path(line: &[u8], paths: &[&[u8]]) -> Option<(usize, usize)> {
    let path = line.splitn(6, |b| *b == b' ').nth(5)?.trim_ascii_start();
    paths.iter().find(|wanted| path.starts_with(wanted))?;
    let range = core::str::from_utf8(line.split(|b| *b == b' ').next()?).ok()?;
    let (start, end) = range.split_once('-')?;
    let [start, end] = [start, end].map(|n| usize::from_str_radix(n, 16).ok());
    start.zip(end).filter(|(start, end)| start < end).map(|(start, end)| (start, end - start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_found_by_their_path() {
        let line = b"7f00a000-7f00c000 rw-s 00000000 00:01 1234                       /memfd:netacc-link (deleted)";
        assert_eq!(of_path(line, &[b"/memfd:netacc-link"]), Some((0x7f00_a000, 0x2000)));
        for (line, path) in [
            (&line[..], &b"/memfd:other"[..]),
            (b"7f00a000-7f00c000 rw-s 00000000 00:01 1234", b"/memfd"),
            (b"7f00c000-7f00a000 rw-s 0 0 0 /memfd", b"/memfd"),
            (b"zz-7f00a000 rw-s 0 0 0 /memfd", b"/memfd"),
            (b"", b""),
        ] {
            assert_eq!(of_path(line, &[path]), None);
        }
        let mut n = 0;
        each_of(&[b"/"], |_, len| n += len);
        assert!(n > 0);
    }
}
