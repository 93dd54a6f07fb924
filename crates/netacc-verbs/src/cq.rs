//! Completion queues and the channels that tell of them.
//!
//! # Safety
//! A pointer is valid until the last clone of its object is dropped, as in [`crate::context`]. A queue holds its
//! channel, a queue pair its queues. The operations behind inline functions of the C header are taken from the
//! context's table, as those functions do.
#![allow(unsafe_code)]

use crate::context::Context;
use crate::error::{Error, Result, check};
use crate::fd::{self, RawFd};
use crate::sys::*;
use crate::wc::Wc;
use alloc::sync::Arc;
use core::ffi::{c_int, c_void};
use core::ptr::{self, NonNull};
use netacc_sys::{Errno, reserved_fds};

/// A completion channel (`struct ibv_comp_channel`): a descriptor that becomes readable when an armed
/// queue has something. A clone is the same channel.
#[derive(Clone, Debug)]
pub struct CompChannel(Arc<ChannelInner>);

#[derive(Debug)]
struct ChannelInner {
    raw: NonNull<ibv_comp_channel>,
    context: Context,
}

// SAFETY: libibverbs is thread-safe: several threads may use one object at once.
unsafe impl Send for ChannelInner {}
// SAFETY: libibverbs is thread-safe: several threads may use one object at once.
unsafe impl Sync for ChannelInner {}

impl Drop for ChannelInner {
    fn drop(&mut self) {
        // SAFETY: we made the channel, and its queues are gone, since each held a clone. The library closes the
        // descriptor.
        unsafe {
            reserved_fds::give_back((*self.raw.as_ptr()).fd);
            (self.context.api().verbs.ibv_destroy_comp_channel)(self.raw.as_ptr());
        }
    }
}

impl CompChannel {
    /// A new channel (`ibv_create_comp_channel`).
    pub fn create(context: &Context) -> Result<CompChannel> {
        // SAFETY: the context is open until its last clone is dropped.
        let raw = unsafe { (context.api().verbs.ibv_create_comp_channel)(context.raw()) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last("ibv_create_comp_channel"))?;
        // SAFETY: the channel is new, so nothing uses its descriptor yet; the library reads the number from this field
        // each time.
        unsafe { (*raw.as_ptr()).fd = reserved_fds::raise((*raw.as_ptr()).fd) };
        Ok(CompChannel(Arc::new(ChannelInner { raw, context: context.clone() })))
    }

    /// The descriptor that is readable when there is an event to get.
    pub fn fd(&self) -> RawFd {
        // SAFETY: the channel exists until its last clone is dropped.
        unsafe { (*self.0.raw.as_ptr()).fd }
    }

    /// Sets whether [`CompChannel::get_cq_event`] returns at once if there is no event.
    pub fn set_nonblocking(&self, on: bool) -> Result<()> {
        fd::set_nonblocking(self.fd(), on)
    }

    /// Takes and acknowledges the next event (`ibv_get_cq_event`). It is the cookie of a queue that was armed, has
    /// got a completion, and is no longer armed. `None` if there is none and the channel is non-blocking.
    pub fn get_cq_event(&self) -> Result<Option<u64>> {
        let verbs = &self.0.context.api().verbs;
        let mut cq: *mut ibv_cq = ptr::null_mut();
        let mut cookie: *mut c_void = ptr::null_mut();
        // SAFETY: the channel exists, and `cq` and `cookie` are room for the answers.
        if unsafe { (verbs.ibv_get_cq_event)(self.0.raw.as_ptr(), &raw mut cq, &raw mut cookie) } != 0 {
            let error = Error::last("ibv_get_cq_event");
            return if error.errno() == Errno::AGAIN { Ok(None) } else { Err(error) };
        }
        // SAFETY: the queue is not freed before its event is acknowledged, which happens here.
        unsafe { (verbs.ibv_ack_cq_events)(cq, 1) };
        Ok(Some(cookie.addr() as u64))
    }
}

/// A completion queue (`struct ibv_cq`). A clone is the same queue.
#[derive(Clone, Debug)]
pub struct Cq(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    raw: NonNull<ibv_cq>,
    poll: PollCq,
    arm: ReqNotifyCq,
    context: Context,
    _channel: Option<CompChannel>,
}

// SAFETY: libibverbs is thread-safe: several threads may use one object at once.
unsafe impl Send for Inner {}
// SAFETY: libibverbs is thread-safe: several threads may use one object at once.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: we made the queue, its queue pairs are gone, since each held a clone, and its events are
        // acknowledged.
        unsafe { (self.context.api().verbs.ibv_destroy_cq)(self.raw.as_ptr()) };
    }
}

impl Cq {
    /// A new queue with room for at least `cqe` completions (`ibv_create_cq`). [`CompChannel::get_cq_event`]
    /// names it by `cookie`. `comp_vector` is below [`Context::num_comp_vectors`].
    pub fn create(
        context: &Context,
        cqe: u32,
        cookie: u64,
        channel: Option<&CompChannel>,
        comp_vector: u32,
    ) -> Result<Cq> {
        const VERB: &str = "ibv_create_cq";
        let misuse = |why| Error::Misuse { verb: VERB, why };
        if channel.is_some_and(|c| !c.0.context.same(context)) {
            return Err(misuse("the channel belongs to another device"));
        }
        // SAFETY: the context is open, and its table does not change after it has been opened.
        let ops = unsafe { &(*context.raw()).ops };
        let (Some(poll), Some(arm)) = (ops.poll_cq, ops.req_notify_cq) else {
            return Err(misuse("the provider cannot poll"));
        };
        let cqe = c_int::try_from(cqe).map_err(|_| misuse("too many entries"))?;
        let vector = c_int::try_from(comp_vector).map_err(|_| misuse("no such vector"))?;
        let channel_raw = channel.map_or(ptr::null_mut(), |c| c.0.raw.as_ptr());
        let cookie = ptr::without_provenance_mut(cookie as usize);
        // SAFETY: the context is open, and the channel, if there is one, is of the same context.
        let raw = unsafe { (context.api().verbs.ibv_create_cq)(context.raw(), cqe, cookie, channel_raw, vector) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last(VERB))?;
        Ok(Cq(Arc::new(Inner { raw, poll, arm, context: context.clone(), _channel: channel.cloned() })))
    }

    /// How many completions the queue has room for.
    pub fn cqe(&self) -> usize {
        // SAFETY: the queue exists until its last clone is dropped.
        usize::try_from(unsafe { (*self.raw()).cqe }).unwrap_or(0)
    }

    /// The device that the queue is on.
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    pub(crate) fn raw(&self) -> *mut ibv_cq {
        self.0.raw.as_ptr()
    }

    /// Takes completions into the beginning of `wc`, and returns how many (`ibv_poll_cq`).
    pub fn poll(&self, wc: &mut [Wc]) -> Result<usize> {
        let room = c_int::try_from(wc.len()).unwrap_or(c_int::MAX);
        // SAFETY: the queue exists; `Wc` is a transparent `ibv_wc`, and `wc` has room for that many.
        let n = unsafe { (self.0.poll)(self.raw(), room, wc.as_mut_ptr().cast()) };
        match usize::try_from(n) {
            Ok(n) => Ok(n.min(wc.len())),
            // Some providers return a negated errno, others only -1.
            Err(_) => Err(Error::Verb { verb: "ibv_poll_cq", errno: if n == -1 { Errno::IO } else { Errno(-n) } }),
        }
    }

    /// Arms the queue (`ibv_req_notify_cq`): the next completion puts one event on the channel. Poll
    /// once more afterwards, because a completion that came before the arming has no event. With `solicited_only`
    /// only a message that the sender marked as solicited, or an error, causes the event.
    pub fn req_notify(&self, solicited_only: bool) -> Result<()> {
        // SAFETY: the queue exists until its last clone is dropped.
        check("ibv_req_notify_cq", unsafe { (self.0.arm)(self.raw(), solicited_only.into()) })
    }
}
