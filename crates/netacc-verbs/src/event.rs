//! Asynchronous events of a device (ibv_get_async_event(3)).
//!
//! # Safety
//! An event's pointers are valid until it is acknowledged, and they are read before that.
#![allow(unsafe_code)]

use crate::context::Context;
use crate::error::{Error, Result, static_text};
use crate::load::loaded;
use crate::sys::*;
use core::fmt;
use netacc_sys::Errno;

/// The kind of an event: one of `IBV_EVENT_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncEventType(pub u32);

impl AsyncEventType {
    /// Whether the element of the event cannot be used any more.
    pub fn is_error(self) -> bool {
        matches!(
            self.0,
            IBV_EVENT_CQ_ERR
                | IBV_EVENT_QP_FATAL
                | IBV_EVENT_QP_REQ_ERR
                | IBV_EVENT_QP_ACCESS_ERR
                | IBV_EVENT_DEVICE_FATAL
        )
    }
}

impl fmt::Display for AsyncEventType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match loaded() {
            // SAFETY: the function takes any number.
            Some(api) => f.write_str(static_text(unsafe { (api.verbs.ibv_event_type_str)(self.0) })),
            None => write!(f, "event {}", self.0),
        }
    }
}

/// The element of a device that an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// The device as a whole; everything on it fails from now on.
    Device,
    /// A port, by its number.
    Port(u32),
    /// A completion queue, by the cookie with which it was made.
    Cq(u64),
    /// A queue pair, by its number.
    Qp(u32),
    /// An element of a type that this crate does not make.
    Other,
}

/// An event of a device, already acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncEvent {
    /// What happened.
    pub event_type: AsyncEventType,
    /// The element that it happened to.
    pub element: Element,
}

impl Context {
    /// Takes the next event (`ibv_get_async_event`); `None` if there is none and [`Context::async_fd`] is non-blocking.
    pub fn get_async_event(&self) -> Result<Option<AsyncEvent>> {
        let verbs = &self.api().verbs;
        let mut event = ibv_async_event { element: ibv_async_element { port_num: 0 }, event_type: 0 };
        // SAFETY: the context is open, and `event` is room for the event.
        if unsafe { (verbs.ibv_get_async_event)(self.raw(), &raw mut event) } != 0 {
            let error = Error::last("ibv_get_async_event");
            return if error.errno() == Errno::AGAIN { Ok(None) } else { Err(error) };
        }
        let element = element(&event);
        // SAFETY: the event was got above, and nothing uses it after this call.
        unsafe { (verbs.ibv_ack_async_event)(&raw mut event) };
        Ok(Some(AsyncEvent { event_type: AsyncEventType(event.event_type), element }))
    }
}

fn element(event: &ibv_async_event) -> Element {
    // SAFETY: the type says which member of the union is set; its object is not freed before the event is acknowledged.
    unsafe {
        match event.event_type {
            IBV_EVENT_CQ_ERR => Element::Cq((*event.element.cq).cq_context.addr() as u64),
            IBV_EVENT_QP_FATAL..=IBV_EVENT_PATH_MIG_ERR | IBV_EVENT_QP_LAST_WQE_REACHED => {
                Element::Qp((*event.element.qp).qp_num)
            }
            IBV_EVENT_DEVICE_FATAL => Element::Device,
            IBV_EVENT_PORT_ACTIVE..=IBV_EVENT_SM_CHANGE | IBV_EVENT_CLIENT_REREGISTER | IBV_EVENT_GID_CHANGE => {
                Element::Port(u32::try_from(event.element.port_num).unwrap_or(0))
            }
            _ => Element::Other,
        }
    }
}
