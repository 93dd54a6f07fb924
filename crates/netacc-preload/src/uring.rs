//! liburing submits requests of io_uring(7) by its own system-call instruction, where no hook sees them. So a socket
//! that a request names becomes a kernel socket when a function of liburing submits the requests.

use core::ffi::{c_int, c_uint, c_void};
use core::sync::atomic::{AtomicU32, Ordering};
use netacc_core::conn::msg;
use netacc_core::fd::closing;
use netacc_core::fd::closing::File;
use netacc_core::switch::demote;
use netacc_core::{fallback, process_mode, startup};
use netacc_stats::Reason;
use netacc_sys::{own_calls, user};

/// `struct io_uring_sq`, by which liburing's inline functions put requests into a program's ring; so it cannot change.
#[repr(C)]
pub struct Queue {
    kernel: [*mut c_uint; 2],
    mask: *const c_uint,
    others: [*mut c_uint; 4],
    requests: *const Request,
    /// Range of the requests that were not submitted yet: `head` is the first, `tail` the one after the last.
    head: c_uint,
    tail: c_uint,
    rest: [u64; 4],
}

/// The beginning of `struct io_uring`.
#[repr(C)]
pub struct Ring {
    sq: Queue,
    cq: [u64; 11],
    flags: c_uint,
}

/// `struct io_uring_sqe` (linux/io_uring.h).
#[repr(C)]
struct Request {
    opcode: u8,
    flags: u8,
    priority: u16,
    fd: c_int,
    offset: u64,
    address: u64,
    length: u32,
    kind: u32,
    data: u64,
    buffer: u16,
    personality: u16,
    other_fd: c_int,
    rest: [u64; 2],
}

const _: () = assert!(size_of::<Queue>() == 104 && core::mem::offset_of!(Ring, flags) == 192);
const _: () = assert!(size_of::<Request>() == 64);

/// IORING_SETUP_SQE128: requests of twice the length.
const LONG_REQUESTS: c_uint = 1 << 10;
/// IOSQE_FIXED_FILE: the number is one of those that were registered.
const FIXED_FILE: u8 = 1;
/// SPLICE_F_FD_IN_FIXED: the number of a splice's source is one of those that were registered.
const FIXED_SOURCE: u32 = 1 << 31;

// IORING_OP_*.
const SENDMSG: u8 = 9;
const CLOSE: u8 = 19;
const FILES_UPDATE: u8 = 20;
const EPOLL_CTL: u8 = 29;
const SPLICE: u8 = 30;
const TEE: u8 = 33;
const SENDMSG_ZC: u8 = 48;

/// NOP, TIMEOUT and its removal, ASYNC_CANCEL, LINK_TIMEOUT, PROVIDE_BUFFERS and REMOVE_BUFFERS, SOCKET, WAITID,
/// FUTEX_*: in these requests the field of the descriptor means something else.
const NO_DESCRIPTOR: [u8; 12] = [0, 11, 12, 14, 15, 31, 32, 45, 50, 51, 52, 53];

/// Number of threads that are in one of liburing's functions that make a ring.
static MAKING: AtomicU32 = AtomicU32::new(0);

/// Whether io_uring_setup by syscall(2) is refused.
///
/// Requests on such a ring cannot be followed. libuv works without a ring, as in containers that forbid it, and gets
/// the error. Other programs (Rust's tokio-uring, fio) may depend on it, so they get the ring, and their sockets stay
/// with the kernel from then on. A program that is not to be accelerated gets it too, and so does liburing, whose older
/// releases make their system calls by libc.
pub fn is_refused() -> bool {
    is_concerned() && own_calls::loaded::has_libuv()
}

/// To be called after io_uring_setup by syscall(2) has made a ring. A program that only asks whether it can have one, and
/// cannot, loses nothing.
pub fn was_made() {
    if is_concerned() {
        fallback::fall_back(Reason::IoUring);
    }
}

/// Whether a ring that is made now would have sockets of ours.
fn is_concerned() -> bool {
    // Relaxed: the thread only has to see its own increment.
    let meant = MAKING.load(Ordering::Relaxed) == 0 && startup::ensure().is_some_and(|rt| rt.accelerates());
    meant && process_mode::reason().is_none()
}

fn to_kernel(fd: c_int) {
    let _ = demote::by_number(fd, Reason::IoUring);
}

/// Demotes the descriptors that are about to be registered with a ring: `n` numbers at `files`, as far as they can be
/// read.
fn registered(files: *const c_int, n: c_uint) {
    // SAFETY: numbers, which any bytes are.
    let numbers = (0..n as usize).map_while(|i| unsafe { user::load(files.wrapping_add(i)) });
    numbers.for_each(to_kernel);
}

/// Demotes the descriptors that a request names.
///
/// # Safety
/// The request points to valid arguments of the call of the same name.
unsafe fn named(r: &Request) {
    let fixed = r.flags & FIXED_FILE != 0;
    match r.opcode {
        // The kernel closes the number at a time that is not reported to us, and another thread may get it right then.
        CLOSE if !fixed && r.other_fd == 0 => return drop(closing::forget(r.fd, File::There)),
        FILES_UPDATE => return registered(r.address as *const c_int, r.length),
        SENDMSG | SENDMSG_ZC => {
            // SAFETY: the caller guarantees that the address is that of a message header.
            let _ = unsafe { msg::passing(r.address as *const libc::msghdr) };
        }
        EPOLL_CTL => to_kernel(r.offset as c_int),
        SPLICE | TEE if r.kind & FIXED_SOURCE == 0 => to_kernel(r.other_fd),
        op if NO_DESCRIPTOR.contains(&op) => return,
        _ => {}
    }
    if !fixed {
        to_kernel(r.fd);
    }
}

/// Demotes the descriptors that the requests about to be submitted name.
///
/// # Safety
/// `ring` is a ring that liburing has made.
unsafe fn submitted(ring: *const Ring) {
    // SAFETY: the caller guarantees a ring of liburing's; the mask keeps the index within its array.
    unsafe {
        let shift = u32::from((*ring).flags & LONG_REQUESTS != 0);
        let sq = &(*ring).sq;
        let mut at = sq.head;
        while at != sq.tail {
            named(&*sq.requests.add(((at & *sq.mask) << shift) as usize));
            at = at.wrapping_add(1);
        }
    }
}

/// Defines the hooks of liburing's functions, which return a negative errno. A liburing that was loaded with dlopen(3)
/// and RTLD_LOCAL is not among the next symbols, so it is looked up by the library's name.
macro_rules! liburing {
    ($( fn $name:ident ( $($arg:ident : $ty:ty),* ) => $before:expr; )*) => {$(
        exports! {
            fn $name($($arg: $ty),*) -> c_int {
                next_of!(NEXT, name_of!($name), &LIBRARIES);
                // SAFETY: the application calls under the function's own contract; the function there has this signature.
                unsafe {
                    let _until_done = {
                        visit!($name($($arg),*));
                        $before
                    };
                    let p = NEXT.get();
                    if p.is_null() { -libc::ENOSYS } else { called!(p, ($($arg => $ty),*) -> c_int) }
                }
            }
        }
    )*};
}

/// Guard that counts the thread in [`MAKING`].
struct Making;

impl Making {
    fn begin() -> Making {
        MAKING.fetch_add(1, Ordering::Relaxed);
        Making
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        MAKING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// File names of liburing, by its ABI version.
const LIBRARIES: [&core::ffi::CStr; 3] = [c"liburing.so.2", c"liburing-ffi.so.2", c"liburing.so.1"];

type Any = *mut c_void;

liburing! {
    fn io_uring_queue_init(entries: c_uint, ring: *mut Ring, flags: c_uint) => Making::begin();
    fn io_uring_queue_init_params(entries: c_uint, ring: *mut Ring, params: Any) => Making::begin();

    fn io_uring_submit(ring: *mut Ring) => submitted(ring);
    fn io_uring_submit_and_wait(ring: *mut Ring, n: c_uint) => submitted(ring);
    fn io_uring_submit_and_get_events(ring: *mut Ring) => submitted(ring);
    fn io_uring_submit_and_wait_timeout(ring: *mut Ring, cqe: Any, n: c_uint, t: Any, mask: Any) => submitted(ring);
    fn io_uring_submit_and_wait_min_timeout(ring: *mut Ring, cqe: Any, n: c_uint, t: Any, min: c_uint, mask: Any)
        => submitted(ring);
    fn io_uring_submit_and_wait_reg(ring: *mut Ring, cqe: Any, n: c_uint, index: c_int) => submitted(ring);
    // With a time-out these functions also submit requests on kernels before 5.11.
    fn io_uring_wait_cqes(ring: *mut Ring, cqe: Any, n: c_uint, t: Any, mask: Any) => submitted(ring);
    fn io_uring_wait_cqe_timeout(ring: *mut Ring, cqe: Any, t: Any) => submitted(ring);

    fn io_uring_register_files(ring: *mut Ring, files: *const c_int, n: c_uint) => registered(files, n);
    fn io_uring_register_files_tags(ring: *mut Ring, files: *const c_int, tags: Any, n: c_uint) => registered(files, n);
    fn io_uring_register_files_update(ring: *mut Ring, at: c_uint, files: *const c_int, n: c_uint) => registered(files, n);
    fn io_uring_register_files_update_tag(ring: *mut Ring, at: c_uint, files: *const c_int, tags: Any, n: c_uint)
        => registered(files, n);
}
