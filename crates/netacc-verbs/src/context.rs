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
use netacc_sys::{Errno, Lock, reserved_fds};

/// What carries a device's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// InfiniBand or RoCE.
    Ib,
    /// iWARP: eRDMA, siw. The connecting side has to send first, and a message that finds no receive
    /// posted ends the connection.
    Iwarp,
    /// Something else, which has no RC queue pairs for us.
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

/// Who closes it.
#[derive(Debug)]
enum Owner {
    /// We do.
    Us,
    /// librdmacm, which keeps one context per device for all its identifiers. This list of its devices
    /// keeps it from doing so as long as we hold it; never null.
    Cma(AtomicPtr<*mut ibv_context>),
}

// SAFETY: see the module's safety note.
unsafe impl Send for Inner {}
// SAFETY: see the module's safety note.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        match self.owner {
            // SAFETY: ours, and nothing made from it is left. An error leaves nothing to be done.
            Owner::Us => unsafe {
                reserved_fds::give_back((*self.raw.as_ptr()).cmd_fd);
                reserved_fds::give_back((*self.raw.as_ptr()).async_fd);
                let _ = (self.api.verbs.ibv_close_device)(self.raw.as_ptr());
            },
            // SAFETY: got from rdma_get_devices.
            Owner::Cma(ref list) => unsafe { (self.api.cma.rdma_free_devices)(list.load(Ordering::Acquire)) },
        }
    }
}

impl Context {
    pub(crate) fn opened(api: &'static Api, raw: NonNull<ibv_context>) -> Context {
        Context(Arc::new(Inner { api, raw, owner: Owner::Us }))
    }

    /// The context that librdmacm uses for a device, held.
    pub(crate) fn of_cma(raw: NonNull<ibv_context>) -> Result<Context> {
        let api = api()?;
        // SAFETY: the number is not wanted.
        let list = unsafe { (api.cma.rdma_get_devices)(core::ptr::null_mut()) };
        let list = NonNull::new(list).ok_or_else(|| Error::last("rdma_get_devices"))?;
        let context = Context(Arc::new(Inner { api, raw, owner: Owner::Cma(AtomicPtr::new(list.as_ptr())) }));
        // A device that is being removed is no longer on the list, so the list does not hold it.
        if context.holds(list) { Ok(context) } else { Err(Error::NoDevice) }
    }

    /// The list of librdmacm's devices that we hold keeps all of them open, not only ours. A newer one does not have those
    /// that were removed since. False: our own was.
    pub fn forget_removed_devices(&self) -> bool {
        let Owner::Cma(held) = &self.0.owner else { return true };
        // SAFETY: the number is not wanted.
        let list = unsafe { (self.0.api.cma.rdma_get_devices)(core::ptr::null_mut()) };
        let Some(fresh) = NonNull::new(list) else {
            return Error::last("rdma_get_devices").errno() != Errno::NODEV;
        };
        let there = self.holds(fresh);
        // One without our own device would not hold it.
        let old = if there { held.swap(fresh.as_ptr(), Ordering::AcqRel) } else { fresh.as_ptr() };
        // SAFETY: got from rdma_get_devices, and nobody has it any more.
        unsafe { (self.0.api.cma.rdma_free_devices)(old) };
        there
    }

    fn holds(&self, list: NonNull<*mut ibv_context>) -> bool {
        let mut at = list.as_ptr();
        // SAFETY: an array of pointers that ends in a null.
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
        // SAFETY: an open context keeps its device; both fields are set once.
        unsafe { &*(*self.raw()).device }
    }

    /// Whether both are the same open device; objects of different contexts do not go together.
    pub fn same(&self, other: &Context) -> bool {
        self.0.raw == other.0.raw
    }

    /// The device's name, as in `/sys/class/infiniband`.
    pub fn name(&self) -> &str {
        // SAFETY: the library terminates the name within its array.
        lossy(unsafe { CStr::from_ptr(self.device().name.as_ptr()) })
    }

    /// What carries the device's messages.
    pub fn transport(&self) -> Transport {
        Transport::from_raw(self.device().transport_type)
    }

    /// How many completion vectors there are to choose from.
    pub fn num_comp_vectors(&self) -> u32 {
        // SAFETY: an open context.
        u32::try_from(unsafe { (*self.raw()).num_comp_vectors }).unwrap_or(1)
    }

    /// Where [`Context::get_async_event`] has something to say: readable then.
    pub fn async_fd(&self) -> RawFd {
        // SAFETY: an open context.
        unsafe { (*self.raw()).async_fd }
    }

    /// Whether [`Context::get_async_event`] waits for an event. A caller that polls [`Context::async_fd`] first wants
    /// it not to: the kernel takes a queue pair's events back when the pair is destroyed, so that what was readable
    /// need not be any more.
    pub fn set_async_nonblocking(&self, on: bool) -> Result<()> {
        fd::set_nonblocking(self.async_fd(), on)
    }

    /// Where the library talks to the kernel. Nothing is to be read from it.
    pub fn cmd_fd(&self) -> RawFd {
        // SAFETY: an open context.
        unsafe { (*self.raw()).cmd_fd }
    }

    /// Moves the context's descriptors to private numbers, where a program that closes "everything" does not find them.
    /// Where librdmacm holds the context, as it does those of its identifiers, the library cannot close them any more
    /// before [`Context::lower_descriptors`].
    pub fn raise_descriptors(&self) {
        static ONE_AT_A_TIME: Lock = Lock::new();
        let _g = ONE_AT_A_TIME.lock();
        let raw = self.raw();
        // SAFETY: an open context. The libraries look the numbers up here each time; the caller is the only one to use it yet.
        unsafe {
            for fd in [&raw mut (*raw).cmd_fd, &raw mut (*raw).async_fd] {
                if !reserved_fds::is(*fd) {
                    *fd = reserved_fds::raise(*fd);
                }
            }
        }
    }

    /// The library is about to close the context: it may close the numbers that [`Context::raise_descriptors`] gave it.
    pub fn lower_descriptors(&self) {
        reserved_fds::give_back(self.cmd_fd());
        reserved_fds::give_back(self.async_fd());
    }

    /// The device's limits (`ibv_query_device`).
    pub fn query_device(&self) -> Result<ibv_device_attr> {
        let mut attr = MaybeUninit::<ibv_device_attr>::zeroed();
        // SAFETY: an open context and room for the answer.
        check("ibv_query_device", unsafe { (self.0.api.verbs.ibv_query_device)(self.raw(), attr.as_mut_ptr()) })?;
        // SAFETY: zeroed before it was filled; plain numbers.
        Ok(unsafe { attr.assume_init() })
    }

    /// A port's state and limits (`ibv_query_port`); ports count from 1.
    pub fn query_port(&self, port: u8) -> Result<ibv_port_attr> {
        let mut attr = ibv_port_attr::default();
        // SAFETY: the device is open, and `attr` lives until the call returns.
        check("ibv_query_port", unsafe { (self.0.api.verbs.ibv_query_port)(self.raw(), port, &raw mut attr) })?;
        Ok(attr)
    }
}
