//! Closing descriptors in a thread of its own where the close may block its caller.
//!
//! The last close of a file runs in the thread that closes it, and a file that somebody else has made may block there:
//! a TCP socket with `SO_LINGER` waits for its peer (socket(7)), a file of a FUSE file system for its server. That
//! holds for descriptors under way over a UNIX socket too, which end with the socket (unix(7)). So a socket that holds
//! descriptors of a stranger is given to [`close`], which takes it to a thread that does nothing else. No thread exists
//! before the first such socket, and none stays longer than it needs.
//!
//! # Safety
//! The threads are made by clone(2) without libc, since libc's functions may not be called in signal handlers and small
//! stacks. They share the process's thread pointer, so they must touch no thread-local variable: they run `run`, which
//! uses system calls and its own stack alone.
#![allow(unsafe_code)]

use crate::errno::{Errno, Result};
use crate::{raw, reserved_fds};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};

/// Largest number of threads at a time.
const THREADS: usize = 4;
/// Largest number of sockets that may wait for a thread.
const WAITING: usize = 64;
/// Size (bytes) of a thread's stack: a buffer for the descriptors of one message, and the frames of a few system calls.
const STACK: usize = 16 * 1024;
/// Largest number of descriptors that one message may carry (`SCM_MAX_FD`, unix(7)).
const MOST: usize = 253;
/// Number of messages that are looked through in one socket; more than a socket holds.
const MESSAGES: usize = 4096;

#[repr(C, align(16))]
struct Stack(UnsafeCell<[u8; STACK]>);

// SAFETY: only the one thread that owns the place uses its stack.
unsafe impl Sync for Stack {}

/// One thread's place. `thread` is its number; the kernel clears it when the thread has left its stack
/// (`CLONE_CHILD_CLEARTID`).
struct ThreadSlot {
    thread: AtomicU32,
    stack: Stack,
}

crate::tables! {
    static PLACES: [ThreadSlot; THREADS] =
        [const { ThreadSlot { thread: AtomicU32::new(0), stack: Stack(UnsafeCell::new([0; STACK])) } }; THREADS];
}
/// Whether any of the threads was ever started.
static STARTED: AtomicBool = AtomicBool::new(false);
/// Sockets that wait to be closed, as words of [`enter`].
static QUEUE: [AtomicI32; WAITING] = [const { AtomicI32::new(0) }; WAITING];

/// In [`ThreadSlot::thread`] before the kernel has written the thread's number.
const STARTING: u32 = u32::MAX;

/// Closes `fd`, one of our own descriptors ([`reserved_fds`]), in another thread. Where no thread can be had it is
/// closed together with the next one, and stays open until then; one for which there is no place stays open for good.
pub fn close(fd: i32) {
    enter(fd + 1);
}

/// Closes, as [`close`] does, a socket that other processes go on using: nothing is taken out of it.
pub fn close_as_it_is(fd: i32) {
    enter(-(fd + 1));
}

/// Leaves a word for a thread: the number + 1, negative for a socket that is left as it is.
fn enter(word: i32) {
    // SeqCst: a thread looks through all cells once more after it has closed something, and so does a thread that
    // starts afterwards.
    let queued = QUEUE.iter().any(|c| c.compare_exchange(0, word, Ordering::SeqCst, Ordering::Relaxed).is_ok());
    if queued {
        start();
    }
}

/// Whether more than half of the places for waiting sockets are taken; then no further sockets should be taken from
/// strangers.
pub fn is_full() -> bool {
    let waiting = QUEUE.iter().filter(|c| c.load(Ordering::Relaxed) != 0).count();
    if waiting > 0 {
        start();
    }
    waiting > WAITING / 2
}

/// Called in the child of a fork, which has copies of the descriptors and none of the threads.
pub fn after_fork() {
    // Each place is a page that the child would copy.
    if !STARTED.load(Ordering::Relaxed) {
        return;
    }
    for place in &PLACES {
        place.thread.store(0, Ordering::Relaxed);
    }
}

fn start() {
    STARTED.store(true, Ordering::Relaxed);
    let free = |p: &&ThreadSlot| p.thread.compare_exchange(0, STARTING, Ordering::SeqCst, Ordering::Relaxed).is_ok();
    if let Some(place) = PLACES.iter().find(free)
        && spawn(place).is_err()
    {
        place.thread.store(0, Ordering::SeqCst);
    }
}

/// What a thread does: it closes what waits, and ends when it finds nothing.
extern "C" fn run() {
    while let Some(word) = QUEUE.iter().map(|cell| cell.swap(0, Ordering::SeqCst)).find(|word| *word != 0) {
        let fd = word.abs() - 1;
        if word > 0 {
            disarm(fd);
        }
        reserved_fds::close(fd);
    }
}

/// Takes the messages out of a UNIX socket and closes the descriptors that came with them, none of which lingers then.
fn disarm(fd: i32) {
    const SPACE: usize = size_of::<libc::cmsghdr>() + (MOST + 1) * size_of::<i32>() + 64;
    #[repr(align(8))]
    struct Control([u8; SPACE]);
    let _ = raw::shutdown(fd, libc::SHUT_RDWR);
    for _ in 0..MESSAGES {
        let mut control = Control([0; SPACE]);
        let mut byte = 0u8;
        let mut iov = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
        // SAFETY: a message header of zeroes is one without anything.
        let mut m: libc::msghdr = unsafe { core::mem::zeroed() };
        m.msg_iov = &raw mut iov;
        m.msg_iovlen = 1;
        m.msg_control = control.0.as_mut_ptr().cast();
        m.msg_controllen = SPACE as _;
        let got = raw::recvmsg(fd, &raw mut m, libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC);
        let used = (m.msg_controllen as usize).min(SPACE);
        each_descriptor(control.0.get(..used).unwrap_or_default(), |passed| {
            let never = [0i32; 2];
            let _ = raw::setsockopt(passed, libc::SOL_SOCKET, libc::SO_LINGER, never.as_ptr().cast(), 8);
            let _ = raw::close(passed);
        });
        match got {
            Err(Errno::INTR) => {}
            // An empty read is the end of the stream if no credentials came with it; with them it is an empty message.
            Ok(0) if used == 0 => return,
            Err(_) => return,
            Ok(_) => {}
        }
    }
}

/// Calls `f` for the descriptors among control messages (cmsg(3)).
fn each_descriptor(mut control: &[u8], mut f: impl FnMut(i32)) {
    const HEAD: usize = size_of::<libc::cmsghdr>();
    let word = |bytes: &[u8], at: usize| {
        let four = bytes.get(at..at + 4).and_then(|b| b.try_into().ok());
        four.map_or(0, i32::from_ne_bytes)
    };
    while control.len() >= HEAD {
        // The length is a size_t, of which a buffer of this size needs the lower half only.
        let len = (word(control, 0).max(0) as usize).clamp(HEAD, control.len());
        if (word(control, 8), word(control, 12)) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            for at in (HEAD..len).step_by(4).filter(|at| at + 4 <= len) {
                f(word(control, at));
            }
        }
        control = control.get(len.next_multiple_of(8)..).unwrap_or_default();
    }
}

/// Starts a thread at a free place. All signals are blocked in it, so that none of the program's is handled there.
fn spawn(place: &'static ThreadSlot) -> Result<()> {
    let _blocked = crate::signals::Blocked::all();
    let flags = libc::CLONE_VM
        | libc::CLONE_FS
        | libc::CLONE_FILES
        | libc::CLONE_SIGHAND
        | libc::CLONE_THREAD
        | libc::CLONE_SYSVSEM
        | libc::CLONE_PARENT_SETTID
        | libc::CLONE_CHILD_CLEARTID;
    let top = place.stack.0.get() as usize + STACK;
    // SAFETY: the stack is this place's, which is free: the kernel has cleared the word after the last thread's end.
    let r = unsafe { clone_thread(flags as usize, top, place.thread.as_ptr() as usize) };
    if r < 0 { Err(Errno(-(r as i32))) } else { Ok(()) }
}

/// clone(2) with a stack; the new thread calls [`run`] and ends.
///
/// # Safety
/// `stack` is the upper end of memory that nobody else uses until the kernel clears the word at `word`.
#[cfg(target_arch = "x86_64")]
unsafe fn clone_thread(flags: usize, stack: usize, word: usize) -> isize {
    let ret: isize;
    // SAFETY: the caller guarantees that `stack` is the upper end of memory that nobody else uses until the kernel
    // clears the word at `word`; The new thread begins with an aligned stack, finds the function in a register that the
    // kernel keeps, and never comes back here.
    unsafe {
        core::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "call r12",
            "xor edi, edi",
            "mov eax, {exit}",
            "syscall",
            "ud2",
            "2:",
            exit = const libc::SYS_exit,
            inlateout("rax") libc::SYS_clone as isize => ret,
            in("rdi") flags, in("rsi") stack, in("rdx") word, in("r10") word, in("r8") 0usize,
            in("r12") run as extern "C" fn() as usize,
            lateout("rcx") _, lateout("r11") _,
        );
    }
    ret
}

/// clone(2) with a stack; the new thread calls [`run`] and ends.
///
/// # Safety
/// `stack` is the upper end of memory that nobody else uses until the kernel clears the word at `word`.
#[cfg(target_arch = "aarch64")]
unsafe fn clone_thread(flags: usize, stack: usize, word: usize) -> isize {
    let ret: isize;
    // SAFETY: the caller guarantees that `stack` is the upper end of memory that nobody else uses until the kernel
    // clears the word at `word`; The new thread begins with an aligned stack, finds the function in a register that the
    // kernel keeps, and never comes back here.
    unsafe {
        core::arch::asm!(
            "svc 0",
            "cbnz x0, 2f",
            "mov x29, xzr",
            "blr x10",
            "mov x0, xzr",
            "mov x8, {exit}",
            "svc 0",
            "brk 1",
            "2:",
            exit = const libc::SYS_exit,
            inlateout("x0") flags as isize => ret,
            in("x1") stack, in("x2") word, in("x3") 0usize, in("x4") word,
            in("x8") libc::SYS_clone, in("x10") run as extern "C" fn() as usize,
            lateout("x30") _,
        );
    }
    ret
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use rustix::fd::BorrowedFd;
    use rustix::net::{
        AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, sendmsg,
        socketpair,
    };
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd as _;

    /// A connected socket whose last close would wait for `seconds`: its peer does not read what it has sent.
    fn lingering(seconds: i32) -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut lingers = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let reader = listener.accept().unwrap().0;
        lingers.set_nonblocking(true).unwrap();
        while lingers.write(&[0; 65536]).is_ok() {}
        let linger = [1, seconds];
        raw::setsockopt(lingers.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, linger.as_ptr().cast(), 8).unwrap();
        (lingers, reader)
    }

    #[test]
    fn a_socket_that_holds_a_lingering_one_is_closed_without_waiting() {
        let (lingers, mut reader) = lingering(1000);
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let mut space = [core::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut anc = SendAncillaryBuffer::new(&mut space);
        let theirs = reserved_fds::adopt(theirs).unwrap();
        // SAFETY: both are open until they are closed below.
        let (passed, over) = unsafe { ([BorrowedFd::borrow_raw(lingers.as_raw_fd())], BorrowedFd::borrow_raw(theirs)) };
        assert!(anc.push(SendAncillaryMessage::ScmRights(&passed)));
        sendmsg(over, &[rustix::io::IoSlice::new(b"x")], &mut anc, SendFlags::empty()).unwrap();
        drop(lingers);
        close(reserved_fds::adopt(ours).unwrap());
        // The other end of it: what was sent, and then the end.
        let mut all = Vec::new();
        let _ = reader.read_to_end(&mut all);
        assert!(!all.is_empty());
        // The socket itself is closed too, so its peer sees the end.
        while raw::send(theirs, b"x".as_ptr(), 1, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT).is_ok() {
            raw::sched_yield();
        }
        reserved_fds::close(theirs);
        while PLACES.iter().any(|p| p.thread.load(Ordering::SeqCst) != 0) {
            raw::sched_yield();
        }
    }
}
