//! Which CPU we run on, without a system call, on which we may, and the pause between two looks at shared memory.
//!
//! # Safety
//! `current()` reads the `cpu_id` field of this thread's `struct rseq` (rseq(2)), which glibc 2.35
//! and later registers at a fixed offset from the thread pointer and the kernel keeps up to date. Under another libc it
//! calls getcpu(2) of the kernel's vDSO, which takes some ten times as long; AArch64's has none.
#![allow(unsafe_code)]

use crate::errno::Result;
use crate::raw;
use core::ffi::{c_long, c_void};
use core::ptr;
use core::sync::atomic::{AtomicIsize, AtomicPtr, Ordering};

/// "Not known yet" and "this libc has no rseq" for [`OFFSET`].
const UNKNOWN: isize = isize::MIN;
const ABSENT: isize = isize::MIN + 1;

/// Offset of `struct rseq` from the thread pointer.
static OFFSET: AtomicIsize = AtomicIsize::new(UNKNOWN);

/// The vDSO's getcpu; null if there is none, or if rseq is there.
static GETCPU: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// A CPU number that no thread runs on.
pub const NO_CPU: u32 = u32::MAX;

/// Stands in the place of a CPU's number for a CPU of another host.
pub const ELSEWHERE: u32 = u32::MAX - 1;

#[cold]
fn find_offset() -> isize {
    let off = crate::symbol::any(c"__rseq_offset").cast::<isize>();
    let size = crate::symbol::any(c"__rseq_size").cast::<u32>();
    // SAFETY: the symbols are `const ptrdiff_t __rseq_offset` and
    // `const unsigned int __rseq_size` (glibc manual, "Restartable Sequences"). Size 0: not registered.
    let off = unsafe { if off.is_null() || size.is_null() || *size == 0 { ABSENT } else { *off } };
    if off == ABSENT {
        GETCPU.store(crate::symbol_tables::walk(c"__vdso_getcpu", false), Ordering::Relaxed);
    }
    // Relaxed: every thread computes the same values, and a thread that does not see the function yet knows no CPU.
    OFFSET.store(off, Ordering::Relaxed);
    off
}

/// The CPU this thread runs on, as the kernel's function says.
#[inline(never)]
fn by_getcpu() -> u32 {
    let function = GETCPU.load(Ordering::Relaxed);
    let mut cpu = NO_CPU;
    if !function.is_null() {
        // SAFETY: the vDSO's function of this signature (vdso(7)); what is null is not asked for.
        unsafe {
            let getcpu: unsafe extern "C" fn(*mut u32, *mut u32, *mut c_void) -> c_long =
                core::mem::transmute(function);
            getcpu(&raw mut cpu, ptr::null_mut(), ptr::null_mut());
        }
    }
    cpu
}

/// The CPU this thread runs on (it may have moved by the time the caller looks), or [`NO_CPU`].
#[inline]
pub fn current() -> u32 {
    let mut off = OFFSET.load(Ordering::Relaxed);
    if off == UNKNOWN {
        off = find_offset();
    }
    if off == ABSENT { by_getcpu() } else { rseq_cpu(off) }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn rseq_cpu(off: isize) -> u32 {
    let cpu: u32;
    // SAFETY: `fs:off` is this thread's registered struct rseq; cpu_id is its second u32.
    unsafe {
        core::arch::asm!("mov {0:e}, fs:[{1} + 4]", out(reg) cpu, in(reg) off, options(nostack, readonly, preserves_flags));
    }
    cpu
}

#[cfg(target_arch = "aarch64")]
#[inline(always)]
fn rseq_cpu(off: isize) -> u32 {
    let cpu: u32;
    // SAFETY: TPIDR_EL0 + off is this thread's registered struct rseq; cpu_id is its second u32.
    unsafe {
        core::arch::asm!("mrs {t}, tpidr_el0", "add {t}, {t}, {o}", "ldr {c:w}, [{t}, #4]",
            t = out(reg) _, o = in(reg) off, c = out(reg) cpu, options(nostack, readonly));
    }
    cpu
}

/// How many CPUs this thread may run on (`sched_getaffinity(2)`); 0 if there are more than 1024.
pub fn allowed() -> u32 {
    let mut mask = [0u64; 16];
    let p = mask.as_mut_ptr() as usize;
    match raw::call(libc::SYS_sched_getaffinity, [0, size_of_val(&mask), p, 0, 0, 0]) {
        Ok(_) => mask.iter().map(|w| w.count_ones()).sum(),
        Err(_) => 0,
    }
}

/// Has the calling thread run only on these CPUs from now on (`sched_setaffinity(2)`); the kernel passes over those
/// that do not exist.
pub fn run_on(cpus: &[u32]) -> Result<()> {
    // Room for as many CPUs as the kernel's configuration can have.
    let mut mask = [0u64; 8192 / 64];
    for cpu in cpus {
        if let Some(word) = mask.get_mut(*cpu as usize / 64) {
            *word |= 1 << (cpu % 64);
        }
    }
    let p = mask.as_ptr() as usize;
    raw::call(libc::SYS_sched_setaffinity, [0, size_of_val(&mask), p, 0, 0, 0]).map(drop)
}

/// Where libc keeps what belongs to the calling thread: its own block, and the table of its thread-local variables, to
/// which the first word or the second of that block points (glibc's `tcbhead_t`).
pub fn thread_memory() -> [usize; 2] {
    let (own, table): (usize, usize);
    #[cfg(target_arch = "x86_64")]
    // SAFETY: `fs:0` holds the thread pointer itself (the x86-64 ABI's thread-local storage), the word after it the
    // table.
    unsafe {
        core::arch::asm!("mov {0}, fs:[0]", "mov {1}, fs:[8]", out(reg) own, out(reg) table,
            options(nostack, readonly, preserves_flags));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: TPIDR_EL0 points to the thread's block, which begins with the table's address.
    unsafe {
        core::arch::asm!("mrs {0}, tpidr_el0", "ldr {1}, [{0}]", out(reg) own, out(reg) table,
            options(nostack, readonly, preserves_flags));
    }
    [own, table]
}

/// Tells the core that we are in a spin loop.
#[inline(always)]
pub fn pause() {
    core::hint::spin_loop();
}

/// Begins to bring a line into the cache that will be read soon.
#[inline(always)]
pub fn prefetch<T>(line: &T) {
    let p = core::ptr::from_ref(line).cast::<i8>();
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch is a hint: it changes nothing that a program can see.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(p);
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a prefetch is a hint: it changes nothing that a program can see.
    unsafe {
        core::arch::asm!("prfm pldl1keep, [{0}]", in(reg) p, options(nostack, readonly, preserves_flags));
    }
}

/// A cheap, always rising count of cycles or timer ticks; only differences within one thread mean
/// anything, and only roughly.
#[inline(always)]
pub fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: RDTSC exists on every x86-64 and is not disabled by Linux (PR_SET_TSC would only make
    // the *application* fault on its own use as well).
    unsafe {
        core::arch::x86_64::_rdtsc()
    }
    #[cfg(target_arch = "aarch64")]
    {
        let t: u64;
        // SAFETY: CNTVCT_EL0 is readable from user space on Linux.
        unsafe { core::arch::asm!("mrs {0}, cntvct_el0", out(reg) t, options(nostack, nomem)) };
        // The architected timer ticks far slower than a core: scale to the order of cycles.
        t.wrapping_mul(64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn the_kernels_function_says_the_same() {
        find_offset();
        GETCPU.store(crate::symbol_tables::walk(c"__vdso_getcpu", false), Ordering::Relaxed);
        // The thread may move in between.
        assert!((0..1000).any(|_| current() == by_getcpu()) && by_getcpu() != NO_CPU);
    }
}
