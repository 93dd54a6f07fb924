//! A process without libc: a static program into which `netacc_run` has mapped the library before its first
//! instruction (docs/decisions/0027). What a libc tells elsewhere comes from what the kernel puts on the program's
//! stack: environment, auxiliary vector, and by that the loaded objects.
//!
//! # Safety
//! The stack of a new program has the layout of the System V ABI: the number of arguments, their addresses and a null,
//! those of the environment's strings and a null, the auxiliary vector. It is read at the start, when nobody has
//! written to it, and the strings later, as getenv(3) reads them.
//!
//! The words at the thread pointer that are written here are slots of the array `m.tls` of Go's runtime, of which it
//! uses the slot before them alone on Linux: [`enter`].
#![allow(unsafe_code)]

use core::ffi::{c_char, c_int, c_void};
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

/// The environment's array.
static ENVIRONMENT: AtomicPtr<*const c_char> = AtomicPtr::new(ptr::null_mut());
/// The auxiliary vector (getauxval(3)).
static AUXILIARY: AtomicPtr<[usize; 2]> = AtomicPtr::new(ptr::null_mut());
/// Where the library was mapped.
static LIBRARY: AtomicUsize = AtomicUsize::new(0);
/// Whether the process is such a one.
static BEGUN: AtomicBool = AtomicBool::new(false);

/// Notes the program's stack, as the kernel has made it, and where the library lies.
///
/// # Safety
/// Called once, before the program's first instruction, with the stack pointer that the program begins with and the
/// address of the library's ELF header.
pub unsafe fn begin(stack: *const usize, library: usize) {
    // SAFETY: the caller guarantees the stack of a new program.
    unsafe {
        let environment = stack.add(stack.read() + 2).cast::<*const c_char>();
        let mut end = environment;
        while !end.read().is_null() {
            end = end.add(1);
        }
        // Relaxed, here and below: the process has one thread.
        ENVIRONMENT.store(environment.cast_mut(), Ordering::Relaxed);
        AUXILIARY.store(end.add(1).cast_mut().cast(), Ordering::Relaxed);
    }
    LIBRARY.store(library, Ordering::Relaxed);
    BEGUN.store(true, Ordering::Relaxed);
}

/// Whether this process is such a program.
#[inline]
pub fn is_one() -> bool {
    BEGUN.load(Ordering::Relaxed)
}

/// The environment's array; null where the process is no such program.
pub(crate) fn environment() -> *const *const c_char {
    ENVIRONMENT.load(Ordering::Relaxed)
}

/// A value of the auxiliary vector, as getauxval(3) gives it: 0 where there is none.
pub extern "C" fn auxiliary(kind: usize) -> usize {
    let mut entry = AUXILIARY.load(Ordering::Relaxed).cast_const();
    if entry.is_null() {
        return 0;
    }
    loop {
        // SAFETY: the vector ends with an entry of the kind AT_NULL (0), which was not reached yet.
        let [its, value] = unsafe { entry.read() };
        match its {
            0 => return 0,
            its if its == kind => return value,
            // SAFETY: the entry was not the last one.
            _ => entry = unsafe { entry.add(1) },
        }
    }
}

/// What dl_iterate_phdr(3) does, for the program, the library and the kernel's object.
///
/// # Safety
/// `visit` gets `data` and may do with it what it does.
pub(crate) unsafe fn each_object(
    visit: unsafe extern "C" fn(*mut libc::dl_phdr_info, usize, *mut c_void) -> c_int,
    data: *mut c_void,
) -> c_int {
    let own = own_headers();
    let others = [LIBRARY.load(Ordering::Relaxed), auxiliary(libc::AT_SYSINFO_EHDR as usize)];
    for (headers, count, base) in [own].into_iter().chain(others.map(headers_at)).flatten() {
        // SAFETY: a structure of numbers and addresses, for which zero is a value.
        let mut info: libc::dl_phdr_info = unsafe { core::mem::zeroed() };
        info.dlpi_phdr = ptr::with_exposed_provenance(headers);
        info.dlpi_phnum = count as u16;
        info.dlpi_addr = base as u64;
        info.dlpi_name = c"".as_ptr();
        // SAFETY: the caller's function, with a description that it may use meanwhile.
        let done = unsafe { visit(&raw mut info, size_of_val(&info), data) };
        if done != 0 {
            return done;
        }
    }
    0
}

/// The program's own headers, as [`headers_at`] gives them. `None` if the kernel has not mapped them, or if they are wrong.
fn own_headers() -> Option<(usize, usize, usize)> {
    let kind = |kind: libc::c_ulong| auxiliary(kind as usize);
    let (place, count, entry) = (kind(libc::AT_PHDR), kind(libc::AT_PHNUM), kind(libc::AT_ENTRY));
    if place == 0 {
        return None;
    }
    // SAFETY: the kernel has mapped the program with its headers there.
    let headers = unsafe { core::slice::from_raw_parts(ptr::with_exposed_provenance(place), count) };
    base_of(headers, place, entry).map(|base| (place, count, base))
}

/// What the addresses in a program's headers count from: nothing, or the headers say where they themselves lie. The
/// kernel does not read what they say of themselves, so that it may be wrong; the headers or the first instruction lie in
/// no loaded segment then.
fn base_of(headers: &[libc::Elf64_Phdr], place: usize, entry: usize) -> Option<usize> {
    let itself = headers.iter().find(|h| h.p_type == libc::PT_PHDR);
    let relative = itself.map(|h| place.wrapping_sub(h.p_vaddr as usize));
    let is_loaded = |base: usize, address: usize| {
        let into = |h: &libc::Elf64_Phdr| address.wrapping_sub(base).wrapping_sub(h.p_vaddr as usize);
        headers.iter().any(|h| h.p_type == libc::PT_LOAD && into(h) < h.p_filesz as usize)
    };
    [0].into_iter().chain(relative).find(|base| is_loaded(*base, place) && is_loaded(*base, entry))
}

/// The program headers of the shared object at `base`, how many they are, and what its addresses count from.
fn headers_at(base: usize) -> Option<(usize, usize, usize)> {
    // SAFETY: 0, or the address of the header of an object that is mapped and stays so.
    let header = unsafe { ptr::with_exposed_provenance::<libc::Elf64_Ehdr>(base).as_ref() }?;
    let headers = base + header.e_phoff as usize;
    // SAFETY: the program headers of a mapped object.
    let first = unsafe {
        let all = core::slice::from_raw_parts(
            ptr::with_exposed_provenance::<libc::Elf64_Phdr>(headers),
            header.e_phnum.into(),
        );
        all.iter().find(|h| h.p_type == libc::PT_LOAD)?
    };
    Some((headers, header.e_phnum.into(), base.wrapping_sub(first.p_vaddr as usize)))
}

#[cfg(target_arch = "x86_64")]
pub use threads::enter;

#[cfg(target_arch = "x86_64")]
mod threads {
    use core::ptr;
    use core::sync::atomic::{AtomicU32, Ordering};

    /// The program's threads have not called yet.
    const UNKNOWN: u32 = 0;
    /// They have thread pointers of Go's.
    const GOS: u32 = 1;
    /// They have thread pointers of a libc that is part of the program.
    const LIBCS: u32 = 2;
    static THREADS: AtomicU32 = AtomicU32::new(UNKNOWN);

    /// The first word at the thread pointer.
    #[inline(always)]
    fn first_word() -> usize {
        let word: usize;
        // SAFETY: each thread that calls has a thread pointer, to Go's `m.tls` or to a libc's block, which can be read.
        unsafe { core::arch::asm!("mov {}, fs:[0]", out(reg) word, options(nostack, readonly, preserves_flags)) };
        word
    }

    /// Makes the calling thread one on which the library's code can run, and returns whether it is.
    ///
    /// Where the ABI has the thread pointer's own address, by which our code knows its thread, Go's runtime has a slot that
    /// it does not use: it is 0 in a thread that has not called yet, and the address is written there. The next slot is the
    /// thread's errno. A thread that has the address already has a libc, which is part of the program and of which the
    /// library knows nothing: then the first call of all tells so, and no thread may run our code.
    #[inline]
    pub fn enter() -> bool {
        // Relaxed: all threads of a program are made in the same way, so that each comes to the same value.
        THREADS.load(Ordering::Relaxed) == GOS && first_word() != 0 || enter_first()
    }

    #[cold]
    fn enter_first() -> bool {
        const GET_FS: usize = 0x1003;
        let mut pointer = 0usize;
        // SAFETY: the kernel writes one word, to a variable that outlives the call.
        let done =
            unsafe { crate::raw::syscall6(libc::SYS_arch_prctl, [GET_FS, (&raw mut pointer).addr(), 0, 0, 0, 0]) };
        // A runtime that ends the program before it has set the pointer has none.
        if done != 0 || pointer == 0 {
            return false;
        }
        let is_fresh = first_word() == 0;
        let kind = if is_fresh { GOS } else { LIBCS };
        let _ = THREADS.compare_exchange(UNKNOWN, kind, Ordering::Relaxed, Ordering::Relaxed);
        if THREADS.load(Ordering::Relaxed) != GOS {
            return false;
        }
        if !is_fresh {
            return true;
        }
        // SAFETY: the slots of `m.tls` behind the first one, which belong to this thread and which nobody else uses.
        unsafe { ptr::with_exposed_provenance_mut::<[usize; 2]>(pointer).write([pointer, 0]) };
        true
    }
}

/// Where the calling thread's errno lies, in such a program.
pub(crate) fn errno_place() -> Option<*mut c_int> {
    is_one().then(|| ptr::with_exposed_provenance_mut(crate::thread_state::thread_pointer() + size_of::<usize>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_libc_is_none() {
        assert!(!is_one() && environment().is_null() && auxiliary(libc::AT_PAGESZ as usize) == 0);
        assert!(errno_place().is_none());
    }

    #[test]
    fn objects_are_found_by_their_headers() {
        // SAFETY: asked about a value.
        let kernels = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) } as usize;
        let (headers, count, base) = headers_at(kernels).unwrap();
        assert!(headers > kernels && count > 0 && base == kernels);
        assert!(headers_at(0).is_none());
    }

    #[test]
    fn headers_that_say_something_wrong_of_themselves() {
        let header = |p_type, p_vaddr, p_filesz| libc::Elf64_Phdr {
            p_type,
            p_vaddr,
            p_filesz,
            p_flags: 0,
            p_offset: 0,
            p_paddr: 0,
            p_memsz: p_filesz,
            p_align: 4096,
        };
        let (code, more) = (header(libc::PT_LOAD, 0x40_0000, 0x5000), header(libc::PT_LOAD, 0x40_6000, 0x1000));
        let itself = |place| header(libc::PT_PHDR, place, 0x150);
        assert_eq!(base_of(&[itself(0x40_0040), code, more], 0x40_0040, 0x40_3000), Some(0));
        assert_eq!(base_of(&[itself(0x40_0040), code, more], 0x7f40_0040, 0x7f40_6fff), Some(0x7f00_0000));
        // Absolute addresses, whatever the headers say.
        assert_eq!(base_of(&[code, more], 0x40_0040, 0x40_3000), Some(0));
        assert_eq!(base_of(&[itself(0x40_1040), code, more], 0x40_0040, 0x40_3000), Some(0));
        assert_eq!(base_of(&[itself(0x67 << 48), code, more], 0x40_0040, 0x40_3000), Some(0));
        assert_eq!(base_of(&[code, more], 0x7f40_0040, 0x7f40_6000), None);
        assert_eq!(base_of(&[itself(0x40_0040), code], 0x40_0040, 0x40_6000), None);
        assert_eq!(base_of(&[], 0x40_0040, 0x40_6000), None);
    }
}
