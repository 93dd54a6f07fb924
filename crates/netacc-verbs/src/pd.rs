//! Protection domains.
//!
//! # Safety
//! The pointer is valid until the last clone is dropped, as in [`crate::context`].
#![allow(unsafe_code)]

use crate::context::Context;
use crate::error::{Error, Result};
use crate::sys::ibv_pd;
use alloc::sync::Arc;
use core::ptr::NonNull;

/// A protection domain (`struct ibv_pd`): a queue pair reaches only memory of its own domain. A clone is the
/// same domain.
#[derive(Clone, Debug)]
pub struct Pd(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    raw: NonNull<ibv_pd>,
    // The field is dropped after `drop` has released `raw`, so that the context outlives it.
    context: Context,
}

// SAFETY: libibverbs is thread-safe: several threads may use one domain at once.
unsafe impl Send for Inner {}
// SAFETY: libibverbs is thread-safe: several threads may use one domain at once.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: we made the domain, and nothing made from it is left, since that would hold a clone.
        unsafe { (self.context.api().verbs.ibv_dealloc_pd)(self.raw.as_ptr()) };
    }
}

impl Pd {
    /// A new domain (`ibv_alloc_pd`).
    pub fn alloc(context: &Context) -> Result<Pd> {
        // SAFETY: the context is open until its last clone is dropped.
        let raw = unsafe { (context.api().verbs.ibv_alloc_pd)(context.raw()) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last("ibv_alloc_pd"))?;
        Ok(Pd(Arc::new(Inner { raw, context: context.clone() })))
    }

    /// The device that the domain is on.
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    pub(crate) fn raw(&self) -> *mut ibv_pd {
        self.0.raw.as_ptr()
    }
}
