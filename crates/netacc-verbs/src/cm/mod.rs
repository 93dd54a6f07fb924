//! The RDMA connection manager.
//!
//! **A device that is removed** is gone only when every process has let go of it; until then its connections
//! may go on carrying messages. Identifiers on it get `DEVICE_REMOVAL`, so look for events even while a
//! connection is busy. Drop the identifier and everything made on its context, then call
//! [`release_removed_devices`].
#![allow(unsafe_code)]

use crate::error::{Error, Result};
use crate::fd::RawFd;
use crate::load::api;
use alloc::vec::Vec;
use netacc_sys::reserved_fds;
use rustix::fd::BorrowedFd;

mod channel;
mod event;
mod id;

pub use channel::EventChannel;
pub use event::{CmEvent, CmEventType, PrivateData};
pub use id::{CmId, ConnParam};

/// Bytes of private data that a connect request can carry on any transport (InfiniBand's limit).
pub const CONNECT_PRIVATE_DATA: usize = 56;
/// Bytes of private data that an acceptance can carry (InfiniBand's limit).
pub const ACCEPT_PRIVATE_DATA: usize = 196;
/// Bytes of private data that a rejection can carry (InfiniBand's limit).
pub const REJECT_PRIVATE_DATA: usize = 148;

/// A device that librdmacm has open, by its descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenDevice {
    commands: RawFd,
    events: RawFd,
    /// The device number of the file behind `commands`, by which a reused descriptor is told.
    file: u64,
}

impl OpenDevice {
    fn of(commands: RawFd, events: RawFd) -> Option<OpenDevice> {
        // SAFETY: the descriptor is used by fstat(2) only, which fails for a number that is not open.
        let found = rustix::fs::fstat(unsafe { BorrowedFd::borrow_raw(commands) }).ok()?;
        Some(OpenDevice { commands, events, file: found.st_rdev })
    }

    /// Its descriptors; `None` if the program has closed them, so that the numbers may be something else by now.
    #[must_use]
    pub fn descriptors(self) -> Option<[RawFd; 2]> {
        (OpenDevice::of(self.commands, self.events) == Some(self)).then_some([self.commands, self.events])
    }

    /// Replaces its descriptors by duplicates of `fd`, so that the kernel sees the device closed. Does nothing if the
    /// program has closed them, so that the numbers may be something else by now.
    pub fn cover(self, fd: RawFd) {
        for ours in self.descriptors().into_iter().flatten() {
            let _ = reserved_fds::replace(ours, fd);
        }
    }
}

/// Makes librdmacm close the contexts of devices that the kernel no longer lists, unless an object of ours is on them,
/// and returns the devices that it then has open. Otherwise librdmacm keeps them open, and their removal waits for the
/// end of the process. It does not notice that the last device of a host is gone: then this fails with `ENODEV`, and
/// the removal still waits, unless the devices that the call before returned are [covered](OpenDevice::cover).
pub fn release_removed_devices() -> Result<Vec<OpenDevice>> {
    let cma = &api()?.cma;
    let mut found = Vec::new();
    // SAFETY: the function takes null for a number that is not wanted. The list is an array of pointers to open
    // contexts that ends in a null; it is used only until it is given back. (Asking for it is what makes librdmacm look
    // for devices.)
    unsafe {
        let list = (cma.rdma_get_devices)(core::ptr::null_mut());
        if list.is_null() {
            return Err(Error::last("rdma_get_devices"));
        }
        let mut at = list;
        while let Some(context) = (*at).as_ref() {
            found.extend(OpenDevice::of(context.cmd_fd, context.async_fd));
            at = at.add(1);
        }
        (cma.rdma_free_devices)(list);
    }
    Ok(found)
}
