//! The sources of a page's bytes: a file, or memory.

use std::io;
use std::ops::Range;

use rustix::fd::BorrowedFd;
use rustix::fs::{SeekFrom, fstat, seek};
use rustix::io::{Errno, pread};

/// Bytes that are copied out piece by piece. They may change or disappear
/// between two reads: every read is checked on its own.
pub(super) trait Source {
    /// The number of bytes at this moment.
    fn len(&self) -> io::Result<u64>;

    /// Fills `buf` from `offset`, or fails with `UnexpectedEof`.
    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;

    /// The first stretch between `from` and `end` that may hold anything but zeros; `None` if there is none.
    fn next_data(&self, from: u64, end: u64) -> Option<Range<u64>>;
}

/// The descriptor is one of rustix, which knows those of std only with its `std`
/// feature; the preloaded library must not have that feature.
impl Source for BorrowedFd<'_> {
    fn len(&self) -> io::Result<u64> {
        let size = fstat(self).map_err(system)?.st_size;
        Ok(u64::try_from(size).unwrap_or(0))
    }

    fn read(&self, mut offset: u64, mut buf: &mut [u8]) -> io::Result<()> {
        while !buf.is_empty() {
            let done = match pread(self, &mut *buf, offset) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(done) => done,
                Err(Errno::INTR) => 0,
                Err(error) => return Err(system(error)),
            };
            buf = buf.get_mut(done..).unwrap_or_default();
            offset += done as u64;
        }
        Ok(())
    }

    fn next_data(&self, from: u64, end: u64) -> Option<Range<u64>> {
        if from >= end {
            return None;
        }
        let start = match seek(self, SeekFrom::Data(from)) {
            Ok(start) => start,
            // ENXIO: only a hole follows (lseek(2)).
            Err(Errno::NXIO) => return None,
            Err(_) => return Some(from..end),
        };
        let stop = seek(self, SeekFrom::Hole(start)).unwrap_or(end);
        // A file that changes meanwhile must not make the walk stand still or go back.
        (from..end).contains(&start).then(|| start..stop.clamp(start + 1, end))
    }
}

/// Converts an error of rustix into one of std.
pub(super) fn system(error: Errno) -> io::Error {
    io::Error::from_raw_os_error(error.raw_os_error())
}

impl Source for &[u8] {
    fn len(&self) -> io::Result<u64> {
        Ok(<[u8]>::len(self) as u64)
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let from = usize::try_from(offset).ok();
        let piece = from.and_then(|from| self.get(from..from.checked_add(buf.len())?));
        match piece {
            Some(piece) => buf.copy_from_slice(piece),
            None => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
        Ok(())
    }

    fn next_data(&self, from: u64, end: u64) -> Option<Range<u64>> {
        (from < end).then_some(from..end)
    }
}

/// A page of `len` bytes that are zero except for some stretches, as in a process with few connections. Each stretch is
/// an offset and bytes; they are in the order of the offsets.
pub(super) struct Sparse<'a> {
    pub(super) len: u64,
    pub(super) stretches: &'a [(u64, &'a [u8])],
}

impl Sparse<'_> {
    /// The stretches with the range that each covers.
    fn ranges(&self) -> impl Iterator<Item = (Range<u64>, &[u8])> {
        self.stretches.iter().map(|&(at, bytes)| (at..at.saturating_add(<[u8]>::len(bytes) as u64), bytes))
    }
}

impl Source for Sparse<'_> {
    fn len(&self) -> io::Result<u64> {
        Ok(self.len)
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(buf.len() as u64).filter(|end| *end <= self.len);
        let Some(end) = end else { return Err(io::ErrorKind::UnexpectedEof.into()) };
        buf.fill(0);
        for (covers, bytes) in self.ranges() {
            let (from, to) = (covers.start.max(offset), covers.end.min(end));
            // Both differences are offsets within a slice, so they fit into usize.
            let within = |base: u64| Range { start: (from - base) as usize, end: (to - base) as usize };
            if from < to
                && let (Some(there), Some(here)) = (bytes.get(within(covers.start)), buf.get_mut(within(offset)))
            {
                here.copy_from_slice(there);
            }
        }
        Ok(())
    }

    fn next_data(&self, from: u64, end: u64) -> Option<Range<u64>> {
        self.ranges().map(|(covers, _)| covers.start.max(from)..covers.end.min(end)).find(|covers| !covers.is_empty())
    }
}
