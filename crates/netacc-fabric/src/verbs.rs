//! The functions of libibverbs.

use crate::channel::{Channel, descriptor, raised, ready};
use crate::device::{self, Described, page};
use crate::fail;
use crate::queue::{Armed, CompQueue};
use crate::state::{Context, Device, Locked, State, lock};
use core::ffi::{c_char, c_int, c_uint, c_void};
use core::net::IpAddr;
use netacc_verbs::sys::*;
use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::fs::{Mode, OFlags};
use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;

fn copy_name(to: &mut [c_char], name: &str) {
    let last = to.len() - 1;
    for (to, from) in to.iter_mut().take(last).zip(name.bytes()) {
        *to = from as c_char;
    }
}

fn device_named(described: &Described) -> Device {
    let mut verbs = ibv_device {
        _ops: [core::ptr::null_mut(); 2],
        node_type: if described.iwarp { IBV_NODE_RNIC } else { IBV_NODE_CA },
        transport_type: if described.iwarp { IBV_TRANSPORT_IWARP } else { IBV_TRANSPORT_IB },
        name: [0; 64],
        dev_name: [0; 64],
        dev_path: [0; 256],
        ibdev_path: [0; 256],
    };
    copy_name(&mut verbs.name, &described.name);
    copy_name(&mut verbs.dev_name, &described.name);
    Device { verbs }
}

impl Context {
    /// The device's name.
    pub fn name(&self) -> String {
        let bytes = self.device.verbs.name.iter().take_while(|c| **c != 0).map(|c| *c as u8).collect();
        String::from_utf8(bytes).unwrap_or_default()
    }
}

impl State {
    /// The context that librdmacm uses for the device of an address; null if no device has it or it cannot be opened.
    pub fn context_of(&mut self, address: Option<IpAddr>) -> *mut Context {
        let Some(address) = address.map(|a| a.to_canonical()) else { return core::ptr::null_mut() };
        match device::all().into_iter().find(|d| d.addresses.contains(&address)) {
            Some(described) => self.cm_context(&described),
            None => core::ptr::null_mut(),
        }
    }

    /// The one context of a device that librdmacm uses for all identifiers.
    pub fn cm_context(&mut self, described: &Described) -> *mut Context {
        // SAFETY: the contexts are listed, so they exist, and the lock is held.
        let known = self
            .contexts
            .iter()
            .find(|c| unsafe { (***c).is_cm && !(***c).removed && (***c).name() == described.name });
        match known {
            Some(context) => *context,
            None => self.open(described, true),
        }
    }

    fn open(&mut self, described: &Described, is_cm: bool) -> *mut Context {
        let null = core::ptr::null_mut();
        let path = device::folder().join("devices").join(&described.name);
        let (Some(page), Some(async_fd), Ok(commands)) = (
            page(&described.name),
            descriptor(),
            rustix::fs::open(path.as_os_str().as_bytes(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()),
        ) else {
            return null;
        };
        let commands = raised(commands);
        // SAFETY: the table consists of optional function addresses, for which null is `None`.
        let mut ops: ibv_context_ops = unsafe { core::mem::zeroed() };
        ops.poll_cq = Some(poll_cq);
        ops.req_notify_cq = Some(req_notify_cq);
        ops.post_send = Some(post_send);
        ops.post_recv = Some(post_recv);
        let context = Box::into_raw(Box::new(Context {
            verbs: ibv_context {
                device: null.cast(),
                ops,
                cmd_fd: commands.as_raw_fd(),
                async_fd,
                num_comp_vectors: 2,
            },
            device: device_named(described),
            page,
            says: Channel::new(core::ptr::null()),
            regions: HashMap::new(),
            is_cm,
            iwarp: described.iwarp,
            removed: false,
        }));
        // From here on the structure owns the descriptor, whose number the program may change.
        core::mem::forget(commands);
        // SAFETY: the context was just made, and it may refer to itself because it is never moved.
        unsafe {
            (*context).verbs.device = (&raw mut (*context).device).cast();
            (*context).says = Channel::new(&raw const (*context).verbs.async_fd);
        }
        self.contexts.push(context);
        context
    }

    /// Closes a context.
    pub fn close(&mut self, context: *mut Context) {
        self.contexts.retain(|c| *c != context);
        // SAFETY: the context came from `open`, and no object is on it any more.
        unsafe {
            rustix::io::close((*context).verbs.cmd_fd);
            rustix::io::close((*context).verbs.async_fd);
            drop(Box::from_raw(context));
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    let mut list: Vec<*mut ibv_device> =
        device::all().iter().map(|d| Box::into_raw(Box::new(device_named(d))).cast()).collect();
    // SAFETY: the pointer is null or leads to a number of the caller's.
    if let Some(count) = unsafe { count.as_mut() } {
        *count = list.len() as c_int;
    }
    list.push(core::ptr::null_mut());
    Box::into_raw(list.into_boxed_slice()).cast()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_free_device_list(_list: *mut *mut ibv_device) {
    // The few bytes of a list and its devices are leaked.
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    // SAFETY: the device came from a list, and its memory is never freed.
    let name: String = unsafe { (*device).name }.iter().take_while(|c| **c != 0).map(|c| *c as u8 as char).collect();
    match device::all().iter().find(|d| d.name == name) {
        Some(described) => lock().open(described, false).cast(),
        None => {
            fail(libc::ENODEV);
            core::ptr::null_mut()
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    lock().close(context.cast());
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_device(_context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int {
    // SAFETY: the caller has room for the structure, which consists of numbers.
    let attr = unsafe {
        attr.write_bytes(0, 1);
        &mut *attr
    };
    (attr.max_qp, attr.max_qp_wr, attr.max_sge) = (65536, 16384, 16);
    (attr.max_cq, attr.max_cqe, attr.max_mr, attr.max_pd) = (65536, 1 << 20, 1 << 20, 65536);
    (attr.max_mr_size, attr.phys_port_cnt) = (u64::MAX, 1);
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_port(_context: *mut ibv_context, _port: u8, attr: *mut ibv_port_attr) -> c_int {
    // SAFETY: the caller has room for the structure.
    unsafe {
        *attr = ibv_port_attr {
            state: IBV_PORT_ACTIVE,
            max_mtu: IBV_MTU_4096,
            active_mtu: IBV_MTU_4096,
            max_msg_sz: 1 << 30,
            link_layer: IBV_LINK_LAYER_ETHERNET,
            ..ibv_port_attr::default()
        };
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int {
    let context = context.cast::<Context>();
    // SAFETY: the caller passes an open context.
    let found = waited(|_| Some(unsafe { &mut (*context).says }));
    match found {
        Some(found) => {
            // SAFETY: the caller has room for the event.
            unsafe { *event = found };
            0
        }
        None => fail(libc::EAGAIN),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_async_event(_event: *mut ibv_async_event) {}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    Box::into_raw(Box::new(ibv_pd { context }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: the domain came from `ibv_alloc_pd` and is freed once.
    drop(unsafe { Box::from_raw(pd) });
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, _access: c_int) -> *mut ibv_mr {
    let mut state = lock();
    let key = state.number() as u32;
    // SAFETY: the caller passes a domain of an open context, and the lock is held.
    unsafe {
        let context = (*pd).context;
        (*context.cast::<Context>()).regions.insert(key, (addr as usize, length));
        Box::into_raw(Box::new(ibv_mr { context, pd, addr, length, handle: key, lkey: key, rkey: key }))
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    let _state = lock();
    // SAFETY: the region came from `ibv_reg_mr`, its context is open, and the lock is held.
    unsafe {
        (*(*mr).context.cast::<Context>()).regions.remove(&(*mr).lkey);
        drop(Box::from_raw(mr));
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    let Some(fd) = descriptor() else {
        fail(libc::EMFILE);
        return core::ptr::null_mut();
    };
    let channel = Box::into_raw(Box::new(ibv_comp_channel { context, fd }));
    // SAFETY: the channel was just made, and only the address of its field is taken.
    lock().completions.insert(channel as usize, Channel::new(unsafe { &raw const (*channel).fd }));
    channel
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    lock().completions.remove(&(channel as usize));
    // SAFETY: the channel came from `ibv_create_comp_channel` and is destroyed once.
    unsafe {
        rustix::io::close((*channel).fd);
        drop(Box::from_raw(channel));
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    _vector: c_int,
) -> *mut ibv_cq {
    let cq = Box::into_raw(Box::new(ibv_cq { context, channel, cq_context, handle: 0, cqe }));
    let queue = CompQueue { channel: channel as usize, room: cqe.max(1) as usize, ..CompQueue::default() };
    lock().queues.insert(cq as usize, queue);
    cq
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    let mut state = lock();
    state.queues.remove(&(cq as usize));
    for channel in state.completions.values_mut() {
        channel.retain(|waits| *waits == cq);
    }
    // SAFETY: the queue came from `ibv_create_cq`, and no list or event refers to it any more.
    drop(unsafe { Box::from_raw(cq) });
    0
}

/// Takes an event off a channel, and waits for one if the channel's descriptor is blocking.
pub fn waited<'a, T: 'a>(mut channel: impl FnMut(&mut Locked) -> Option<&'a mut Channel<T>>) -> Option<T> {
    loop {
        let mut state = lock();
        let channel = channel(&mut state)?;
        if let Some(event) = channel.pop() {
            return Some(event);
        }
        if !channel.blocks() {
            return None;
        }
        let fd = channel.number();
        drop(state);
        // SAFETY: the descriptor is the channel's, which its user does not destroy while a thread waits on it.
        ready(unsafe { BorrowedFd::borrow_raw(fd) }, -1);
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    loop {
        let mut state = lock();
        let Some(found) = state.completions.get_mut(&(channel as usize)) else { return fail(libc::EINVAL) };
        if let Some(event) = found.pop() {
            // SAFETY: the caller has room for both answers, and a queue that has an event exists.
            unsafe { (*cq, *cq_context) = (event, (*event).cq_context) };
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
unsafe extern "C" fn ibv_ack_cq_events(_cq: *mut ibv_cq, _count: c_uint) {}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: the caller passes a queue pair that exists, and attributes of its own.
    let (number, state) = unsafe { ((*qp).qp_num, (*attr).qp_state) };
    if mask & IBV_QP_STATE != 0 && state == IBV_QPS_ERR {
        lock().flush(number, IBV_WC_WR_FLUSH_ERR);
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _mask: c_int,
    _init: *mut ibv_qp_init_attr,
) -> c_int {
    let state = lock();
    // SAFETY: the caller passes a queue pair that exists, and has room for the attributes.
    unsafe { (*attr).qp_state = state.pairs.get(&(*qp).qp_num).map_or(IBV_QPS_ERR, |pair| pair.state) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_fork_init() -> c_int {
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_is_fork_initialized() -> c_uint {
    IBV_FORK_UNNEEDED
}

unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, room: c_int, wc: *mut ibv_wc) -> c_int {
    let mut state = lock();
    let Some(queue) = state.queues.get_mut(&(cq as usize)) else { return -libc::EINVAL };
    let mut n = 0;
    while n < room
        && let Some(entry) = queue.entries.pop_front()
    {
        // SAFETY: the caller has room for `room` completions.
        unsafe { *wc.offset(n as isize) = entry };
        n += 1;
    }
    n
}

unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited: c_int) -> c_int {
    let mut state = lock();
    let Some(queue) = state.queues.get_mut(&(cq as usize)) else { return libc::EINVAL };
    // A queue that is armed for all completions stays so.
    queue.armed = if solicited != 0 && queue.armed != Armed::All { Armed::Solicited } else { Armed::All };
    0
}

unsafe extern "C" fn post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr) -> c_int {
    let mut state = lock();
    let mut at = wr;
    // SAFETY: the caller's list ends in a null, and `bad` is room for the address of the request that is refused.
    unsafe {
        let number = (*qp).qp_num;
        while let Some(request) = at.as_ref() {
            if let Err(errno) = state.send(number, request) {
                *bad = at;
                return errno;
            }
            at = request.next;
        }
    }
    0
}

unsafe extern "C" fn post_recv(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> c_int {
    let mut state = lock();
    let mut at = wr;
    // SAFETY: the caller's list ends in a null, and `bad` is room for the address of the request that is refused.
    unsafe {
        let (number, cq) = ((*qp).qp_num, (*qp).recv_cq);
        while let Some(request) = at.as_ref() {
            let Some(pair) = state.pairs.get_mut(&number) else { return libc::EINVAL };
            if pair.receives.len() >= pair.cap.max_recv_wr as usize || request.num_sge != 1 {
                *bad = at;
                return libc::ENOMEM;
            }
            if pair.state == IBV_QPS_ERR {
                let status = IBV_WC_WR_FLUSH_ERR;
                let wc =
                    ibv_wc { wr_id: request.wr_id, status, opcode: IBV_WC_RECV, qp_num: number, ..ibv_wc::default() };
                state.complete(cq, wc, false);
            } else {
                pair.receives.push_back((request.wr_id, *request.sg_list));
            }
            at = request.next;
        }
    }
    0
}
