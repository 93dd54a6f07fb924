//! Copying the bytes that a client has written to a connect which no server accepts to the connect that replaces it.
#![allow(unsafe_code)]

use crate::iov::Iov;
use crate::shm::ShmEndpoint;
use crate::{Endpoint, Shut};
use alloc::vec::Vec;

impl ShmEndpoint {
    /// Returns all bytes that were written so far, of which the server has read none, and how many of them are in the
    /// first window.
    pub fn written(&self) -> (Vec<u8>, usize) {
        let mut bytes = Vec::new();
        let mut first = None;
        let Some(v) = self.side.view() else { return (bytes, 0) };
        self.rings.replay(&v, |p, n| {
            first.get_or_insert(n);
            let at = bytes.len();
            bytes.resize(at + n, 0);
            // SAFETY: `replay` passes n readable bytes of our own ring, and `bytes` has just grown by n bytes from `at`
            // on.
            unsafe {
                core::ptr::copy_nonoverlapping(p, bytes.as_mut_ptr().add(at), n);
            }
        });
        (bytes, first.unwrap_or(0))
    }

    /// Writes the bytes that [`ShmEndpoint::written`] returned for another connect to this one, and the end after them
    /// if that has `ended`. False: they do not fit.
    pub fn rewrite(&'static self, bytes: &mut [u8], first: usize, ended: bool) -> bool {
        // The new ring has as much room as the one that held these bytes, if they go into the same windows.
        let (small, large) = bytes.split_at_mut(first.min(bytes.len()));
        let fits = [small, large].into_iter().filter(|b| !b.is_empty()).all(|b| {
            let v = libc::iovec { iov_base: b.as_mut_ptr().cast(), iov_len: b.len() };
            self.try_write(&mut Iov::one(&v)) == Ok(b.len())
        });
        if ended {
            self.shutdown(Shut::Write);
        }
        fits
    }

    /// Writes the bytes of this withdrawn connect to the one that replaces it. False: they do not fit.
    pub fn hand_off(&self, new: &'static ShmEndpoint) -> bool {
        let (mut bytes, first) = self.written();
        new.rewrite(&mut bytes, first, self.side.ended())
    }
}
