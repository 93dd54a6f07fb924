//! The tables of symbols of the loaded objects (elf(5)).

#![allow(unsafe_code)]

use crate::{static_program, weak};
use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

/// A search for the next definition, by a copy of the library that the linker knows.
type Searcher = extern "C" fn(*const c_char) -> *mut c_void;

/// The [`Searcher`] of the library's first copy, in a copy that took its place: the linker knows that one alone.
static FIRST: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// Has symbols searched for by the library's first copy.
///
/// # Safety
/// `first` is [`crate::symbol::searcher`] of another copy of the library, which stays mapped.
pub unsafe fn search_from(first: *mut c_void) {
    FIRST.store(first, Ordering::Relaxed);
}

/// The searcher of the library's first copy; `None`: this is the first copy.
pub(crate) fn first_copy() -> Option<Searcher> {
    // Relaxed: stored before the copy's first call.
    let first = FIRST.load(Ordering::Relaxed);
    // SAFETY: `search_from` guarantees the function.
    (!first.is_null()).then(|| unsafe { core::mem::transmute::<*mut c_void, Searcher>(first) })
}

/// The next definition after ours, found without dlsym(3) in the first copy, so that which libc the process has need not
/// be known yet.
pub(crate) fn next(name: &CStr) -> *mut c_void {
    first_copy().map_or_else(|| walk(name, true), |first| first(name.as_ptr()))
}

type Visit = unsafe extern "C" fn(*mut libc::dl_phdr_info, usize, *mut c_void) -> c_int;

/// libc's dl_iterate_phdr(3), once it is known.
static ITERATE: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// Calls `visit` for the loaded objects until it returns something else than 0, as dl_iterate_phdr(3) does. Without
/// that function there are none.
///
/// # Safety
/// `visit` gets `data` and may do with it what it does.
pub(crate) unsafe fn each_object(visit: Visit, data: *mut c_void) -> c_int {
    // Relaxed: every thread finds the same address, and the code there needs no ordering.
    let mut function = ITERATE.load(Ordering::Relaxed);
    if function.is_null() {
        function = of_libc(c"dl_iterate_phdr").unwrap_or_else(weak::dl_iterate_phdr);
        ITERATE.store(function, Ordering::Relaxed);
    }
    if function.is_null() {
        if static_program::is_one() {
            // SAFETY: the caller guarantees the contract.
            return unsafe { static_program::each_object(visit, data) };
        }
        return 0;
    }
    // SAFETY: libc's function of this signature, and the caller guarantees its contract.
    unsafe {
        let function: unsafe extern "C" fn(Visit, *mut c_void) -> c_int = core::mem::transmute(function);
        function(visit, data)
    }
}

/// The beginning of a `struct r_debug` (link.h).
#[repr(C)]
struct LinkersList {
    version: c_int,
    first: *const LinkMap,
}

/// The beginning of a `struct link_map` (link.h).
#[repr(C)]
struct LinkMap {
    base: usize,
    _name: *const c_char,
    dynamic: usize,
    next: *const LinkMap,
}

/// Returns libc's own definition of a function. The program or another preloaded library may define the same name, and look
/// the next definition up by dlsym(3), which is ours and would come here again. So the linker's list is read
/// without a call. The objects that it begins with, up to libc, are those that the program was loaded with, which stay. libc
/// is the one of them that defines where a thread's errno lies.
pub(crate) fn of_libc(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: 0 or the linker's own structure, which it has filled in before it relocated the program.
    let list = unsafe { ptr::with_exposed_provenance::<LinkersList>(weak::linkers_list()).as_ref() }?;
    if list.version == 0 {
        return None;
    }
    let mut object = list.first;
    // SAFETY: null or the linker's description of an object that stays loaded, as does what its dynamic section leads to.
    while let Some(its) = unsafe { object.as_ref() } {
        // SAFETY: as above.
        let tables = if its.dynamic == 0 { None } else { unsafe { Tables::read(its.base, its.dynamic) } };
        // SAFETY: as above.
        let found =
            |name| tables.as_ref().map_or(ptr::null_mut(), |t| unsafe { t.find(&Search::new(name, Objects::All)) });
        if !found(c"__errno_location").is_null() {
            let function = found(name);
            if !function.is_null() {
                return Some(function);
            }
        }
        object = its.next;
    }
    None
}

struct Search<'a> {
    name: &'a CStr,
    hash: u32,
    objects: Objects,
    found: *mut c_void,
}

impl Search<'_> {
    fn new(name: &CStr, objects: Objects) -> Search<'_> {
        Search { name, hash: gnu_hash(name.to_bytes()), objects, found: ptr::null_mut() }
    }

    fn run(mut self) -> *mut c_void {
        // SAFETY: the callback gets the search back, and nobody else has it meanwhile.
        unsafe { each_object(visit_object, (&raw mut self).cast()) };
        self.found
    }
}

/// The objects in which a symbol is searched for.
#[derive(Clone, Copy)]
enum Objects {
    All,
    /// Those after the one that has this address.
    After(usize),
    /// The one that has this address.
    With(usize),
}

/// The first default definition in the loaded objects, or in those `after_ours`.
pub(crate) fn walk(name: &CStr, after_ours: bool) -> *mut c_void {
    // No loader has read the tables of a static program, which may be wrong.
    let all = !after_ours && !static_program::is_one();
    Search::new(name, if all { Objects::All } else { Objects::After((visit_object as *const ()).addr()) }).run()
}

/// The first default definition in the objects after the one that has this address; null if there is none.
pub(crate) fn after(address: usize, name: &CStr) -> *mut c_void {
    Search::new(name, Objects::After(address)).run()
}

/// The default definition in the loaded object that has this address; null if there is none.
pub(crate) fn in_object(address: usize, name: &CStr) -> *mut c_void {
    Search::new(name, Objects::With(address)).run()
}

unsafe extern "C" fn visit_object(info: *mut libc::dl_phdr_info, _size: usize, data: *mut c_void) -> c_int {
    // SAFETY: the linker gives a valid description of a loaded object, and `data` is the `Search` of `Search::run`.
    let (info, search) = unsafe { (&*info, &mut *data.cast::<Search<'_>>()) };
    if info.dlpi_phdr.is_null() {
        return 0;
    }
    // SAFETY: the program headers of an object that is loaded.
    let headers = unsafe { core::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let base = info.dlpi_addr as usize;
    let has = |address: usize| {
        headers.iter().any(|h| {
            let start = base.wrapping_add(h.p_vaddr as usize);
            h.p_type == libc::PT_LOAD && (start..start.saturating_add(h.p_memsz as usize)).contains(&address)
        })
    };
    match search.objects {
        Objects::All => {}
        Objects::After(address) => {
            if has(address) {
                search.objects = Objects::All;
            }
            return 0;
        }
        Objects::With(address) if has(address) => {}
        Objects::With(_) => return 0,
    }
    let Some(dynamic) = headers.iter().find(|h| h.p_type == libc::PT_DYNAMIC) else { return 0 };
    // SAFETY: the dynamic section of a loaded object, which stays loaded while the linker iterates.
    search.found = unsafe {
        Tables::read(base, base.wrapping_add(dynamic.p_vaddr as usize)).map_or(ptr::null_mut(), |t| t.find(search))
    };
    c_int::from(!search.found.is_null())
}

/// The default definition of a symbol in an object; null if there is none.
///
/// # Safety
///
/// `dynamic` is the address of the dynamic section of an object that is loaded at `base`.
pub(crate) unsafe fn definition_in(base: usize, dynamic: usize, name: &CStr) -> *mut c_void {
    let search = Search::new(name, Objects::All);
    // SAFETY: the caller guarantees a loaded object.
    unsafe { Tables::read(base, dynamic).map_or(ptr::null_mut(), |tables| tables.find(&search)) }
}

#[cfg(target_pointer_width = "64")]
type Symbol = libc::Elf64_Sym;

const DT_NULL: usize = 0;
const DT_HASH: usize = 4;
const DT_STRTAB: usize = 5;
const DT_SYMTAB: usize = 6;
const DT_GNU_HASH: usize = 0x6fff_fef5;
const DT_VERSYM: usize = 0x6fff_fff0;
/// Marks a version that is there for programs that were linked long ago, not the default (`@`, not `@@`).
const HIDDEN: u16 = 0x8000;
const STT_NOTYPE: u8 = 0;
const STT_OBJECT: u8 = 1;
const STT_FUNC: u8 = 2;
/// A function whose address another function chooses for the CPU.
const STT_GNU_IFUNC: u8 = 10;

/// Where an object has its tables of symbols.
struct Tables {
    base: usize,
    strings: *const u8,
    symbols: *const Symbol,
    /// The table of GNU hashes, or null.
    hash: *const u32,
    /// The older table of hashes, or null.
    old_hash: *const u32,
    versions: *const u16,
}

impl Tables {
    /// # Safety
    ///
    /// `dynamic` is the address of the dynamic section of an object that is loaded at `base`.
    unsafe fn read(base: usize, dynamic: usize) -> Option<Tables> {
        // The linker has made addresses of the offsets, except in the kernel's object, which it may not write to.
        let at = |value: usize| if value < base { base.wrapping_add(value) } else { value };
        let mut t = Tables {
            base,
            strings: ptr::null(),
            symbols: ptr::null(),
            hash: ptr::null(),
            old_hash: ptr::null(),
            versions: ptr::null(),
        };
        let mut entry = ptr::with_exposed_provenance::<[usize; 2]>(dynamic);
        loop {
            // SAFETY: the section is a list of pairs that ends with DT_NULL.
            let [tag, value] = unsafe { entry.read() };
            match tag {
                DT_NULL => break,
                DT_HASH => t.old_hash = ptr::with_exposed_provenance(at(value)),
                DT_STRTAB => t.strings = ptr::with_exposed_provenance(at(value)),
                DT_SYMTAB => t.symbols = ptr::with_exposed_provenance(at(value)),
                DT_GNU_HASH => t.hash = ptr::with_exposed_provenance(at(value)),
                DT_VERSYM => t.versions = ptr::with_exposed_provenance(at(value)),
                _ => {}
            }
            // SAFETY: the entry was not the last one.
            entry = unsafe { entry.add(1) };
        }
        let whole = !(t.strings.is_null() || t.symbols.is_null() || t.hash.is_null() && t.old_hash.is_null());
        whole.then_some(t)
    }

    /// The symbol's address, found by the object's table of GNU hashes: a filter of 64-bit words, buckets, chains. An
    /// object without that table has the older one, which is looked through: it is rare.
    ///
    /// # Safety
    ///
    /// The tables are those of a loaded object.
    unsafe fn find(&self, search: &Search<'_>) -> *mut c_void {
        if self.hash.is_null() {
            // SAFETY: the layout of DT_HASH, whose second word is the number of symbols.
            return unsafe {
                let [_, count] = self.old_hash.cast::<[u32; 2]>().read();
                (1..count as usize).find_map(|index| self.definition(index, search.name)).unwrap_or(ptr::null_mut())
            };
        }
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

    /// The address of symbol `index`, if it is the default definition of a function or variable of this name.
    ///
    /// # Safety
    ///
    /// The tables are those of a loaded object and have that many symbols.
    unsafe fn definition(&self, index: usize, name: &CStr) -> Option<*mut c_void> {
        // SAFETY: the caller guarantees tables of a loaded object that have symbol `index`; names are NUL-terminated.
        unsafe {
            let symbol = self.symbols.add(index).read();
            let hidden = !self.versions.is_null() && self.versions.add(index).read() & HIDDEN != 0;
            let kind = symbol.st_info & 15;
            if hidden || symbol.st_shndx == 0 || ![STT_NOTYPE, STT_OBJECT, STT_FUNC, STT_GNU_IFUNC].contains(&kind) {
                return None;
            }
            let its = CStr::from_ptr(self.strings.add(symbol.st_name as usize).cast());
            if its != name {
                return None;
            }
            let address = ptr::with_exposed_provenance_mut(self.base.wrapping_add(symbol.st_value as usize));
            Some(if kind == STT_GNU_IFUNC { chosen(address) } else { address })
        }
    }
}

/// What the function that chooses for the CPU gives. It is called on x86-64 alone, where it takes nothing.
///
/// # Safety
///
/// `chooser` is the address of an indirect function of a loaded object, which has been relocated.
unsafe fn chosen(chooser: *mut c_void) -> *mut c_void {
    if cfg!(not(target_arch = "x86_64")) {
        return ptr::null_mut();
    }
    // SAFETY: the caller guarantees the address of a relocated indirect function of a loaded object.
    unsafe {
        let chooser: unsafe extern "C" fn() -> *mut c_void = core::mem::transmute(chooser);
        chooser()
    }
}

fn gnu_hash(name: &[u8]) -> u32 {
    name.iter().fold(5381, |h: u32, b| h.wrapping_mul(33).wrapping_add((*b).into()))
}
