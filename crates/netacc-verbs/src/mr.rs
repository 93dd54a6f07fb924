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

/// A memory region (`struct ibv_mr`) that owns its memory, for sending from and receiving into. It has local access
/// only, so the other side cannot reach it.
#[derive(Debug)]
pub struct Mr {
    raw: NonNull<ibv_mr>,
    memory: NonNull<u8>,
    len: usize,
    pd: Pd,
}

// SAFETY: libibverbs is thread-safe, and no reference into the bytes is ever made: they are copied through raw
// pointers.
unsafe impl Send for Mr {}
// SAFETY: libibverbs is thread-safe, and no reference into the bytes is ever made: they are copied through raw
// pointers.
unsafe impl Sync for Mr {}

impl Drop for Mr {
    fn drop(&mut self) {
        // SAFETY: `register` made the region, and it is deregistered once, here; requests that still name its key fail
        // in the device.
        let gone = unsafe { (self.pd.context().api().verbs.ibv_dereg_mr)(self.raw.as_ptr()) } == 0;
        // If the kernel does not know the region as ours (in the child of a fork), a device may still write to the
        // memory, so it stays mapped.
        if gone {
            // SAFETY: `register` mapped the memory, the device has let go of it, and nothing else refers to it.
            unsafe { mem::unmap(self.memory, self.len) };
        }
    }
}

impl Mr {
    /// Maps `len` zeroed bytes and registers them (`ibv_reg_mr`). Fails with [`Error::Memlock`] where `RLIMIT_MEMLOCK`
    /// is too low.
    pub fn register(pd: &Pd, len: usize) -> Result<Mr> {
        let memory = mem::map(len).map_err(|errno| Error::Verb { verb: "mmap", errno })?;
        let verbs = &pd.context().api().verbs;
        // SAFETY: the domain exists, and the memory has that length; the result holds both.
        let raw = unsafe { (verbs.ibv_reg_mr)(pd.raw(), memory.as_ptr().cast(), len, IBV_ACCESS_LOCAL_WRITE) };
        match NonNull::new(raw) {
            Some(raw) => Ok(Mr { raw, memory, len, pd: pd.clone() }),
            None => {
                let error = refused(len);
                // SAFETY: the memory was mapped above, and nothing else refers to it.
                unsafe { mem::unmap(memory, len) };
                Err(error)
            }
        }
    }

    /// The protection domain that the region is in.
    pub fn pd(&self) -> &Pd {
        &self.pd
    }

    /// The region's length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the region has no bytes, which is never so for a registered one.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of the first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.memory.as_ptr()
    }

    /// A part of the region, for a work request. `None` if the part is not within the region.
    pub fn sge(&self, offset: usize, len: usize) -> Option<Sge<'_>> {
        let start = self.part(offset, len)?;
        // SAFETY: the region exists, and its key is set when it is registered and does not change.
        let lkey = unsafe { (*self.raw.as_ptr()).lkey };
        Some(Sge::registered(start, u32::try_from(len).ok()?, lkey))
    }

    /// Copies `data` to `offset`. Returns false, and copies nothing, if it does not fit there.
    #[must_use]
    pub fn write(&self, offset: usize, data: &[u8]) -> bool {
        let Some(to) = self.part(offset, data.len()) else { return false };
        // SAFETY: the part is within the mapping. It cannot overlap `data`, since no slice of the mapping is ever made.
        unsafe { core::ptr::copy_nonoverlapping(data.as_ptr(), to, data.len()) };
        true
    }

    /// Fills `data` from `offset`. Returns false, and copies nothing, if the region ends before.
    #[must_use]
    pub fn read(&self, offset: usize, data: &mut [u8]) -> bool {
        let Some(from) = self.part(offset, data.len()) else { return false };
        // SAFETY: the part is within the mapping. It cannot overlap `data`, since no slice of the mapping is ever made.
        unsafe { core::ptr::copy_nonoverlapping(from, data.as_mut_ptr(), data.len()) };
        true
    }

    /// Makes a child of fork(2) find zeroes here, while the parent keeps its pages (`MADV_WIPEONFORK`, Linux 4.14).
    pub fn wipe_on_fork(&self) -> Result<()> {
        // SAFETY: the mapping is ours, and the advice does not change it for this process.
        let done = unsafe { madvise(self.memory.as_ptr().cast(), self.len, Advice::LinuxWipeOnFork) };
        done.map_err(|errno| Error::Verb { verb: "madvise", errno: errno.into() })
    }

    fn part(&self, offset: usize, len: usize) -> Option<*mut u8> {
        let end = offset.checked_add(len)?;
        // SAFETY: `offset` is at most the length, so the result is within the mapping or one past its end.
        (end <= self.len).then(|| unsafe { self.memory.as_ptr().add(offset) })
    }
}

/// The reason why memory was not registered: [`Error::Memlock`] if the errno is that of a limit, and else the errno.
fn refused(wanted: usize) -> Error {
    let error = Error::last("ibv_reg_mr");
    match getrlimit(Resource::Memlock).current {
        Some(limit) if error.errno() == Errno::NOMEM => Error::Memlock { wanted, limit },
        _ => error,
    }
}
