//! The channel on which the connection manager's events arrive.
//!
//! # Safety
//! The pointer is valid until the last clone is dropped; every identifier holds a clone.
#![allow(unsafe_code)]

use super::event::{CmEvent, CmEventType};
use super::id::CmId;
use crate::error::{Error, Result};
use crate::fd::{self, RawFd};
use crate::load::{Api, api};
use crate::sys::*;
use alloc::sync::Arc;
use core::ptr::{self, NonNull};
use netacc_sys::{Errno, reserved_fds};

/// An event channel (`struct rdma_event_channel`). A clone is the same channel.
#[derive(Clone, Debug)]
pub struct EventChannel(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    api: &'static Api,
    raw: NonNull<rdma_event_channel>,
}

// SAFETY: librdmacm is thread-safe: several threads may use one channel at once.
unsafe impl Send for Inner {}
// SAFETY: librdmacm is thread-safe: several threads may use one channel at once.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: we made the channel, and no identifier is on it, since each holds a clone. The library closes the
        // descriptor.
        unsafe {
            reserved_fds::give_back((*self.raw.as_ptr()).fd);
            (self.api.cma.rdma_destroy_event_channel)(self.raw.as_ptr());
        }
    }
}

impl EventChannel {
    /// A new channel (`rdma_create_event_channel`).
    pub fn create() -> Result<EventChannel> {
        let api = api()?;
        // SAFETY: the function takes no argument.
        let raw = unsafe { (api.cma.rdma_create_event_channel)() };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last("rdma_create_event_channel"))?;
        // SAFETY: the channel is new, so nothing uses its descriptor yet; the library reads the number from this field
        // each time.
        unsafe { (*raw.as_ptr()).fd = reserved_fds::raise((*raw.as_ptr()).fd) };
        Ok(EventChannel(Arc::new(Inner { api, raw })))
    }

    pub(super) fn api(&self) -> &'static Api {
        self.0.api
    }

    pub(super) fn raw(&self) -> *mut rdma_event_channel {
        self.0.raw.as_ptr()
    }

    /// The descriptor that is readable when there is an event to get.
    pub fn fd(&self) -> RawFd {
        // SAFETY: the channel exists until the last clone is dropped.
        unsafe { (*self.raw()).fd }
    }

    /// Sets whether [`EventChannel::get_event`] returns at once if there is no event.
    pub fn set_nonblocking(&self, on: bool) -> Result<()> {
        fd::set_nonblocking(self.fd(), on)
    }

    /// The next event (`rdma_get_cm_event`); `None` if there is none and the channel is non-blocking.
    pub fn get_event(&self) -> Result<Option<CmEvent>> {
        let cma = &self.0.api.cma;
        let mut raw: *mut rdma_cm_event = ptr::null_mut();
        // SAFETY: the channel exists, and `raw` is room for the event's address.
        if unsafe { (cma.rdma_get_cm_event)(self.raw(), &raw mut raw) } != 0 {
            let error = Error::last("rdma_get_cm_event");
            return if error.errno() == Errno::AGAIN { Ok(None) } else { Err(error) };
        }
        // SAFETY: a successful call has set `raw` to an event that is valid until it is acknowledged.
        let event = unsafe { &*raw };
        // SAFETY: the event is not acknowledged yet.
        let mut copy = unsafe { CmEvent::copy(event) };
        let id = event.id;
        // The acknowledgement comes before the new identifier can be dropped, because its destruction waits for it.
        // SAFETY: the event was got above, and nothing uses it after this call.
        unsafe { (cma.rdma_ack_cm_event)(raw) };
        if copy.event_type == CmEventType::CONNECT_REQUEST {
            // SAFETY: with this event the library hands over a new identifier on this channel, which nobody else has.
            copy.request = NonNull::new(id).map(|id| unsafe { CmId::wrap(id, self.clone()) });
        }
        Ok(Some(copy))
    }
}
