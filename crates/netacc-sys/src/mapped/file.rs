//! Looks at the file of a program that is going to be executed: whether it is a static Go program.
//!
//! # Safety
//! The file is foreign, and each number in it may be wrong. It is read by pread(2) and checked, except its code, which is
//! mapped, since it is large. Somebody may make the file shorter meanwhile, which ends the process that looks at the
//! code; that is why a helper does so, which does nothing else.

use super::problem::Problem;
use crate::go_program::{self, MOST_THREAD_LOCAL};
use alloc::vec;
use alloc::vec::Vec;
use core::ffi::CStr;
use core::ptr;
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::{Access, AtFlags, Mode, OFlags, accessat, fgetxattr, fstat, openat, stat, statat};
use rustix::io::pread;
use rustix::mm::{MapFlags, ProtFlags, mmap};

/// A file, as a process that executes it has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    device: u64,
    inode: u64,
}

/// The file that a process executes.
pub(super) fn of_process(pid: u32) -> Option<Identity> {
    let path = alloc::format!("/proc/{pid}/exe");
    stat(path.as_str()).ok().map(|meta| Identity { device: meta.st_dev, inode: meta.st_ino })
}

/// Whether the file is that of a static Go program which does not raise privileges. It costs a few system calls. Whether
/// its calls can be followed is not looked at.
#[must_use]
pub fn is_static_go(file: BorrowedFd<'_>) -> bool {
    headers(file).is_some_and(|headers| is_plain(file) && is_static(file, &headers) && is_go(file, &headers))
}

/// Whether the calls of a static Go program can be followed. To be called by a process that may end.
///
/// # Errors
/// [`Problem::Program`].
pub fn accept(file: BorrowedFd<'_>) -> Result<Option<Identity>, Problem> {
    let meta = fstat(file).map_err(|_| Problem::Program)?;
    let code = headers(file).and_then(|headers| code(file, &headers, u64::try_from(meta.st_size).ok()?));
    let code = code.ok_or(Problem::Program)?;
    go_program::search_static(code.into_iter()).map_err(|_| Problem::Program)?;
    Ok(Some(Identity { device: meta.st_dev, inode: meta.st_ino }))
}

/// A program header.
#[derive(Clone, Copy)]
struct Header {
    kind: u32,
    flags: u32,
    offset: u64,
    filled: u64,
    size: u64,
}

fn at<const N: usize>(bytes: &[u8], from: usize) -> Option<[u8; N]> {
    bytes.get(from..from.checked_add(N)?)?.try_into().ok()
}

fn word(bytes: &[u8], from: usize) -> Option<u64> {
    at(bytes, from).map(u64::from_le_bytes)
}

/// What there is of `length` bytes of the file.
fn piece(file: BorrowedFd<'_>, offset: u64, length: u64) -> Option<Vec<u8>> {
    const LARGEST: u64 = 1 << 16;
    let mut bytes = vec![0; usize::try_from(length.min(LARGEST)).ok()?];
    let read = pread(file, &mut bytes[..], offset).ok()?;
    bytes.truncate(read);
    Some(bytes)
}

/// The program headers of a program for x86-64.
fn headers(file: BorrowedFd<'_>) -> Option<Vec<Header>> {
    const HEADER: u64 = 64;
    const SIZE: usize = 56;
    const X86_64: u16 = 62;
    const KINDS: [u16; 2] = [2, 3];
    let head = piece(file, 0, HEADER)?;
    let (kind, machine) = (at(&head, 16).map(u16::from_le_bytes)?, at(&head, 18).map(u16::from_le_bytes)?);
    let (size, count) = (at(&head, 54).map(u16::from_le_bytes)?, at(&head, 56).map(u16::from_le_bytes)?);
    let is_known = head.starts_with(b"\x7fELF\x02\x01") && KINDS.contains(&kind) && machine == X86_64;
    if !is_known || usize::from(size) != SIZE {
        return None;
    }
    let table = piece(file, word(&head, 32)?, u64::from(count) * SIZE as u64)?;
    let header = |bytes: &[u8]| {
        Some(Header {
            kind: at(bytes, 0).map(u32::from_le_bytes)?,
            flags: at(bytes, 4).map(u32::from_le_bytes)?,
            offset: word(bytes, 8)?,
            filled: word(bytes, 32)?,
            size: word(bytes, 40)?,
        })
    };
    table.chunks_exact(SIZE).map(header).collect()
}

/// Whether the kernel executes it with the rights of its caller.
fn is_plain(file: BorrowedFd<'_>) -> bool {
    const RAISES: u32 = 0o6000;
    let Ok(meta) = fstat(file) else { return false };
    let mut value = [0u8; 64];
    meta.st_mode & RAISES == 0 && !fgetxattr(file, c"security.capability", &mut value[..]).is_ok_and(|size| size > 0)
}

/// Whether it asks for no library, and has no C library in it.
fn is_static(file: BorrowedFd<'_>, headers: &[Header]) -> bool {
    const NEEDED: u64 = 1;
    let needs = |header: &Header| {
        let entries = piece(file, header.offset, header.filled).unwrap_or_default();
        entries.len() as u64 != header.filled || entries.chunks_exact(16).any(|entry| word(entry, 0) == Some(NEEDED))
    };
    headers.iter().all(|header| match header.kind {
        libc::PT_DYNAMIC => !needs(header),
        libc::PT_TLS => header.size <= MOST_THREAD_LOCAL,
        _ => true,
    })
}

/// Whether the linker of Go has made it.
fn is_go(file: BorrowedFd<'_>, headers: &[Header]) -> bool {
    headers.iter().any(|header| match header.kind {
        libc::PT_NOTE => piece(file, header.offset, header.filled).is_some_and(|note| go_program::is_note(&note)),
        libc::PT_LOAD if header.flags & libc::PF_W != 0 => {
            let begins = piece(file, header.offset, go_program::BUILD_INFO.len() as u64);
            begins.is_some_and(|bytes| bytes == go_program::BUILD_INFO)
        }
        _ => false,
    })
}

/// The code, by where it lies in the file. It stays mapped.
fn code(file: BorrowedFd<'_>, headers: &[Header], size: u64) -> Option<Vec<(usize, &'static [u8])>> {
    let is_code = |header: &&Header| header.kind == libc::PT_LOAD && header.flags & libc::PF_X != 0;
    let length = usize::try_from(size).ok().filter(|length| *length > 0)?;
    // SAFETY: a new mapping, whose place the kernel chooses.
    let start = unsafe { mmap(ptr::null_mut(), length, ProtFlags::READ, MapFlags::PRIVATE, file, 0) }.ok()?;
    // SAFETY: just mapped for good, and nobody writes to it. What happens if the file becomes shorter is said above.
    let whole = unsafe { core::slice::from_raw_parts(start.cast::<u8>(), length) };
    let piece = |header: &Header| {
        let from = usize::try_from(header.offset).ok()?;
        let to = from.checked_add(usize::try_from(header.filled).ok()?)?;
        Some((from, whole.get(from..to)?))
    };
    headers.iter().filter(is_code).map(piece).collect()
}

/// Whether the kernel lets us execute an open file: its mode and its file system's options. True where the kernel does not
/// tell (before Linux 5.8).
#[must_use]
pub fn may_execute(file: BorrowedFd<'_>) -> bool {
    accessat(file, c"", Access::EXEC_OK, AtFlags::EMPTY_PATH | AtFlags::EACCESS) != Err(rustix::io::Errno::ACCESS)
}

/// Opens a file to look at it, if it is one that can be executed.
#[must_use]
pub fn open_program(folder: BorrowedFd<'_>, path: &CStr) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    // To open anything else could have an effect.
    let meta = statat(folder, path, AtFlags::empty()).ok()?;
    let is_program = meta.st_mode & libc::S_IFMT == libc::S_IFREG && meta.st_mode & 0o111 != 0;
    if !is_program {
        return None;
    }
    openat(folder, path, flags, Mode::empty()).ok()
}
