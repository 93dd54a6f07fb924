//! Cursor over the application's buffers of one call.
//!
//! # Safety
//! The application passed these pointers to send(2), readv(2) or a similar call, whose contract makes them valid for
//! the call. The library copies from and to them as the kernel would.
#![allow(unsafe_code)]

use core::marker::PhantomData;
use core::ptr;
use netacc_sys::errno::Result;
use netacc_sys::raw;
use netacc_sys::user::{self, Access};

/// Largest number of bytes that the kernel moves in one call (read(2)).
const MAX_BYTES: usize = 0x7fff_f000;

/// The end of user space.
const TOP: usize = if cfg!(target_arch = "x86_64") { (1 << 47) - 4096 } else { 1 << 48 };

#[inline]
fn nowhere(v: &libc::iovec) -> bool {
    // One comparison for both ends of the range.
    (v.iov_base as usize).wrapping_sub(4096) >= TOP - 4096 && v.iov_len > 0
}

/// Whether a buffer reaches into the kernel's half of the addresses, for which the kernel refuses a call before it looks at
/// the socket, whatever the length is. Addresses between the halves are not decided here: kernels differ, and what some
/// processors have there is memory.
#[inline]
fn outside(v: &libc::iovec) -> bool {
    let start = v.iov_base as usize;
    if cfg!(target_arch = "x86_64") {
        (start | start.wrapping_add(v.iov_len.min(MAX_BYTES))).cast_signed() < 0
    } else {
        // The upper byte may be a tag (PR_SET_TAGGED_ADDR_CTRL), and the next bit says whose half it is.
        start & 1 << 55 != 0
    }
}

/// One or several buffers, with the position up to which they were used.
#[derive(Debug)]
pub struct Iov<'a> {
    vec: *const libc::iovec,
    /// Number of buffers from `vec` on, the current one included.
    count: usize,
    /// Number of bytes of the current buffer that are used up.
    done: usize,
    /// Number of bytes left in all of them.
    left: usize,
    /// Whether a buffer is at an address where no program has memory.
    bad: bool,
    /// Whether a buffer is at an address of the kernel's.
    outside: bool,
    /// Whether a copy was not done because the memory cannot be accessed.
    faulted: bool,
    _life: PhantomData<&'a libc::iovec>,
}

impl<'a> Iov<'a> {
    /// The buffers of the application's `struct iovec` array. `None`: the sum of the lengths overflows.
    ///
    /// # Safety
    /// `vec` points to `count` iovecs whose buffers are valid for the call in progress.
    pub unsafe fn new(vec: *const libc::iovec, count: usize) -> Option<Iov<'a>> {
        let mut left = 0usize;
        let (mut bad, mut is_outside) = (false, false);
        for i in 0..count {
            // SAFETY: the caller guarantees `count` iovecs at `vec`, and i < count.
            let v = unsafe { &*vec.add(i) };
            if v.iov_len > isize::MAX as usize {
                return None;
            }
            bad |= nowhere(v);
            is_outside |= outside(v);
            left = left.saturating_add(v.iov_len);
        }
        let left = left.min(MAX_BYTES);
        Some(Iov { vec, count, done: 0, left, bad, outside: is_outside, faulted: false, _life: PhantomData })
    }

    /// A single iovec.
    pub fn one(v: &'a libc::iovec) -> Iov<'a> {
        Iov {
            vec: v,
            count: 1,
            done: 0,
            left: v.iov_len.min(MAX_BYTES),
            bad: nowhere(v),
            outside: outside(v),
            faulted: false,
            _life: PhantomData,
        }
    }

    /// A cursor without a buffer.
    pub const fn empty() -> Iov<'a> {
        Iov {
            vec: ptr::null(),
            count: 0,
            done: 0,
            left: 0,
            bad: false,
            outside: false,
            faulted: false,
            _life: PhantomData,
        }
    }

    /// Whether the kernel would return EFAULT for the address alone: a null pointer with a length, or an address in the
    /// first page or outside of user space.
    #[inline]
    pub fn bad(&self) -> bool {
        self.bad
    }

    /// Whether the kernel returns EFAULT at once, before it waits for bytes or for room.
    #[inline]
    pub fn is_outside(&self) -> bool {
        self.outside
    }

    /// Whether a copy was not done because the memory cannot be accessed, for which the kernel returns EFAULT.
    #[inline]
    pub(crate) fn faulted(&self) -> bool {
        self.faulted
    }

    /// Whether the next `n` bytes are in memory that the call can access. If not, [`Iov::faulted`] becomes true: as in
    /// the kernel, a piece of the stream is copied as a whole or not at all.
    #[inline]
    pub(crate) fn reaches(&mut self, n: usize, access: Access) -> bool {
        let (mut vec, mut done, mut left) = (self.vec, self.done, n.min(self.left));
        for _ in 0..self.count {
            if left == 0 {
                break;
            }
            // SAFETY: it is one of the `count` valid iovecs from `vec` on, as the constructor requires.
            let v = unsafe { &*vec };
            let part = (v.iov_len - done).min(left);
            if !user::accessible(v.iov_base.cast::<u8>().wrapping_add(done).cast(), part, access) {
                self.faulted = true;
                return false;
            }
            left -= part;
            vec = vec.wrapping_add(1);
            done = 0;
        }
        true
    }

    /// The unused rest of the first buffer that has one.
    pub(crate) fn space(&mut self) -> Option<(*mut u8, usize)> {
        while self.left > 0 && self.count > 0 {
            // SAFETY: count > 0, so vec points to a valid iovec, as the constructor requires.
            let v = unsafe { &*self.vec };
            if v.iov_len > self.done {
                // SAFETY: `done` is at most the buffer's length.
                let p = unsafe { v.iov_base.cast::<u8>().add(self.done) };
                return Some((p, (v.iov_len - self.done).min(self.left)));
            }
            // SAFETY: the pointer stays within the array or one past its end, since count > 0 before.
            self.vec = unsafe { self.vec.add(1) };
            self.count -= 1;
            self.done = 0;
        }
        None
    }

    /// The next piece of free space, for a caller outside of the transports, which has to [`Iov::skip`] the bytes that
    /// it uses.
    pub fn first(&mut self) -> Option<(*mut u8, usize)> {
        self.space()
    }

    /// The buffers as an array for the kernel; `None` if one of them was used in part.
    pub fn whole(&mut self) -> Option<(*const libc::iovec, usize)> {
        self.space()?;
        (self.done == 0).then_some((self.vec, self.count))
    }

    /// Limits the cursor to `most` bytes. Returns the number of bytes cut off, for [`Iov::extend`].
    #[inline]
    pub fn limit(&mut self, most: usize) -> usize {
        let cut = self.left.saturating_sub(most);
        self.left -= cut;
        cut
    }

    /// Restores the bytes that [`Iov::limit`] cut off.
    #[inline]
    pub fn extend(&mut self, cut: usize) {
        self.left += cut;
    }

    /// Number of bytes left.
    pub fn left(&self) -> usize {
        self.left
    }

    /// Advances over the next `n` bytes and calls `copy(buffer, len, offset)` for each piece.
    fn walk(&mut self, n: usize, mut copy: impl FnMut(*mut u8, usize, usize)) {
        let mut at = 0;
        let n = n.min(self.left);
        while at < n && self.count > 0 {
            // SAFETY: count > 0, so vec points to a valid iovec, as the constructor requires.
            let v = unsafe { &*self.vec };
            let part = (v.iov_len - self.done).min(n - at);
            if part > 0 {
                // SAFETY: done + part is at most the buffer's length.
                copy(unsafe { v.iov_base.cast::<u8>().add(self.done) }, part, at);
            }
            at += part;
            self.done += part;
            if self.done == v.iov_len {
                // SAFETY: the pointer stays within the array or one past its end, since count > 0 before.
                self.vec = unsafe { self.vec.add(1) };
                self.count -= 1;
                self.done = 0;
            }
        }
        self.left -= at;
    }

    /// Copies the next `n` bytes to `dst`, which has room for them.
    #[inline]
    pub(crate) fn copy_to(&mut self, dst: *mut u8, n: usize) {
        // SAFETY: `walk` hands out valid source ranges; `dst` is our ring's chunk of at least n bytes.
        self.walk(n, |p, len, at| unsafe { ptr::copy_nonoverlapping(p, dst.add(at), len) });
    }

    /// Copies `n` bytes from `src` to the next `n` bytes.
    #[inline]
    pub(crate) fn copy_from(&mut self, src: *const u8, n: usize) {
        // SAFETY: `walk` hands out valid target ranges; `src` is our ring's chunk of at least n bytes.
        self.walk(n, |p, len, at| unsafe { ptr::copy_nonoverlapping(src.add(at), p, len) });
    }

    /// Copies as many bytes to `to` as it has room for and both can access. Returns the number.
    pub fn copy_into(&mut self, to: &mut Iov<'_>) -> usize {
        let before = to.left;
        while let Some((from, len)) = self.space().filter(|_| to.left > 0) {
            let len = len.min(to.left);
            if !self.reaches(len, Access::Read) || !to.reaches(len, Access::Write) {
                break;
            }
            to.copy_from(from, len);
            self.skip(len);
        }
        before - to.left
    }

    /// Makes the kernel's recvmsg(2) into the next buffers, of which it does not [`Iov::skip`] anything. A call has room
    /// for a few buffers, and gets no more than fits there.
    pub(crate) fn receive(&mut self, fd: i32, flags: i32) -> Result<usize> {
        const FEW: usize = 16;
        let mut room = [libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 }; FEW];
        let (mut done, mut left) = (self.done, self.left);
        let count = self.count.min(FEW);
        for (i, to) in room.iter_mut().enumerate().take(count) {
            // SAFETY: i < count, so that it is a valid iovec, as the constructor requires.
            let v = unsafe { &*self.vec.add(i) };
            to.iov_base = v.iov_base.cast::<u8>().wrapping_add(done).cast();
            to.iov_len = (v.iov_len - done).min(left);
            left -= to.iov_len;
            done = 0;
        }
        // SAFETY: a zeroed message header is valid: it has no address, buffers or control messages.
        let mut m: libc::msghdr = unsafe { core::mem::zeroed() };
        m.msg_iov = room.as_mut_ptr();
        m.msg_iovlen = count as _;
        raw::recvmsg(fd, &raw mut m, flags)
    }

    /// Skips `n` bytes without copying (MSG_TRUNC discards them).
    pub fn skip(&mut self, n: usize) {
        self.walk(n, |_, _, _| {});
    }
}
