//! The functions of librdmacm.

use crate::address::{address, route, tcp};
use crate::channel::{Channel, descriptor, ready};
use crate::device::{self, Note};
use crate::fail;
use crate::id::{Id, Phase};
use crate::queue::QueuePair;
use crate::state::{Context, State, lock};
use crate::thread::{forget, is_about};
use crate::wire::{Frame, Kind};
use core::ffi::{c_int, c_uint, c_void};
use core::net::SocketAddr;
use netacc_verbs::sys::*;
use rustix::event::epoll::EventFlags;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::net::sockopt;
use std::collections::VecDeque;

fn done(result: Result<(), Errno>) -> c_int {
    result.map_or_else(|e| fail(e.raw_os_error()), |()| 0)
}

impl State {
    /// The identifier behind a pointer of the program's.
    ///
    /// # Safety
    /// `id` was given out by `rdma_create_id` or with a connect request, and is not destroyed.
    unsafe fn id<'a>(&mut self, id: *mut rdma_cm_id) -> &'a mut Id {
        // SAFETY: the caller guarantees an identifier that was given out and not destroyed; the lock is held, so no
        // other thread follows the pointer.
        unsafe { &mut *id.cast::<Id>() }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_devices(count: *mut c_int) -> *mut *mut ibv_context {
    let mut state = lock();
    let mut list: Vec<*mut ibv_context> = device::all().iter().map(|d| state.cm_context(d).cast()).collect();
    list.retain(|context| !context.is_null());
    if list.is_empty() {
        fail(libc::ENODEV);
        return core::ptr::null_mut();
    }
    // SAFETY: the pointer is null or leads to a number of the caller's.
    if let Some(count) = unsafe { count.as_mut() } {
        *count = list.len() as c_int;
    }
    list.push(core::ptr::null_mut());
    Box::into_raw(list.into_boxed_slice()).cast()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_free_devices(_list: *mut *mut ibv_context) {
    // The few bytes of a list are leaked. The contexts belong to librdmacm, which never closes them.
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    let Some(fd) = descriptor() else {
        fail(libc::EMFILE);
        return core::ptr::null_mut();
    };
    let channel = Box::into_raw(Box::new(rdma_event_channel { fd }));
    // SAFETY: the channel was just made, and only the address of its field is taken.
    lock().channels.insert(channel as usize, Channel::new(unsafe { &raw const (*channel).fd }));
    channel
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    if let Some(mut gone) = lock().channels.remove(&(channel as usize)) {
        forget(gone.retain(|_| true));
    }
    // SAFETY: the channel came from `rdma_create_event_channel` and is destroyed once.
    unsafe {
        rustix::io::close((*channel).fd);
        drop(Box::from_raw(channel));
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_cm_event(channel: *mut rdma_event_channel, event: *mut *mut rdma_cm_event) -> c_int {
    loop {
        let mut state = lock();
        let Some(found) = state.channels.get_mut(&(channel as usize)) else { return fail(libc::EINVAL) };
        if let Some(next) = found.pop() {
            // SAFETY: the caller has room for the event's address.
            unsafe { *event = next.cast() };
            return 0;
        }
        if !found.blocks() {
            return fail(libc::EAGAIN);
        }
        let fd = found.number();
        drop(state);
        // SAFETY: the descriptor is the channel's, which its user does not destroy while a thread waits on it.
        ready(unsafe { BorrowedFd::borrow_raw(fd) }, -1);
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    forget(vec![event.cast()]);
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    _space: c_uint,
) -> c_int {
    let mut state = lock();
    if let Err(e) = state.serve() {
        return fail(e.raw_os_error());
    }
    let number = state.number();
    let fresh = Box::into_raw(Box::new(Id::new(number, channel, context)));
    state.ids.insert(number, fresh);
    // SAFETY: the caller has room for the identifier's address.
    unsafe { *id = fresh.cast() };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    let mut state = lock();
    // SAFETY: the caller passes an identifier that it has not destroyed.
    let number = unsafe { state.id(id) }.number;
    state.ids.remove(&number);
    for channel in state.channels.values_mut() {
        forget(channel.retain(|event| is_about(event, id.cast())));
    }
    let (gone, later): (Vec<_>, Vec<_>) = state.later.drain(..).partition(|(_, _, event)| is_about(event, id.cast()));
    state.later = later;
    forget(gone.into_iter().map(|(_, _, event)| event).collect());
    // SAFETY: the identifier came from a box of ours, and no list or event refers to it any more.
    drop(unsafe { Box::from_raw(id.cast::<Id>()) });
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int {
    let mut state = lock();
    // SAFETY: the caller passes an identifier that it has not destroyed.
    let old = unsafe { state.id(id) }.cm.channel as usize;
    let events = state.channels.get_mut(&old).map(|c| c.retain(|event| is_about(event, id.cast()))).unwrap_or_default();
    // SAFETY: the caller passes an identifier that it has not destroyed.
    unsafe { state.id(id) }.cm.channel = channel;
    for event in events {
        state.put(channel as usize, event);
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_set_option(
    id: *mut rdma_cm_id,
    _level: c_int,
    name: c_int,
    value: *mut c_void,
    len: usize,
) -> c_int {
    let mut state = lock();
    // SAFETY: the caller passes an identifier that it has not destroyed, and a value of that length.
    let (id, on) = unsafe { (state.id(id), len == size_of::<c_int>() && *value.cast::<c_int>() != 0) };
    match name {
        RDMA_OPTION_ID_REUSEADDR => id.reuse = on,
        RDMA_OPTION_ID_AFONLY => id.v6_only = on,
        _ => {}
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_bind_addr(id: *mut rdma_cm_id, at: *mut sockaddr) -> c_int {
    let mut state = lock();
    // SAFETY: the caller passes an identifier that it has not destroyed, and an address.
    let (id, wanted) = unsafe { (state.id(id), address(at)) };
    let Some(wanted) = wanted else { return fail(libc::EINVAL) };
    if !wanted.ip().is_unspecified() {
        let context = state.context_of(Some(wanted.ip()));
        if context.is_null() {
            return fail(libc::ENODEV);
        }
        id.cm.verbs = context.cast();
    }
    id.set_addresses(Some(wanted), None);
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    from: *mut sockaddr,
    to: *mut sockaddr,
    _ms: c_int,
) -> c_int {
    let mut state = lock();
    // SAFETY: the caller passes two addresses, each of which may be null.
    let (raw, from, to) = unsafe { (id.cast::<Id>(), address(from), address(to)) };
    let Some(to) = to else { return fail(libc::EINVAL) };
    // SAFETY: the caller passes an identifier that it has not destroyed.
    let id = unsafe { state.id(id) };
    let own = match (from, route(to)) {
        (Some(from), _) if !from.ip().is_unspecified() => from.ip(),
        (_, Ok(ip)) => ip,
        (_, Err(e)) => return fail(e.raw_os_error()),
    };
    let context = state.context_of(Some(own));
    if context.is_null() {
        state.tell(raw, RDMA_CM_EVENT_ADDR_ERROR, -libc::ENODEV, &[], core::ptr::null_mut());
        return 0;
    }
    id.cm.verbs = context.cast();
    id.set_addresses(Some(SocketAddr::new(own, from.map_or(0, |a| a.port()))), Some(to));
    state.tell(raw, RDMA_CM_EVENT_ADDR_RESOLVED, 0, &[], core::ptr::null_mut());
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_resolve_route(id: *mut rdma_cm_id, _ms: c_int) -> c_int {
    lock().tell(id.cast(), RDMA_CM_EVENT_ROUTE_RESOLVED, 0, &[], core::ptr::null_mut());
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_qp(id: *mut rdma_cm_id, pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> c_int {
    let mut state = lock();
    // SAFETY: the caller passes an identifier that it has not destroyed, and attributes of its own.
    let (id, init) = unsafe { (state.id(id), &mut *init) };
    init.cap.max_inline_data = init.cap.max_inline_data.min(256);
    let qp_num = state.number() as u32;
    let raw = Box::into_raw(Box::new(ibv_qp {
        context: id.cm.verbs,
        qp_context: init.qp_context,
        pd,
        send_cq: init.send_cq,
        recv_cq: init.recv_cq,
        srq: core::ptr::null_mut(),
        handle: qp_num,
        qp_num,
    }));
    id.cm.qp = raw;
    state.pairs.insert(
        qp_num,
        QueuePair {
            raw,
            id: id.number,
            // SAFETY: the caller's identifier is on a device, whose context is open.
            _note: Note::write(
                "qp",
                qp_num.into(),
                &unsafe { &*id.cm.verbs.cast::<Context>() }.name(),
                ", \"type\": \"RC\"",
            ),
            state: IBV_QPS_INIT,
            cap: init.cap,
            all_signaled: init.sq_sig_all != 0,
            sends: VecDeque::new(),
            receives: VecDeque::new(),
        },
    );
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_destroy_qp(id: *mut rdma_cm_id) {
    let mut state = lock();
    // SAFETY: the caller passes an identifier that it has not destroyed; its pair came from `rdma_create_qp`.
    unsafe {
        let id = state.id(id);
        if !id.cm.qp.is_null() {
            state.pairs.remove(&(*id.cm.qp).qp_num);
            drop(Box::from_raw(id.cm.qp));
            id.cm.qp = core::ptr::null_mut();
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    let mut state = lock();
    // SAFETY: the caller passes an identifier that it has not destroyed.
    let id = unsafe { state.id(id) };
    let Some(at) = id.local else { return fail(libc::EINVAL) };
    let listening = || {
        let socket = tcp(at)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        if at.is_ipv6() {
            sockopt::set_ipv6_v6only(&socket, id.v6_only)?;
        }
        rustix::net::bind(&socket, &at)?;
        rustix::net::listen(&socket, backlog.max(1))?;
        Ok(socket)
    };
    match listening() {
        Ok(socket) => {
            let own: Option<SocketAddr> = rustix::net::getsockname(&socket).ok().and_then(|a| a.try_into().ok());
            id.set_addresses(own, None);
            (id.socket, id.phase) = (Some(socket), Phase::Listening);
            let at = own.map(|a| format!(", \"state\": \"LISTEN\", \"src-addr\": \"{}:{}\"", a.ip(), a.port()));
            // SAFETY: the pointer is null or leads to an open context.
            let device = unsafe { id.cm.verbs.cast::<Context>().as_ref() }.map_or_else(String::new, Context::name);
            id.note = Some(Note::write("cm_id", id.number, &device, &at.unwrap_or_default()));
            let number = id.number;
            state.watch(number, EventFlags::IN);
            0
        }
        Err(e) => done(Err(e)),
    }
}

/// A copy of the private data in the program's parameters.
///
/// # Safety
/// `param` is null or points to parameters whose private data has the length that they say.
unsafe fn private_data(param: *mut rdma_conn_param) -> Vec<u8> {
    // SAFETY: the caller guarantees that the pointer is null or leads to parameters with that many bytes of private
    // data.
    unsafe {
        match param.as_ref() {
            Some(param) if !param.private_data.is_null() => {
                core::slice::from_raw_parts(param.private_data.cast::<u8>(), param.private_data_len.into()).to_vec()
            }
            _ => Vec::new(),
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_connect(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    let mut state = lock();
    // SAFETY: the caller passes an identifier that it has not destroyed, and parameters or null.
    let (id, data) = unsafe { (state.id(id), private_data(param)) };
    let (Some(local), Some(peer)) = (id.local, id.peer) else { return fail(libc::EINVAL) };
    let begun = || {
        let socket = tcp(peer)?;
        rustix::net::bind(&socket, &local)?;
        match rustix::net::connect(&socket, &peer) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(e) => return Err(e),
        }
        Ok(socket)
    };
    match begun() {
        Ok(socket) => {
            let own: Option<SocketAddr> = rustix::net::getsockname(&socket).ok().and_then(|a| a.try_into().ok());
            id.set_addresses(own, None);
            (id.request, id.socket, id.phase) = (data, Some(socket), Phase::Connecting);
            let number = id.number;
            state.watch(number, EventFlags::OUT);
            0
        }
        Err(e) => done(Err(e)),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_accept(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    let mut state = lock();
    // SAFETY: the caller passes an identifier that it has not destroyed, and parameters or null.
    let (raw, id, data) = unsafe { (id.cast::<Id>(), state.id(id), private_data(param)) };
    if id.phase != Phase::Asked {
        // The other side has gone since it asked.
        state.tell(raw, RDMA_CM_EVENT_CONNECT_ERROR, -libc::ECONNRESET, &[], core::ptr::null_mut());
        return 0;
    }
    let pair = state.pair_of(id);
    if let Some(pair) = state.pairs.get_mut(&pair) {
        pair.state = IBV_QPS_RTS;
    }
    id.phase = Phase::Accepted;
    state.write(id.number, &Frame { len: data.len() as u32, ..Frame::bare(Kind::Accept) }, &data);
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_reject(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> c_int {
    let mut state = lock();
    // SAFETY: the caller passes an identifier that it has not destroyed, and null or that many bytes.
    let (id, data) = unsafe {
        let data = if data.is_null() { &[][..] } else { core::slice::from_raw_parts(data.cast::<u8>(), len.into()) };
        (state.id(id), data)
    };
    if id.phase == Phase::Asked {
        state.write(id.number, &Frame { len: data.len() as u32, ..Frame::bare(Kind::Reject) }, data);
        id.phase = Phase::Ended;
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
    let mut state = lock();
    let raw = id.cast::<Id>();
    // SAFETY: the caller passes an identifier that it has not destroyed.
    let id = unsafe { state.id(id) };
    if id.left {
        return fail(libc::EINVAL);
    }
    id.left = true;
    let (pair, number) = (state.pair_of(id), id.number);
    state.flush(pair, IBV_WC_WR_FLUSH_ERR);
    if matches!(id.phase, Phase::Connected | Phase::Accepted) && id.socket.is_some() {
        state.write(number, &Frame::bare(Kind::Disconnect), &[]);
    } else if !id.told {
        id.told = true;
        state.tell(raw, RDMA_CM_EVENT_DISCONNECTED, 0, &[], core::ptr::null_mut());
    }
    0
}
