//! Another copy of the library in this process, mapped from its file without a loader, which is to take this one's place
//! (`netacc_ctl upgrade`).
//!
//! # Safety
//! The code in the file is trusted: it lies where the library lay when the process was started ([`crate::origin`]), so
//! anyone who can write to that file can already run code in every program that is started with it. It is executed as it
//! was read and checked: its segments are mapped from a sealed copy of the file, since the file may be overwritten at any
//! time. Nothing of the copy runs until its caller calls a function of it.
#![allow(unsafe_code)]

use crate::errno::{Errno, Result};
use crate::image::{self, Image, Segment};
use crate::mem::{self, LARGEST_PAGE};
use crate::origin::{self, Origin};
use crate::{raw, reserved_fds, signals, symbol};
use alloc::vec::Vec;
use core::ffi::CStr;
use core::ptr::{self, NonNull};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mmap_anonymous, mprotect, munmap};

/// A copy that is mapped.
#[derive(Debug)]
pub struct Copy {
    base: usize,
    length: usize,
    /// Where the symbol lies that was asked for.
    symbol: usize,
}

/// Why there is no copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem {
    /// The file cannot be opened or read.
    Unreadable(Errno),
    /// The file is no library that can be mapped, or does not have the symbol.
    Damaged,
    /// The kernel does not map it.
    NotMapped(Errno),
    /// The path leads elsewhere than at the start, or others can write to the file.
    Elsewhere,
}

impl Copy {
    /// Maps the library in the file `path`, which defines `symbol`.
    ///
    /// # Errors
    /// The variant says what is wrong.
    pub fn map(origin: &Origin, path: &CStr, symbol: &CStr) -> core::result::Result<Copy, Problem> {
        let file = origin.open(path).map_err(|problem| match problem {
            origin::Problem::Unreadable(e) => Problem::Unreadable(e),
            origin::Problem::NoFile => Problem::Damaged,
            origin::Problem::Elsewhere => Problem::Elsewhere,
        })?;
        let image = Image::read(&file).map_err(|problem| match problem {
            image::Problem::Unreadable(e) => Problem::Unreadable(e),
            image::Problem::Damaged => Problem::Damaged,
        });
        let made = image.and_then(|image| {
            let at = image.defined(symbol).ok_or(Problem::Damaged)?;
            place(&file, &image, at)
        });
        reserved_fds::drop_raw(file);
        made
    }

    /// The address of the symbol, which is a `T`; `None` if no `T` can lie there.
    #[must_use]
    pub fn symbol<T>(&self) -> Option<*const T> {
        let whole = self.symbol.checked_add(size_of::<T>()).is_some_and(|end| end <= self.base + self.length);
        (whole && self.symbol.is_multiple_of(align_of::<T>())).then(|| ptr::with_exposed_provenance(self.symbol))
    }

    /// Where it lies, for [`Copy::kept`].
    #[must_use]
    pub fn keep(self) -> [usize; 2] {
        [self.base, self.length]
    }

    /// The copy that lies where [`Copy::keep`] has said, or none (two zeros), to be discarded.
    #[must_use]
    pub fn kept([base, length]: [usize; 2]) -> Copy {
        Copy { base, length, symbol: 0 }
    }

    /// Unmaps the copy, of which nothing was used.
    pub fn discard(self) {
        if self.length > 0 {
            // SAFETY: mapped by `place`, and nothing of it was used, as the caller says.
            let _ = unsafe { munmap(ptr::with_exposed_provenance_mut(self.base), self.length) };
        }
    }
}

/// A file that nobody can change, with what was read of the library.
fn sealed(image: &Image) -> Result<OwnedFd> {
    let file = memfd_create(c"libnetacc-preload.so", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut rest = image.bytes();
    // Beyond RLIMIT_FSIZE the kernel refuses, and sends a signal that would end the program (setrlimit(2)).
    let written = signals::without(libc::SIGXFSZ, || {
        while !rest.is_empty() {
            match raw::write(file.as_raw_fd(), rest.as_ptr(), rest.len()) {
                Ok(n) => rest = rest.get(n..).unwrap_or(&[]),
                Err(Errno::INTR) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    });
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL;
    match written.and_then(|()| Ok(fcntl_add_seals(&file, seals)?)) {
        Ok(()) => Ok(file),
        Err(e) => {
            reserved_fds::drop_raw(file);
            Err(e)
        }
    }
}

fn place(file: &OwnedFd, image: &Image, symbol: u64) -> core::result::Result<Copy, Problem> {
    // One page more than the library takes, which shows its file.
    let length = image.span() as usize + LARGEST_PAGE;
    // SAFETY: a fresh mapping overlaps nothing.
    let base =
        unsafe { mmap_anonymous(ptr::null_mut(), length, ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE) };
    let base = base.map_err(|e| Problem::NotMapped(e.into()))?.expose_provenance();
    let copy = Copy { base, length, symbol: base + symbol as usize };
    let Some(data) = image.data(base as u64, |name| symbol::any(name).addr() as u64) else {
        copy.discard();
        return Err(Problem::Damaged);
    };
    let mapped = sealed(image).and_then(|code| {
        let mapped = map_all(&code, image, base, &data).and_then(|()| show(file, base + image.span() as usize));
        reserved_fds::drop_raw(code);
        mapped
    });
    match mapped {
        Ok(()) => Ok(copy),
        Err(e) => {
            copy.discard();
            Err(Problem::NotMapped(e))
        }
    }
}

/// Maps the segments into the range that begins at `base` and is reserved for them.
fn map_all(file: &OwnedFd, image: &Image, base: usize, data: &[(Segment, Vec<u8>)]) -> Result<()> {
    const WRITE: u32 = 2;
    let at = |offset: u64| ptr::with_exposed_provenance_mut(base + offset as usize);
    for segment in image.segments.iter().filter(|segment| segment.flags & WRITE == 0) {
        let (first, end) = segment.pages();
        let offset = segment.offset - (segment.address - first);
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        let (length, access) = ((end - first) as usize, access(segment.flags));
        // What the kernel would lock is mapped without access at first: see `mem::first_access`.
        let first_access = if mem::is_locking() { ProtFlags::empty() } else { access };
        // SAFETY: within the reserved range.
        unsafe { mmap(at(first), length, first_access, flags, file, offset)? };
        if mem::is_locking() {
            // SAFETY: the mapping that was just made.
            unsafe { mem::permit(at(first), length, MprotectFlags::from_bits_retain(access.bits()))? };
        }
    }
    for (segment, bytes) in data {
        let (first, end) = segment.pages();
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        // SAFETY: within the reserved range; the bytes lie within the segment, as `Image::parse` has checked.
        unsafe {
            let fresh = mmap_anonymous(at(first), (end - first) as usize, mem::first_access(), flags)?;
            mem::open_up(NonNull::new(fresh.cast()).ok_or(Errno::NOMEM)?, (end - first) as usize)?;
            ptr::copy_nonoverlapping(bytes.as_ptr(), at(segment.address).cast(), bytes.len());
        }
    }
    if let Some((from, to)) = image.constant.filter(|(from, to)| to > from) {
        // SAFETY: within the reserved range; nothing of the copy runs yet.
        unsafe { mprotect(at(from), (to - from) as usize, MprotectFlags::READ)? };
    }
    Ok(())
}

/// Maps a page of the library's file at `at`, which is reserved. Nobody can access it: it is there for people and tools that
/// look in the list of mappings (proc_pid_maps(5)) which programs use which file.
fn show(file: &OwnedFd, at: usize) -> Result<()> {
    let (at, flags) = (ptr::with_exposed_provenance_mut(at), MapFlags::PRIVATE | MapFlags::FIXED);
    // SAFETY: within the reserved range.
    unsafe { mmap(at, LARGEST_PAGE, ProtFlags::empty(), flags, file, 0)? };
    Ok(())
}

/// The access that the flags of a segment ask for (`PF_`), which have the bits of `PROT_` in another order.
fn access(flags: u32) -> ProtFlags {
    [(4, ProtFlags::READ), (2, ProtFlags::WRITE), (1, ProtFlags::EXEC)]
        .into_iter()
        .filter(|(bit, _)| flags & bit != 0)
        .fold(ProtFlags::empty(), |all, (_, access)| all | access)
}
