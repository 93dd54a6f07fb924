//! TCP_CORK and TCP_NODELAY of a connection in shared memory (tcp(7)).

use crate::object::reference::Ref;
use crate::object::socket::Socket;
use crate::switch::redispatch;
use libc::IPPROTO_TCP;

/// To be called after TCP_CORK or TCP_NODELAY was set: sends the bytes that were held back, unless the new setting
/// holds them (tcp(7)).
#[cold]
pub(super) fn set(r: Ref<Socket>, name: i32) {
    let s = r.obj;
    let on = s.opts.get(IPPROTO_TCP, name).is_some_and(|v| v != 0);
    let _g = s.tx.lock();
    let Some(ep) = s.ring().filter(|_| r.valid()) else { return };
    match name {
        libc::TCP_CORK => ep.set_cork(on),
        _ if on => ep.push(),
        _ => {}
    }
    let moving = ep.side.is_moving();
    drop(_g);
    if moving {
        redispatch::go_after(r);
    }
}
