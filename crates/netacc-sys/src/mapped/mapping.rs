//! Maps the library into a process that waits before its program's first instruction.

use super::problem::Problem;
use crate::errno::Errno;
use crate::image::{self, Image, Segment};
use crate::tracee::Held;
use core::ffi::CStr;
use rustix::fs::{Mode, OFlags, fstat};

/// The library's file.
pub(super) struct Library {
    pub(super) image: Image,
    /// Its device and inode.
    file: (u64, u64),
}

impl Library {
    /// Reads the library.
    pub(super) fn read(path: &CStr) -> Result<Library, Problem> {
        let failed = |error: rustix::io::Errno| Problem::Library(error.into());
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
        let file = rustix::fs::open(path, flags, Mode::empty()).map_err(failed)?;
        let meta = fstat(&file).map_err(failed)?;
        let image = Image::read(&file).map_err(|problem| match problem {
            image::Problem::Unreadable(errno) => Problem::Library(errno),
            image::Problem::Damaged => Problem::Damaged,
        })?;
        Ok(Library { image, file: (meta.st_dev, meta.st_ino) })
    }
}

/// The library in the memory of a process that is held.
pub(super) struct Mapping {
    /// Where it begins.
    pub(super) base: usize,
}

/// A page for what system calls read and write, behind one for a path.
const SCRATCH: usize = 2 * 4096;
const SECOND: usize = 4096;

impl Mapping {
    /// Maps the library. Nothing of it is left where that fails.
    pub(super) fn make(held: &mut Held, library: &Library, path: &[u8]) -> Result<Mapping, Problem> {
        let failed = Problem::NotMapped;
        let scratch = map(held, 0, SCRATCH, libc_prot(6), ANONYMOUS).map_err(failed)?;
        let opened = open(held, scratch, library, path);
        let made = opened.map_err(failed).and_then(|fd| {
            let made =
                fd.map_or_else(|| Err(Problem::Damaged), |fd| Mapping::of(held, &library.image, fd).map_err(failed));
            if let Some(fd) = fd {
                let _ = held.call(CLOSE, [fd, 0, 0, 0, 0, 0]);
            }
            made
        });
        let _ = held.call(MUNMAP, [scratch, SCRATCH, 0, 0, 0, 0]);
        made
    }

    fn of(held: &mut Held, image: &Image, fd: usize) -> Result<Mapping, Errno> {
        let span = image.span() as usize;
        let base = map(held, 0, span, 0, ANONYMOUS | NO_RESERVE)?;
        let done = Mapping::fill(held, image, fd, base);
        if done.is_err() {
            let _ = held.call(MUNMAP, [base, span, 0, 0, 0, 0]);
        }
        done.map(|()| Mapping { base })
    }

    fn fill(held: &mut Held, image: &Image, fd: usize, base: usize) -> Result<(), Errno> {
        // Nothing but the library is there, so that a weak symbol which it does not have is nowhere.
        let data = image.data(base as u64, |_| 0).ok_or(Errno::INVAL)?;
        for segment in image.segments.iter().filter(|segment| segment.flags & WRITE == 0) {
            let (first, end) = segment.pages();
            let (at, len) = (base + first as usize, (end - first) as usize);
            let offset = (segment.offset - (segment.address - first)) as usize;
            let access = libc_prot(segment.flags);
            held.call(MMAP, [at, len, access, PRIVATE | FIXED, fd, offset])?;
        }
        for (segment, bytes) in &data {
            place(held, base, segment, bytes)?;
        }
        if let Some((from, to)) = image.constant.filter(|(from, to)| to > from) {
            held.call(MPROTECT, [base + from as usize, (to - from) as usize, libc_prot(4), 0, 0, 0])?;
        }
        Ok(())
    }
}

/// Places a segment that can be written.
fn place(held: &mut Held, base: usize, segment: &Segment, bytes: &[u8]) -> Result<(), Errno> {
    let (first, end) = segment.pages();
    let at = base + first as usize;
    map(held, at, (end - first) as usize, libc_prot(segment.flags), ANONYMOUS | FIXED)?;
    held.write(base + segment.address as usize, bytes)
}

/// Has the process open the library; `None` if it finds another file there than the one that was read.
fn open(held: &mut Held, scratch: usize, library: &Library, path: &[u8]) -> Result<Option<usize>, Errno> {
    const CURRENT_DIRECTORY: usize = -100_isize as usize;
    const CLOSE_ON_EXEC: usize = 0o2_000_000;
    if path.len() >= SECOND {
        return Err(Errno::INVAL);
    }
    held.write(scratch, path)?;
    let fd = held.call(OPENAT, [CURRENT_DIRECTORY, scratch, CLOSE_ON_EXEC, 0, 0, 0])?;
    let mut found = [0; 16];
    held.call(FSTAT, [fd, scratch + SECOND, 0, 0, 0, 0])?;
    held.read(scratch + SECOND, &mut found)?;
    // `struct stat` begins with the device and the inode.
    let same = found == *[library.file.0.to_le_bytes(), library.file.1.to_le_bytes()].as_flattened();
    if !same {
        let _ = held.call(CLOSE, [fd, 0, 0, 0, 0, 0]);
    }
    Ok(same.then_some(fd))
}

fn map(held: &mut Held, at: usize, len: usize, access: usize, flags: usize) -> Result<usize, Errno> {
    held.call(MMAP, [at, len, access, PRIVATE | flags, usize::MAX, 0])
}

/// The access (`PROT_`) that the flags of a segment ask for, which have the same bits in another order.
fn libc_prot(flags: u32) -> usize {
    let bit = |from: u32, to: usize| if flags & from == 0 { 0 } else { to };
    bit(4, 1) | bit(WRITE, 2) | bit(1, 4)
}

const WRITE: u32 = 2;
const PRIVATE: usize = 2;
const FIXED: usize = 0x10;
const ANONYMOUS: usize = 0x20;
const NO_RESERVE: usize = 0x4000;

// Numbers of system calls on x86-64.
const CLOSE: i64 = 3;
const FSTAT: i64 = 5;
const MMAP: i64 = 9;
const MPROTECT: i64 = 10;
const MUNMAP: i64 = 11;
const OPENAT: i64 = 257;
