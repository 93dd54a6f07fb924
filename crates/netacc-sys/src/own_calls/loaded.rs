//! The code that is loaded into this process.
#![allow(unsafe_code)]

use super::{OwnCall, contains, find, is_linked};
use crate::symbol_tables::first_copy;
use crate::{libc_kind, reserved_fds, symbol, symbol_tables};
use alloc::format;
use core::ffi::{CStr, c_int, c_void};
use core::ptr;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags, Stat, fstat, open, readlinkat_raw, stat};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::param::page_size;

/// The first call that the program or a library of its own makes by itself.
///
/// Libraries in the system's folders are not examined, since they use libc or are libc; nor are libraries that are
/// loaded later.
#[must_use]
pub fn own_call() -> Option<OwnCall> {
    let mut search = Search { found: None, first: true };
    // SAFETY: the callback gets `search` back, and nobody else has it meanwhile.
    unsafe { symbol_tables::each_object(look, (&raw mut search).cast()) };
    search.found
}

/// Up to this size (bytes) the program's code is searched where it is. That costs a few page faults, less than the file
/// would, and so little memory that it does not matter.
const SMALL: usize = 256 << 10;

/// Searches code of the program's.
fn found_in_program(offset: u64, loaded: &[u8]) -> Option<OwnCall> {
    let file = if loaded.len() > SMALL { file_of_program() } else { None };
    let by_file = file.as_ref().and_then(|file| found_in_file(file, offset, loaded));
    if let Some(file) = file {
        reserved_fds::drop_raw(file);
    }
    by_file.unwrap_or_else(|| find(loaded))
}

fn file_of_program() -> Option<OwnedFd> {
    open(c"/proc/self/exe", OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY, Mode::empty()).ok()
}

/// Searches a part of a file's code, in a mapping that goes away afterwards: a large program would have all of its code
/// among its resident memory otherwise. None if it cannot be mapped.
///
/// Started by way of the linker (`ld.so PROGRAM`) the process has the linker's file, so the beginning is compared. That
/// file may also be too short: pages behind its end must not be touched.
fn found_in_file(file: &OwnedFd, offset: u64, loaded: &[u8]) -> Option<Option<OwnCall>> {
    let size = u64::try_from(fstat(file).ok()?.st_size).ok()?;
    if offset.checked_add(loaded.len() as u64)? > size {
        return None;
    }
    let into_page = usize::try_from(offset).ok()? % page_size();
    let length = loaded.len().checked_add(into_page)?;
    // Without MAP_POPULATE, which enters page after page: a fault enters sixteen at once, and costs a quarter of that.
    let (place, access) = (offset - into_page as u64, ProtFlags::READ);
    // SAFETY: a new mapping, whose place the kernel chooses.
    let start = unsafe { mmap(ptr::null_mut(), length, access, MapFlags::PRIVATE, file, place) }.ok()?;
    // SAFETY: just mapped; nobody writes to the file of a program that runs (ETXTBSY).
    let mapped = unsafe { core::slice::from_raw_parts(start.cast::<u8>(), length) };
    let code = mapped.get(into_page..).unwrap_or(&[]);
    let is_it = code.get(..64) == loaded.get(..64);
    let found = if is_it { find(code) } else { None };
    // SAFETY: ours, and not used any more.
    let _ = unsafe { munmap(start, length) };
    is_it.then_some(found)
}

/// Whether libuv is a part of the program, by itself or within another library.
#[must_use]
pub fn has_libuv() -> bool {
    let exported = !symbol::any(c"uv_version").is_null();
    // The environment variable that controls the use of io_uring, which every release with io_uring reads.
    exported || has_text(b"UV_USE_IO_URING\0")
}

/// Whether some part of the program has `text` among its constants.
fn has_text(text: &[u8]) -> bool {
    let mut search = Text { text, found: false };
    // SAFETY: the callback gets `search` back, and nobody else has it meanwhile.
    unsafe { symbol_tables::each_object(look_for, (&raw mut search).cast()) };
    search.found
}

struct Search {
    found: Option<OwnCall>,
    /// The program itself comes first.
    first: bool,
}

unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _size: usize, data: *mut c_void) -> c_int {
    // SAFETY: the linker gives a valid description of a loaded object, and `data` is the `Search` of `own_call`.
    let (info, search) = unsafe { (&*info, &mut *data.cast::<Search>()) };
    let is_program = core::mem::replace(&mut search.first, false);
    // SAFETY: the linker gives a valid description of a loaded object.
    if unsafe { is_ours(info) || !is_program && is_systems(info) } {
        return 0;
    }
    // SAFETY: the linker gives a valid description of a loaded object.
    unsafe {
        each_segment(info, |header, bytes| {
            if header.p_flags & libc::PF_X != 0 && search.found.is_none() {
                search.found = if is_program { found_in_program(header.p_offset, bytes) } else { find(bytes) };
            }
        });
    }
    // SAFETY: the linker gives a valid description of a loaded object.
    unsafe {
        each_segment(info, |header, bytes| {
            if header.p_flags & libc::PF_W == 0 && search.found.is_some() && is_linked(bytes) {
                search.found = None;
            }
        });
    }
    c_int::from(search.found.is_some())
}

struct Text<'a> {
    text: &'a [u8],
    found: bool,
}

unsafe extern "C" fn look_for(info: *mut libc::dl_phdr_info, _size: usize, data: *mut c_void) -> c_int {
    // SAFETY: the linker gives a valid description of a loaded object, and `data` is the `Text` of `has_text`.
    let (info, search) = unsafe { (&*info, &mut *data.cast::<Text<'_>>()) };
    // SAFETY: the linker gives a valid description of a loaded object.
    if unsafe { is_first_copy(info) } {
        return 0;
    }
    // SAFETY: the linker gives a valid description of a loaded object.
    unsafe {
        each_segment(info, |header, bytes| {
            // Constants may lie in pages that can be executed, where a linker does not keep them apart; not in those
            // that can be written.
            if header.p_flags & libc::PF_W == 0 && !search.found && !holds(bytes, search.text.as_ptr()) {
                search.found = contains(bytes, search.text);
            }
        });
    }
    c_int::from(search.found)
}

fn holds(bytes: &[u8], p: *const u8) -> bool {
    bytes.as_ptr_range().contains(&p)
}

/// Whether the object is one of the system's: its file is in the folders of the distribution's libraries, it is libc or its
/// loader, or it is the kernel's, which has no path.
///
/// # Safety
/// `info` is the linker's description of a loaded object.
unsafe fn is_systems(info: &libc::dl_phdr_info) -> bool {
    if info.dlpi_name.is_null() {
        return true;
    }
    // SAFETY: the linker's name of the object, which ends with NUL.
    let name = unsafe { CStr::from_ptr(info.dlpi_name) };
    let bytes = name.to_bytes();
    // SAFETY: the caller's guarantee.
    !bytes.contains(&b'/') || libc_kind::is_musls_loader(bytes) || is_file_of_system(name) || unsafe { is_libc(info) }
}

/// Whether the object is the libc of this process, or its loader, wherever their files are.
///
/// # Safety
/// `info` is the linker's description of a loaded object.
unsafe fn is_libc(info: &libc::dl_phdr_info) -> bool {
    let functions =
        [c"gnu_get_libc_version", c"__tls_get_addr"].map(|name| symbol::next(name).cast::<u8>().cast_const());
    let mut found = false;
    // SAFETY: the caller's guarantee.
    unsafe { each_segment(info, |_, bytes| found |= functions.iter().any(|f| !f.is_null() && holds(bytes, *f))) };
    found
}

/// The folders of the distribution's libraries: everything below a folder whose path begins so.
const FOLDERS: [&[u8]; 2] = [b"/lib", b"/usr/lib"];
/// Those of them in which a library is looked for that has come to the process by another path.
const HOLDERS: [&str; 6] = if cfg!(target_arch = "aarch64") {
    ["/usr/lib/aarch64-linux-gnu", "/lib/aarch64-linux-gnu", "/usr/lib64", "/lib64", "/usr/lib", "/lib"]
} else {
    ["/usr/lib/x86_64-linux-gnu", "/lib/x86_64-linux-gnu", "/usr/lib64", "/lib64", "/usr/lib", "/lib"]
};

/// Whether a file is in one of the system's folders. The linker has a name as it was found (`$ORIGIN/../lib`, a link, a
/// folder that is mounted twice), so where the name does not say it the file does: by its path in the kernel, or by device
/// and inode.
fn is_file_of_system(name: &CStr) -> bool {
    let begins = |path: &[u8]| FOLDERS.iter().any(|folder| path.starts_with(folder));
    if !contains(name.to_bytes(), b"/..") && begins(name.to_bytes()) {
        return true;
    }
    let Ok(file) = open(name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) else { return false };
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    // The beginning of a path that is longer tells as much.
    let mut path = [0; 64];
    let length = readlinkat_raw(CWD, link.as_str(), &mut path[..]).unwrap_or(0);
    let found = begins(path.get(..length).unwrap_or(&[])) || is_file_in_holders(&file, name.to_bytes());
    reserved_fds::drop_raw(file);
    found
}

/// Whether one of [`HOLDERS`] has `file` under the last part of its `name`.
fn is_file_in_holders(file: &OwnedFd, name: &[u8]) -> bool {
    let last = name.rsplit(|b| *b == b'/').next().unwrap_or(name);
    let (Ok(is), Ok(last)) = (fstat(file), core::str::from_utf8(last)) else { return false };
    let same = |there: Stat| (there.st_dev, there.st_ino) == (is.st_dev, is.st_ino);
    HOLDERS.iter().any(|folder| stat(format!("{folder}/{last}").as_str()).is_ok_and(same))
}

/// Whether the object holds this code: the preloaded library, or a program of the project's own that is linked with it; or
/// it is the library's first copy, of which this one has taken the place. Its system calls are our own work.
///
/// # Safety
/// `info` is the linker's description of a loaded object.
unsafe fn is_ours(info: &libc::dl_phdr_info) -> bool {
    // SAFETY: the caller guarantees that `info` is the linker's description of a loaded object.
    unsafe { has(info, (look as *const ()).cast()) || is_first_copy(info) }
}

/// Whether the object is the library's first copy, and this is another one. The linker knows only that one.
///
/// # Safety
/// `info` is the linker's description of a loaded object.
unsafe fn is_first_copy(info: &libc::dl_phdr_info) -> bool {
    // SAFETY: the caller guarantees that `info` is the linker's description of a loaded object.
    first_copy().is_some_and(|first| unsafe { has(info, (first as *const ()).cast()) })
}

/// Whether a byte is in an object's file.
///
/// # Safety
/// `info` is the linker's description of a loaded object.
unsafe fn has(info: &libc::dl_phdr_info, byte: *const u8) -> bool {
    let mut found = false;
    // SAFETY: the caller guarantees that `info` is the linker's description of a loaded object.
    unsafe { each_segment(info, |_, bytes| found |= holds(bytes, byte)) };
    found
}

/// Calls `f` with the header and bytes of each part of the file that is mapped and can be read.
///
/// # Safety
/// `info` is the linker's description of an object that stays loaded meanwhile.
unsafe fn each_segment(info: &libc::dl_phdr_info, mut f: impl FnMut(&libc::Elf64_Phdr, &[u8])) {
    if info.dlpi_phdr.is_null() {
        return;
    }
    // SAFETY: the program headers of an object that is loaded.
    let headers = unsafe { core::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    for h in headers.iter().filter(|h| h.p_type == libc::PT_LOAD && h.p_flags & libc::PF_R != 0) {
        let start = (info.dlpi_addr as usize).wrapping_add(h.p_vaddr as usize);
        // SAFETY: what a segment has of its file is mapped as long as the object is loaded. Code and constants are not
        // written by anybody; of a segment that is, only the place is looked at.
        let bytes = unsafe { core::slice::from_raw_parts(ptr::with_exposed_provenance(start), h.p_filesz as usize) };
        f(h, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_counts_and_not_its_name() {
        let libc = HOLDERS
            .iter()
            .map(|folder| format!("{folder}/libc.so.6"))
            .find(|path| stat(path.as_str()).is_ok())
            .unwrap();
        let link = std::env::temp_dir().join(format!("netacc-libc-{}", std::process::id()));
        let own = std::env::current_exe().unwrap();
        let is = |path: &str| is_file_of_system(&alloc::ffi::CString::new(path).unwrap());
        std::os::unix::fs::symlink(&libc, &link).unwrap();
        assert!(
            is(&libc) && is(&format!("/usr/bin/../..{libc}")) && is(&format!("/{libc}")) && is(link.to_str().unwrap())
        );
        std::fs::remove_file(&link).unwrap();
        assert!(!is(own.to_str().unwrap()) && !is(&format!("/usr/lib/../..{}", own.display())));
        assert!(!is("/usr/lib/../../no/such/file"));
    }

    #[test]
    fn texts_of_the_program_are_found() {
        static TEXT: [u8; 24] = *b"a constant of the tests.";
        // What is searched for does not count where it is itself.
        assert!(!has_text(b"\x01\x02 no such \x03\x04 constant \x05"));
        assert!(has_text(&{ TEXT }));
        assert!(contains(b"xxabcxx", b"abc") && !contains(b"xxabxcx", b"abc"));
    }
}
