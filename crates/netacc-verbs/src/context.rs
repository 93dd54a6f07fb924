//! A device opened by this process.
//!
//! # Safety
//! The pointer is valid until the context is closed, which is when the last clone is dropped; everything
//! made from a context holds a clone. The library itself allows calls from several threads.
#![allow(unsafe_code)]

use crate::error::{Error, Result, check};
use crate::fd::{self, RawFd};
use crate::load::{Api, api, lossy};
use crate::sys::*;
use alloc::sync::Arc;
use core::ffi::{CStr, c_int};
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, Ordering};
use netacc_sys::{Errno, Lock, lock_rank, reserved_fds};

/// Lock of the thread that changes the numbers of a context's descriptors.
static RAISING: Lock<{ lock_rank::LEAF }> = Lock::new();

/// The protocol by which a device's messages travel (`enum ibv_transport_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// InfiniBand or RoCE.
    Ib,
    /// iWARP, as eRDMA and siw have it. The connecting side must send first, and a message that finds no
    /// receive posted ends the connection.
    Iwarp,
    /// Any other transport; NetACC cannot use its queue pairs.
    Other,
}

impl Transport {
    pub(crate) fn from_raw(transport_type: c_int) -> Transport {
        match transport_type {
            IBV_TRANSPORT_IB => Transport::Ib,
            IBV_TRANSPORT_IWARP => Transport::Iwarp,
            _ => Transport::Other,
        }
    }
}

/// A device opened by this process (`struct ibv_context`). A clone is the same context.
#[derive(Clone, Debug)]
pub struct Context(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    api: &'static Api,
    raw: NonNull<ibv_context>,
    owner: Owner,
}

/// Which library call closes a context.
#[derive(Debug)]
enum Owner {
    /// We opened the context and close it ourselves.
    Us,
    /// librdmacm owns the context: it keeps one per device for all its identifiers. While we hold this list of
    /// its devices, it does not close them. The pointer is never null.
    Cma(AtomicPtr<*mut ibv_context>),
}

// SAFETY: libibverbs is thread-safe: several threads may use one context at once. Our own fields do not change or are
// atomic.
unsafe impl Send for Inner {}
// SAFETY: libibverbs is thread-safe: several threads may use one context at once. Our own fields do not change or are
// atomic.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        match self.owner {
            // SAFETY: we opened the context, and nothing made from it is left, since that would hold a clone. There is
            // nothing to do about an error.
            Owner::Us => unsafe {
                reserved_fds::give_back((*self.raw.as_ptr()).cmd_fd);
                reserved_fds::give_back((*self.raw.as_ptr()).async_fd);
                let _ = (self.api.verbs.ibv_close_device)(self.raw.as_ptr());
            },
            // SAFETY: the list came from rdma_get_devices and is given back once, here.
            Owner::Cma(ref list) => unsafe { (self.api.cma.rdma_free_devices)(list.load(Ordering::Acquire)) },
        }
    }
}

impl Context {
    pub(crate) fn opened(api: &'static Api, raw: NonNull<ibv_context>) -> Context {
        Context(Arc::new(Inner { api, raw, owner: Owner::Us }))
    }

    /// The context that librdmacm uses for a device, kept open until the result is dropped.
    pub(crate) fn of_cma(raw: NonNull<ibv_context>) -> Result<Context> {
        let api = api()?;
        // SAFETY: the function takes null for a number that is not wanted.
        let list = unsafe { (api.cma.rdma_get_devices)(core::ptr::null_mut()) };
        let list = NonNull::new(list).ok_or_else(|| Error::last("rdma_get_devices"))?;
        let context = Context(Arc::new(Inner { api, raw, owner: Owner::Cma(AtomicPtr::new(list.as_ptr())) }));
        // A device that is being removed is no longer on the list, so the list does not hold it.
        if context.holds(list) { Ok(context) } else { Err(Error::NoDevice) }
    }

    /// Lets librdmacm close devices that were removed: the list that we hold keeps all of its devices open, not only
    /// ours, and is replaced by a new one without the removed ones. Returns false if our own device was removed.
    pub fn forget_removed_devices(&self) -> bool {
        let Owner::Cma(held) = &self.0.owner else { return true };
        // SAFETY: the function takes null for a number that is not wanted.
        let list = unsafe { (self.0.api.cma.rdma_get_devices)(core::ptr::null_mut()) };
        let Some(fresh) = NonNull::new(list) else {
            return Error::last("rdma_get_devices").errno() != Errno::NODEV;
        };
        let there = self.holds(fresh);
        // A list without our own device would not keep it open, so the old list stays then.
        let old = if there { held.swap(fresh.as_ptr(), Ordering::AcqRel) } else { fresh.as_ptr() };
        // SAFETY: `old` came from rdma_get_devices, and nothing refers to it any more.
        unsafe { (self.0.api.cma.rdma_free_devices)(old) };
        there
    }

    fn holds(&self, list: NonNull<*mut ibv_context>) -> bool {
        let mut at = list.as_ptr();
        // SAFETY: the list is an array of pointers that ends in a null, and the caller holds it.
        unsafe {
            while !(*at).is_null() {
                if *at == self.raw() {
                    return true;
                }
                at = at.add(1);
            }
        }
        false
    }

    pub(crate) fn raw(&self) -> *mut ibv_context {
        self.0.raw.as_ptr()
    }

    pub(crate) fn api(&self) -> &'static Api {
        self.0.api
    }

    fn device(&self) -> &ibv_device {
        // SAFETY: an open context keeps its device, and the fields that we read of both are set once.
        unsafe { &*(*self.raw()).device }
    }

    /// Whether both are the same context: objects of different contexts cannot be used together, even on one device.
    pub fn same(&self, other: &Context) -> bool {
        self.0.raw == other.0.raw
    }

    /// The device's name, as in `/sys/class/infiniband`.
    pub fn name(&self) -> &str {
        // SAFETY: the library terminates the name within its array.
        lossy(unsafe { CStr::from_ptr(self.device().name.as_ptr()) })
    }

    /// The protocol by which the device's messages travel.
    pub fn transport(&self) -> Transport {
        Transport::from_raw(self.device().transport_type)
    }

    /// How many completion vectors there are to choose from.
    pub fn num_comp_vectors(&self) -> u32 {
        // SAFETY: the context is open until its last clone is dropped.
        u32::try_from(unsafe { (*self.raw()).num_comp_vectors }).unwrap_or(1)
    }

    /// The descriptor that is readable when [`Context::get_async_event`] has an event.
    pub fn async_fd(&self) -> RawFd {
        // SAFETY: the context is open until its last clone is dropped.
        unsafe { (*self.raw()).async_fd }
    }

    /// Sets whether [`Context::get_async_event`] returns at once if there is no event. A caller that polls
    /// [`Context::async_fd`] first needs that: the kernel takes a queue pair's events back when the pair is destroyed,
    /// so a descriptor that was readable may not be any more.
    pub fn set_async_nonblocking(&self, on: bool) -> Result<()> {
        fd::set_nonblocking(self.async_fd(), on)
    }

    /// The descriptor by which the library talks to the kernel. Nothing can be read from it.
    pub fn cmd_fd(&self) -> RawFd {
        // SAFETY: the context is open until its last clone is dropped.
        unsafe { (*self.raw()).cmd_fd }
    }

    /// Moves the context's descriptors to private numbers, where a program that closes every descriptor does not find
    /// them. If librdmacm owns the context, as it does for its identifiers, it cannot close them again before
    /// [`Context::lower_descriptors`].
    pub fn raise_descriptors(&self) {
        let _g = RAISING.lock();
        let raw = self.raw();
        // SAFETY: the context is open. The libraries read the numbers from these fields each time, and only the caller
        // uses the context yet.
        unsafe {
            for fd in [&raw mut (*raw).cmd_fd, &raw mut (*raw).async_fd] {
                if !reserved_fds::is(*fd) {
                    *fd = reserved_fds::raise(*fd);
                }
            }
        }
    }

    /// Allows the library to close the numbers that [`Context::raise_descriptors`] gave it, because it is about to
    /// close the context.
    pub fn lower_descriptors(&self) {
        reserved_fds::give_back(self.cmd_fd());
        reserved_fds::give_back(self.async_fd());
    }

    /// The device's limits (`ibv_query_device`).
    pub fn query_device(&self) -> Result<ibv_device_attr> {
        let mut attr = MaybeUninit::<ibv_device_attr>::zeroed();
        // SAFETY: the context is open, and `attr` is room for the answer.
        check("ibv_query_device", unsafe { (self.0.api.verbs.ibv_query_device)(self.raw(), attr.as_mut_ptr()) })?;
        // SAFETY: the structure consists of plain numbers and was zeroed before the library filled it.
        Ok(unsafe { attr.assume_init() })
    }

    /// A port's state and limits (`ibv_query_port`). Ports are numbered from 1.
    pub fn query_port(&self, port: u8) -> Result<ibv_port_attr> {
        let mut attr = ibv_port_attr::default();
        // SAFETY: the device is open, and `attr` lives until the call returns.
        check("ibv_query_port", unsafe { (self.0.api.verbs.ibv_query_port)(self.raw(), port, &raw mut attr) })?;
        Ok(attr)
    }
}
