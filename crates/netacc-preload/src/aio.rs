//! aio(7): threads inside libc read and write there, by calls that no hook sees. So a connection that a request names
//! becomes a kernel socket before the request is made.

use core::ffi::{c_int, c_void};
use netacc_core::switch::demote;
use netacc_stats::Reason;

/// `struct aiocb`, whose first member is the descriptor on every architecture that glibc supports.
type Request = *mut c_int;

/// # Safety
/// `r` points to a request, or is null.
unsafe fn named(r: Request) {
    // SAFETY: the caller guarantees what this function's contract says of its pointer.
    if let Some(fd) = unsafe { r.as_ref() } {
        demote::by_number_if_connected(*fd, Reason::Unsupported);
    }
}

/// # Safety
/// `list` points to `n` requests, of which any may be null, or is null.
unsafe fn all_named(list: *const Request, n: c_int) {
    let n = if list.is_null() { 0 } else { n.max(0) as usize };
    for at in 0..n {
        // SAFETY: the caller guarantees what this function's contract says of its pointer.
        unsafe { named(*list.add(at)) };
    }
}

before! {
    fn aio_read(r: Request) => named(r);
    fn aio_read64(r: Request) => named(r);
    fn aio_write(r: Request) => named(r);
    fn aio_write64(r: Request) => named(r);
    fn lio_listio(mode: c_int, list: *const Request, n: c_int, event: *mut c_void) => all_named(list, n);
    fn lio_listio64(mode: c_int, list: *const Request, n: c_int, event: *mut c_void) => all_named(list, n);
}
