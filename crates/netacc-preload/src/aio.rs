//! aio(7): threads inside libc read and write there, by calls that no hook sees. So a connection that a request names
//! becomes a kernel socket before the request is made.

use core::ffi::{c_int, c_void};
use netacc_core::switch::demote;
use netacc_stats::Reason;
use netacc_sys::user;

/// `struct aiocb`, whose first member is the descriptor on every architecture that glibc supports.
type Request = *mut c_int;

/// Demotes the connection of a request.
fn named(r: Request) {
    // SAFETY: a number, which any bytes are.
    if let Some(fd) = unsafe { user::load(r) } {
        demote::by_number_if_connected(fd, Reason::Unsupported);
    }
}

/// Demotes the connections of `n` requests, of which any may be null.
fn all_named(list: *const Request, n: c_int) {
    // SAFETY: addresses, which any bytes are.
    let requests = (0..n.max(0) as usize).map_while(|at| unsafe { user::load(list.wrapping_add(at)) });
    requests.for_each(named);
}

before! {
    fn aio_read(r: Request) => named(r);
    fn aio_read64(r: Request) => named(r);
    fn aio_write(r: Request) => named(r);
    fn aio_write64(r: Request) => named(r);
    fn lio_listio(mode: c_int, list: *const Request, n: c_int, event: *mut c_void) => all_named(list, n);
    fn lio_listio64(mode: c_int, list: *const Request, n: c_int, event: *mut c_void) => all_named(list, n);
}
