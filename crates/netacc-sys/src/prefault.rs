//! The pages of our own code.
#![allow(unsafe_code)]

use core::ffi::{c_int, c_void};
use core::ptr;
use rustix::mm::{Advice, madvise};
use rustix::param::page_size;

/// Has the kernel enter all pages of our code into the page tables at once (`MADV_POPULATE_READ`, Linux 5.14), and not
/// one window of 64 KiB after the other as calls run into them: a first connect runs into seven of them, and each takes
/// as long as several system calls. Returns whether our code was found.
pub fn populate() -> bool {
    // SAFETY: the callback needs no data.
    unsafe { crate::weak::each_object(prefault_object, ptr::null_mut()) != 0 }
}

unsafe extern "C" fn prefault_object(info: *mut libc::dl_phdr_info, _size: usize, _data: *mut c_void) -> c_int {
    // SAFETY: the linker gives a valid description of a loaded object.
    let info = unsafe { &*info };
    if info.dlpi_phdr.is_null() {
        return 0;
    }
    // SAFETY: the program headers of an object that is loaded.
    let headers = unsafe { core::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let here = prefault_object as *const () as usize;
    for h in headers.iter().filter(|h| h.p_type == libc::PT_LOAD && h.p_flags & libc::PF_X != 0) {
        let start = (info.dlpi_addr as usize).wrapping_add(h.p_vaddr as usize);
        let end = start.saturating_add(h.p_memsz as usize);
        if (start..end).contains(&here) {
            let first = start & !(page_size() - 1);
            // SAFETY: a mapping of ours, whose pages are only made present. An older kernel says that it does not know
            // how.
            let _ = unsafe { madvise(ptr::without_provenance_mut(first), end - first, Advice::LinuxPopulateRead) };
            return 1;
        }
    }
    0
}

#[cfg(test)]
mod tests {
    #[test]
    fn our_code_is_found() {
        assert!(super::populate());
    }
}
