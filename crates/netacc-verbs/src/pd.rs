//! Protection domains.
//!
//! # Safety
//! As for [`crate::context`]: valid until the last clone is dropped.
#![allow(unsafe_code)]

use crate::context::Context;
use crate::error::{Error, Result};
use crate::sys::ibv_pd;
use alloc::sync::Arc;
use core::ptr::NonNull;

/// A protection domain (`struct ibv_pd`): queue pairs reach only the memory of their own. A clone is the
/// same domain.
#[derive(Clone, Debug)]
pub struct Pd(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    raw: NonNull<ibv_pd>,
    // After `raw` has been released in `drop`.
    context: Context,
}

// SAFETY: the library allows calls from several threads.
unsafe impl Send for Inner {}
// SAFETY: the library allows calls from several threads.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: ours, and nothing made from it is left.
        unsafe { (self.context.api().verbs.ibv_dealloc_pd)(self.raw.as_ptr()) };
    }
}

impl Pd {
    /// A new domain (`ibv_alloc_pd`).
    pub fn alloc(context: &Context) -> Result<Pd> {
        // SAFETY: an open context.
        let raw = unsafe { (context.api().verbs.ibv_alloc_pd)(context.raw()) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last("ibv_alloc_pd"))?;
        Ok(Pd(Arc::new(Inner { raw, context: context.clone() })))
    }

    /// The device it is on.
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    pub(crate) fn raw(&self) -> *mut ibv_pd {
        self.0.raw.as_ptr()
    }
}
