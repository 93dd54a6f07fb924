//! What is done with a call of a Go program, on a stack of ours.

use super::classes::{CHILDS, CLASSES};
use crate::exec::Args;
use crate::process;
use crate::static_children::Execution;
use core::ffi::{c_char, c_int, c_long, c_void};
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use netacc_core::conn::control;
use netacc_core::fd::{closing, create, table};
use netacc_core::go;
use netacc_sys::{libc_kind, lock, raw, static_program, weak};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
use rustix::param::page_size;

/// A call, as `entry` writes it on the stack.
#[repr(C)]
pub struct Call {
    /// The kernel's answer to the call, a negative errno on failure.
    answer: isize,
    number: usize,
    arguments: [usize; 6],
}

/// What is to be done with a call.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is done: [`Call`] has the answer.
    Done = 0,
    /// The goroutine's own code makes it.
    Plain = 1,
}

/// The number of this process, in a page that a child with memory of its own finds zeroed. A child that shares the
/// memory, and is the child of Go's vfork, finds its parent's.
static PID: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());

/// Thread pointer of the process's first thread.
static FIRST_THREAD: AtomicUsize = AtomicUsize::new(0);

/// Thread pointers of threads that wait in vfork for a child which has made calls. Such a child has its parent's thread
/// pointer. Go lets a few threads fork at once at most; where they are more, each call asks for its process.
static PARENTS: [AtomicUsize; 16] = [const { AtomicUsize::new(0) }; 16];
/// How many of [`PARENTS`] are in use, and [`MANY`].
static PARENT_COUNT: AtomicU32 = AtomicU32::new(0);
const MANY: u32 = 1 << 16;

/// Makes the page of the process's number. False if it cannot be made (`MADV_WIPEONFORK`, Linux 4.14).
pub fn prepare() -> bool {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh private mapping overlaps nothing.
    let Ok(page) = (unsafe { mmap_anonymous(ptr::null_mut(), page_size(), access, MapFlags::PRIVATE) }) else {
        return false;
    };
    // SAFETY: just mapped, and nobody knows of it.
    if unsafe { madvise(page, page_size(), Advice::LinuxWipeOnFork) }.is_err() {
        // SAFETY: just mapped, and nobody knows of it.
        let _ = unsafe { rustix::mm::munmap(page, page_size()) };
        return false;
    }
    // Relaxed: there is one thread.
    PID.store(page.cast(), Ordering::Relaxed);
    is_child();
    true
}

/// Whether this is a child that shares the memory of another process, between vfork and exec.
fn is_child() -> bool {
    // SAFETY: `prepare` has mapped a page there for good, whose beginning is a word that only atomics use.
    let Some(own) = (unsafe { PID.load(Ordering::Relaxed).as_ref() }) else { return false };
    let pid = raw::getpid();
    // Relaxed: each process writes one value only, and nothing is read through it.
    match own.load(Ordering::Relaxed) {
        0 => {
            PARENTS.iter().for_each(|p| p.store(0, Ordering::Relaxed));
            PARENT_COUNT.store(0, Ordering::Relaxed);
            FIRST_THREAD.store(lock::thread_mark() as usize, Ordering::Relaxed);
            mark_first_thread();
            own.store(pid, Ordering::Relaxed);
            false
        }
        // The first process of a container may start another container's.
        1 => pid != 1 || is_another_first(),
        known => known != pid,
    }
}

/// Whether this is not the process with number 1 that was noted, but a child with number 1 in a namespace of its own.
/// Such a child has one thread, whose number is 1, and the thread pointer of the thread that made it. If that was its
/// parent's first thread, the list of robust futexes decides, which a child does not inherit and glibc sets for each
/// thread.
///
/// In a static program the first thread gets its pointer later, and [`mark_first_thread`] has set such a list for it.
fn is_another_first() -> bool {
    let is_other_thread =
        || !static_program::is_one() && lock::thread_mark() as usize != FIRST_THREAD.load(Ordering::Relaxed);
    raw::gettid() == 1 && (is_other_thread() || !libc_kind::is_musl() && !has_robust_list())
}

/// Sets a list of robust futexes, in which there is none, for the first thread of a static program, which has no libc
/// that does.
fn mark_first_thread() {
    /// The kernel's `struct robust_list_head`: a list that leads to itself, an offset, and no futex that is being taken.
    static HEAD: [AtomicUsize; 3] = [const { AtomicUsize::new(0) }; 3];
    if static_program::is_one() && !has_robust_list() {
        let [list, ..] = &HEAD;
        list.store(HEAD.as_ptr().expose_provenance(), Ordering::Relaxed);
        let place = [HEAD.as_ptr().expose_provenance(), size_of_val(&HEAD), 0, 0, 0, 0];
        // SAFETY: a list that stays where it is, and which nobody changes any more.
        let _ = unsafe { raw::syscall6(libc::SYS_set_robust_list, place) };
    }
}

/// Whether the kernel knows a list of robust futexes of this thread.
fn has_robust_list() -> bool {
    let (mut head, mut length) = (0usize, 0usize);
    let places = [0, (&raw mut head).expose_provenance(), (&raw mut length).expose_provenance(), 0, 0, 0];
    // SAFETY: the kernel writes two words, to variables that outlive the call.
    let done = unsafe { raw::syscall6(libc::SYS_get_robust_list, places) };
    // Where the kernel does not tell, the thread counts as our own.
    done != 0 || head != 0
}

/// The thread's entry among [`PARENTS`].
fn parent_entry() -> Option<&'static AtomicUsize> {
    let me = lock::thread_mark() as usize;
    PARENTS.iter().find(|p| p.load(Ordering::Relaxed) == me)
}

/// Whether the call is one of a child that shares our memory. The child runs while its parent's thread is suspended, so
/// that the two do not use the thread's entry at once; the kernel orders what they do.
fn of_child(asks: bool) -> bool {
    let any = PARENT_COUNT.load(Ordering::Relaxed);
    let entry = if any == 0 { None } else { parent_entry() };
    if !asks && entry.is_none() && any < MANY {
        return false;
    }
    match (is_child(), entry) {
        (true, None) => {
            let me = lock::thread_mark() as usize;
            let taken = PARENTS.iter().any(|p| p.compare_exchange(0, me, Ordering::Relaxed, Ordering::Relaxed).is_ok());
            PARENT_COUNT.fetch_add(if taken { 1 } else { MANY }, Ordering::Relaxed);
            true
        }
        (false, Some(entry)) => {
            entry.store(0, Ordering::Relaxed);
            PARENT_COUNT.fetch_sub(1, Ordering::Relaxed);
            false
        }
        (is_child, _) => is_child,
    }
}

/// Whether a call makes a process or thread that goes on with the caller's stack.
fn goes_on_with_stack(call: &Call) -> bool {
    let [first, second, ..] = call.arguments;
    let flags = match call.number as c_long {
        libc::SYS_vfork => return true,
        libc::SYS_clone => first as u64,
        libc::SYS_clone3 => crate::clone::flags3(first, second).unwrap_or(0),
        _ => 0,
    };
    flags & libc::CLONE_VM as u64 != 0
}

/// Prepares for a call that duplicates a descriptor.
fn before_duplicate(call: &Call) {
    let [fd, command, ..] = call.arguments;
    let is_duplicate = match call.number as c_long {
        libc::SYS_dup | libc::SYS_dup2 | libc::SYS_dup3 => true,
        libc::SYS_fcntl => matches!(command as c_int, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC),
        _ => false,
    };
    if is_duplicate {
        go::before_duplicate(fd as c_int);
    }
}

/// Whether a call that was asked about for the sake of a child that shares our memory does not concern us otherwise.
fn is_foreign(call: &Call) -> bool {
    let [first, second, ..] = call.arguments;
    let fd = first as c_int;
    match call.number as c_long {
        libc::SYS_open | libc::SYS_openat | libc::SYS_openat2 | libc::SYS_pipe2 => true,
        libc::SYS_close => !closing::concerns(fd),
        libc::SYS_dup => !create::concerns_dup(fd),
        libc::SYS_fcntl => !control::concerns(fd, second as c_int),
        libc::SYS_ioctl => !table::knows(fd) && !control::gives_socket(second),
        _ => false,
    }
}

/// Prepares for the execution of a static program by a child that shares our memory. The child makes the call itself:
/// if it succeeds nobody would give our stack back. If it fails, the child ends, and the helper with it.
///
/// # Safety
/// As for [`answer`].
unsafe fn before_execution(call: &Call) {
    let [a, b, c, d, e, _] = call.arguments;
    // SAFETY: the program's arguments of execve and execveat.
    let execution = unsafe {
        match call.number as c_long {
            libc::SYS_execve => Execution::path(a as *const c_char, c as Args),
            libc::SYS_execveat => Execution::at(a as c_int, b as *const c_char, d as Args, e as c_int),
            _ => return,
        }
    };
    execution.leave();
}

/// Makes the call or leaves it to the program.
///
/// # Safety
/// `call` is one that the program makes now, under the kernel's contract for it.
pub unsafe extern "C" fn answer(call: &mut Call) -> Verdict {
    if static_program::is_one() && !static_program::enter() {
        return Verdict::Plain;
    }
    let asks = CLASSES.get(call.number) == Some(&CHILDS);
    if of_child(asks) {
        // SAFETY: the caller's guarantee.
        unsafe { before_execution(call) };
        return Verdict::Plain;
    }
    if asks && (goes_on_with_stack(call) || is_foreign(call)) {
        return Verdict::Plain;
    }
    before_duplicate(call);
    let [a, b, c, d, e, f] = call.arguments;
    if call.number as c_long == libc::SYS_socket && go::refuses_mptcp(a as c_int, b as c_int, c as c_int) {
        call.answer = -(libc::ENOPROTOOPT as isize);
        return Verdict::Done;
    }
    // SAFETY: the program's arguments, under the kernel's contract, which the dispatcher keeps.
    let done = unsafe { crate::syscall::syscall(call.number as c_long, a, b, c, d, e, f) };
    call.answer = if done == -1 { -(weak::errno() as isize) } else { done as isize };
    Verdict::Done
}

/// Ends the program as `_exit` does, unless this is a child that shares our memory, or a thread that was interrupted in
/// our code, whose locks it holds.
pub extern "C" fn exit(status: c_int) -> *const c_void {
    let can_run = !static_program::is_one() || static_program::enter();
    if can_run && !is_child() && !lock::interrupted() {
        // SAFETY: no contract.
        unsafe { process::_exit(status) };
    }
    raw::exit_group(status)
}
