//! The next definition of a symbol, found without dlsym(3).
//!
//! Before glibc 2.34 dlsym allocates memory at its first use in a thread. A hook that looks its libc function up may
//! have been called by an allocator that is just being set up (jemalloc reads files then), which would wait for itself
//! for ever. So with such a glibc the tables of the loaded objects are read here: no allocation, no lock but the
//! linker's own for its list.

#![allow(unsafe_code)]

use core::ffi::{CStr, c_int, c_void};
use core::ptr;
use core::sync::atomic::{AtomicU8, Ordering};

/// Whether dlsym allocates: 0 not known yet, 1 no, 2 yes.
static ALLOCATES: AtomicU8 = AtomicU8::new(0);

/// What `dlsym(RTLD_NEXT, name)` gives to the object that this code is part of; null if there is no such symbol.
pub fn next(name: &CStr) -> *mut c_void {
    if dlsym_allocates() {
        let found = walk(name);
        if !found.is_null() {
            return found;
        }
    }
    // SAFETY: a NUL-terminated name.
    unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }
}

/// The definition of a symbol in a library, if the library is loaded.
pub fn loaded(library: &CStr, name: &CStr) -> *mut c_void {
    // SAFETY: NUL-terminated names; the library is only found, not loaded. It stays held, since what was found in it is
    // used.
    unsafe {
        let handle = libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if handle.is_null() { ptr::null_mut() } else { libc::dlsym(handle, name.as_ptr()) }
    }
}

fn dlsym_allocates() -> bool {
    match ALLOCATES.load(Ordering::Relaxed) {
        0 => {
            // SAFETY: it returns a constant string.
            let version = unsafe { CStr::from_ptr(libc::gnu_get_libc_version()) };
            let old = is_before_2_34(version.to_bytes());
            ALLOCATES.store(1 + u8::from(old), Ordering::Relaxed);
            old
        }
        known => known == 2,
    }
}

fn is_before_2_34(version: &[u8]) -> bool {
    let number = |text: Option<&[u8]>| core::str::from_utf8(text?).ok()?.parse::<u32>().ok();
    let mut parts = version.split(|b| *b == b'.');
    match (number(parts.next()), number(parts.next())) {
        (Some(2), Some(minor)) => minor < 34,
        _ => false,
    }
}

struct Search<'a> {
    name: &'a CStr,
    hash: u32,
    /// Set once the object that we are in has been seen: those after it count.
    past_us: bool,
    found: *mut c_void,
}

/// The first default definition of a function in the objects that were loaded after ours.
fn walk(name: &CStr) -> *mut c_void {
    let mut search = Search { name, hash: gnu_hash(name.to_bytes()), past_us: false, found: ptr::null_mut() };
    // SAFETY: the callback gets `search` back, and nobody else has it meanwhile.
    unsafe { libc::dl_iterate_phdr(Some(visit_object), (&raw mut search).cast()) };
    search.found
}

unsafe extern "C" fn visit_object(info: *mut libc::dl_phdr_info, _size: usize, data: *mut c_void) -> c_int {
    // SAFETY: the linker gives a valid description of a loaded object, and `data` is the `Search` of `walk`.
    let (info, search) = unsafe { (&*info, &mut *data.cast::<Search<'_>>()) };
    if info.dlpi_phdr.is_null() {
        return 0;
    }
    // SAFETY: the program headers of an object that is loaded.
    let headers = unsafe { core::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let base = info.dlpi_addr as usize;
    if !search.past_us {
        let here = (&raw const ALLOCATES).addr();
        search.past_us = headers.iter().any(|h| {
            let start = base.wrapping_add(h.p_vaddr as usize);
            h.p_type == libc::PT_LOAD && (start..start.saturating_add(h.p_memsz as usize)).contains(&here)
        });
        return 0;
    }
    let Some(dynamic) = headers.iter().find(|h| h.p_type == libc::PT_DYNAMIC) else { return 0 };
    // SAFETY: the dynamic section of a loaded object, which stays loaded while the linker iterates.
    search.found = unsafe {
        Tables::read(base, base.wrapping_add(dynamic.p_vaddr as usize)).map_or(ptr::null_mut(), |t| t.find(search))
    };
    c_int::from(!search.found.is_null())
}

#[cfg(target_pointer_width = "64")]
type Symbol = libc::Elf64_Sym;

const DT_NULL: usize = 0;
const DT_STRTAB: usize = 5;
const DT_SYMTAB: usize = 6;
const DT_GNU_HASH: usize = 0x6fff_fef5;
const DT_VERSYM: usize = 0x6fff_fff0;
/// Marks a version that is there for programs that were linked long ago, not the default (`@`, not `@@`).
const HIDDEN: u16 = 0x8000;
const STT_FUNC: u8 = 2;

/// Where an object has its tables of symbols.
struct Tables {
    base: usize,
    strings: *const u8,
    symbols: *const Symbol,
    hash: *const u32,
    versions: *const u16,
}

impl Tables {
    /// # Safety
    ///
    /// `dynamic` is the address of the dynamic section of an object that is loaded at `base`.
    unsafe fn read(base: usize, dynamic: usize) -> Option<Tables> {
        // The linker has made addresses of the offsets, except in the kernel's object, which it may not write to.
        let at = |value: usize| if value < base { base.wrapping_add(value) } else { value };
        let mut t =
            Tables { base, strings: ptr::null(), symbols: ptr::null(), hash: ptr::null(), versions: ptr::null() };
        let mut entry = ptr::with_exposed_provenance::<[usize; 2]>(dynamic);
        loop {
            // SAFETY: the section is a list of pairs that ends with DT_NULL.
            let [tag, value] = unsafe { entry.read() };
            match tag {
                DT_NULL => break,
                DT_STRTAB => t.strings = ptr::with_exposed_provenance(at(value)),
                DT_SYMTAB => t.symbols = ptr::with_exposed_provenance(at(value)),
                DT_GNU_HASH => t.hash = ptr::with_exposed_provenance(at(value)),
                DT_VERSYM => t.versions = ptr::with_exposed_provenance(at(value)),
                _ => {}
            }
            // SAFETY: the entry was not the last one.
            entry = unsafe { entry.add(1) };
        }
        let whole = !(t.strings.is_null() || t.symbols.is_null() || t.hash.is_null());
        whole.then_some(t)
    }

    /// The function, found by the object's table of GNU hashes: a filter of 64-bit words, buckets, chains.
    ///
    /// # Safety
    ///
    /// The tables are those of a loaded object.
    unsafe fn find(&self, search: &Search<'_>) -> *mut c_void {
        // SAFETY: the layout of DT_GNU_HASH; a bucket leads to symbols of the table, and a chain ends with an odd hash.
        unsafe {
            let [buckets, first, words] = self.hash.cast::<[u32; 3]>().read();
            if buckets == 0 {
                return ptr::null_mut();
            }
            let table = self.hash.add(4 + 2 * words as usize);
            let chains = table.add(buckets as usize);
            let mut index = table.add((search.hash % buckets) as usize).read();
            if index < first {
                return ptr::null_mut();
            }
            loop {
                let hash = chains.add((index - first) as usize).read();
                if hash | 1 == search.hash | 1
                    && let Some(found) = self.definition(index as usize, search.name)
                {
                    return found;
                }
                if hash & 1 == 1 {
                    return ptr::null_mut();
                }
                index += 1;
            }
        }
    }

    /// The address of symbol `index`, if it is the default definition of a function of this name.
    ///
    /// # Safety
    ///
    /// The tables are those of a loaded object and have that many symbols.
    unsafe fn definition(&self, index: usize, name: &CStr) -> Option<*mut c_void> {
        // SAFETY: the caller's promise; names are NUL-terminated.
        unsafe {
            let symbol = self.symbols.add(index).read();
            let hidden = !self.versions.is_null() && self.versions.add(index).read() & HIDDEN != 0;
            if hidden || symbol.st_shndx == 0 || symbol.st_info & 15 != STT_FUNC {
                return None;
            }
            let its = CStr::from_ptr(self.strings.add(symbol.st_name as usize).cast());
            (its == name).then(|| ptr::with_exposed_provenance_mut(self.base.wrapping_add(symbol.st_value as usize)))
        }
    }
}

fn gnu_hash(name: &[u8]) -> u32 {
    name.iter().fold(5381, |h: u32, b| h.wrapping_mul(33).wrapping_add((*b).into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_walk_finds_what_dlsym_finds() {
        for name in
            [c"read", c"write", c"close", c"socket", c"fcntl", c"poll", c"epoll_wait", c"fork", c"fclose", c"recvmmsg"]
        {
            // SAFETY: a NUL-terminated name.
            let expected = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
            assert!(!expected.is_null());
            assert_eq!(walk(name), expected, "{name:?}");
        }
        assert!(walk(c"netacc_no_such_function").is_null());
        assert_eq!(walk(c"errno"), ptr::null_mut(), "a variable");
    }

    #[test]
    fn versions() {
        for (version, old) in
            [("2.17", true), ("2.33", true), ("2.33.9000", true), ("2.34", false), ("3.1", false), ("", false)]
        {
            assert_eq!(is_before_2_34(version.as_bytes()), old, "{version}");
        }
    }
}
