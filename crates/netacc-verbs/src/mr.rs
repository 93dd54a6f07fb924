//! Registered memory.
//!
//! # Safety
//! A region owns its mapping and unmaps it only after the device has let go of it (`ibv_dereg_mr`). The
//! device may write to it at any time, so no Rust reference into it is ever made: bytes are copied in and
//! out through raw pointers, and reading what the device is just writing gives some mixture of bytes.
#![allow(unsafe_code)]

use crate::error::{Error, Result};
use crate::pd::Pd;
use crate::sys::{IBV_ACCESS_LOCAL_WRITE, ibv_mr};
use crate::wr::Sge;
use core::ptr::NonNull;
use netacc_sys::{Errno, mem};
use rustix::mm::{Advice, madvise};
use rustix::process::{Resource, getrlimit};

/// A memory region (`struct ibv_mr`) of memory of its own, for sending from and receiving into. Nothing
/// on the other side can name it: it has local access only.
#[derive(Debug)]
pub struct Mr {
    raw: NonNull<ibv_mr>,
    memory: NonNull<u8>,
    len: usize,
    pd: Pd,
}

// SAFETY: the library allows calls from several threads; for the bytes see the module's safety note.
unsafe impl Send for Mr {}
// SAFETY: the library allows calls from several threads; for the bytes see the module's safety note.
unsafe impl Sync for Mr {}

impl Drop for Mr {
    fn drop(&mut self) {
        // SAFETY: ours; requests that still name its key fail in the device.
        let gone = unsafe { (self.pd.context().api().verbs.ibv_dereg_mr)(self.raw.as_ptr()) } == 0;
        // Where the kernel does not know the region as ours (the child of a fork), nobody can say whether a device
        // still writes there.
        if gone {
            // SAFETY: mapped by `register`, and no longer the device's.
            unsafe { mem::unmap(self.memory, self.len) };
        }
    }
}

impl Mr {
    /// Maps `len` zeroed bytes and registers them (`ibv_reg_mr`).
    pub fn register(pd: &Pd, len: usize) -> Result<Mr> {
        let memory = mem::map(len).map_err(|errno| Error::Verb { verb: "mmap", errno })?;
        let verbs = &pd.context().api().verbs;
        // SAFETY: a domain and memory of that length, both held by the result.
        let raw = unsafe { (verbs.ibv_reg_mr)(pd.raw(), memory.as_ptr().cast(), len, IBV_ACCESS_LOCAL_WRITE) };
        match NonNull::new(raw) {
            Some(raw) => Ok(Mr { raw, memory, len, pd: pd.clone() }),
            None => {
                let error = refused(len);
                // SAFETY: mapped above and known to nobody.
                unsafe { mem::unmap(memory, len) };
                Err(error)
            }
        }
    }

    /// The domain it is in.
    pub fn pd(&self) -> &Pd {
        &self.pd
    }

    /// How many bytes there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none; a registered region always has some.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where they begin.
    pub fn as_ptr(&self) -> *mut u8 {
        self.memory.as_ptr()
    }

    /// A part of it, for a work request. `None` if that is not within the region.
    pub fn sge(&self, offset: usize, len: usize) -> Option<Sge<'_>> {
        let start = self.part(offset, len)?;
        // SAFETY: set at registration.
        let lkey = unsafe { (*self.raw.as_ptr()).lkey };
        Some(Sge::registered(start, u32::try_from(len).ok()?, lkey))
    }

    /// Copies `data` to `offset`; false if it does not fit there.
    #[must_use]
    pub fn write(&self, offset: usize, data: &[u8]) -> bool {
        let Some(to) = self.part(offset, data.len()) else { return false };
        // SAFETY: within the mapping; the two cannot overlap, since no slice is ever made of it.
        unsafe { core::ptr::copy_nonoverlapping(data.as_ptr(), to, data.len()) };
        true
    }

    /// Copies from `offset` into `data`; false if there is not so much.
    #[must_use]
    pub fn read(&self, offset: usize, data: &mut [u8]) -> bool {
        let Some(from) = self.part(offset, data.len()) else { return false };
        // SAFETY: within the mapping; the two cannot overlap, since no slice is ever made of it.
        unsafe { core::ptr::copy_nonoverlapping(from, data.as_mut_ptr(), data.len()) };
        true
    }

    /// A child of fork(2) finds zeroes here, and the parent keeps its pages (`MADV_WIPEONFORK`, Linux 4.14).
    pub fn wipe_on_fork(&self) -> Result<()> {
        // SAFETY: our own mapping, which stays as it is for this process.
        let done = unsafe { madvise(self.memory.as_ptr().cast(), self.len, Advice::LinuxWipeOnFork) };
        done.map_err(|errno| Error::Verb { verb: "madvise", errno: errno.into() })
    }

    fn part(&self, offset: usize, len: usize) -> Option<*mut u8> {
        let end = offset.checked_add(len)?;
        // SAFETY: at most one past the end of the mapping.
        (end <= self.len).then(|| unsafe { self.memory.as_ptr().add(offset) })
    }
}

/// Why memory was not registered: where it is the limit, say which one.
fn refused(wanted: usize) -> Error {
    let error = Error::last("ibv_reg_mr");
    match getrlimit(Resource::Memlock).current {
        Some(limit) if error.errno() == Errno::NOMEM => Error::Memlock { wanted, limit },
        _ => error,
    }
}
