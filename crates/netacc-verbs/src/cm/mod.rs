//! The RDMA connection manager.
//!
//! **A device that is removed** is only gone when every process has let go of it; until then its connections
//! may go on carrying messages. Identifiers on it get `DEVICE_REMOVAL`: look for events also while a
//! connection is busy. Drop the identifier and everything made on its context, then call
//! [`release_removed_devices`].
#![allow(unsafe_code)]

use crate::error::{Error, Result};
use crate::load::api;

mod channel;
mod event;
mod id;

pub use channel::EventChannel;
pub use event::{CmEvent, CmEventType, PrivateData};
pub use id::{CmId, ConnParam};

/// Bytes of private data that a connect request can carry on any transport (InfiniBand's limit).
pub const CONNECT_PRIVATE_DATA: usize = 56;
/// The same for the answer that accepts.
pub const ACCEPT_PRIVATE_DATA: usize = 196;
/// The same for the answer that rejects.
pub const REJECT_PRIVATE_DATA: usize = 148;

/// Has librdmacm close the contexts of devices that the kernel no longer lists, as far as nothing of ours is on them.
/// librdmacm keeps them open otherwise, and their removal waits for the end of the process. It does not notice
/// that the last device of a host is gone: this fails with `ENODEV` then, and the removal waits all the same.
pub fn release_removed_devices() -> Result<()> {
    let cma = &api()?.cma;
    // SAFETY: the number is not wanted; the list is given back at once. Asking for it is what makes it look.
    unsafe {
        let list = (cma.rdma_get_devices)(core::ptr::null_mut());
        if list.is_null() {
            return Err(Error::last("rdma_get_devices"));
        }
        (cma.rdma_free_devices)(list);
    }
    Ok(())
}
