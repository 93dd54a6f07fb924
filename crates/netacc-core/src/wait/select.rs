//! select(2) and pselect(2), implemented as a poll(2) of the named descriptors.
//!
//! # Safety
//! The application's sets are read and written up to `nfds` bits.
#![allow(unsafe_code)]

use crate::fd::table;
use crate::outcome::Outcome;
use crate::wait::poll::{self, Part};
use alloc::vec::Vec;
use core::ffi::c_void;
use libc::{POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLPRI, pollfd};
use netacc_sys::errno::Errno;
use netacc_sys::time::Deadline;
use netacc_sys::user;

/// What the entry of a number has that another thread has closed meanwhile: for the kernel's select(2) it is ready for
/// everything.
const CLOSED: i16 = POLLNVAL | POLLIN | POLLOUT | POLLPRI;

/// What a number is reported for in each of the three sets (select(2), "Correspondence between select() and poll()
/// notifications").
const REPORTED: [i16; 3] = [POLLIN | POLLHUP | POLLERR, POLLOUT | POLLERR, POLLPRI];

const BITS: usize = usize::BITS as usize;

/// One of the three sets, which may be null.
#[derive(Clone, Copy)]
struct Set(*mut usize);

impl Set {
    fn word(self, i: usize) -> usize {
        // SAFETY: i < nfds / BITS rounded up; the set is an array of longs.
        if self.0.is_null() { 0 } else { unsafe { self.0.add(i).read_unaligned() } }
    }

    fn has(self, fd: usize) -> bool {
        // SAFETY: fd < nfds; the set has at least nfds bits. fd_set is an array of longs.
        !self.0.is_null() && unsafe { self.0.add(fd / BITS).read_unaligned() } & (1 << (fd % BITS)) != 0
    }

    fn put(self, fd: usize, on: bool) {
        if self.0.is_null() {
            return;
        }
        // SAFETY: fd < nfds; the set has at least nfds bits. fd_set is an array of longs.
        unsafe {
            let w = self.0.add(fd / BITS);
            let old = w.read_unaligned();
            w.write_unaligned(if on { old | 1 << (fd % BITS) } else { old & !(1 << (fd % BITS)) });
        }
    }
}

fn bound(nfds: i32) -> usize {
    nfds.clamp(0, 1 << 20) as usize
}

/// Whether the memory of the sets can be accessed.
fn accessible(n: usize, sets: [*mut c_void; 3], access: user::Access) -> bool {
    let bytes = n.div_ceil(BITS) * size_of::<usize>();
    sets.iter().all(|p| p.is_null() || user::accessible(*p, bytes, access))
}

/// Whether one of the named descriptors needs the socket layer.
///
/// # Safety
/// Each set is null or has at least `nfds` bits.
#[inline]
pub unsafe fn concerns(nfds: i32, sets: [*mut c_void; 3]) -> bool {
    let n = bound(nfds);
    if !table::in_use() || n == 0 {
        return false;
    }
    let bytes = n.div_ceil(BITS) * size_of::<usize>();
    if sets.iter().any(|p| !p.is_null() && !user::known(*p, bytes, user::Access::Read)) {
        // Sets that may be unreadable are examined by `select`.
        return true;
    }
    let sets = sets.map(|p| Set(p.cast()));
    (0..n.div_ceil(BITS)).any(|i| {
        let mut named = sets.iter().fold(0, |all, set| all | set.word(i));
        if let last @ 1.. = n % BITS
            && i == n / BITS
        {
            named &= (1 << last) - 1;
        }
        while named != 0 {
            let fd = i * BITS + named.trailing_zeros() as usize;
            if table::knows(fd as i32) && poll::is_ours(fd as i32) {
                return true;
            }
            named &= named - 1;
        }
        false
    })
}

/// select(2), pselect(2): the three sets may be null.
///
/// # Safety
/// Each set is null or has at least `nfds` bits.
pub unsafe fn select(nfds: i32, sets: [*mut c_void; 3], deadline: Deadline, sigmask: *const c_void) -> Outcome {
    let n = bound(nfds);
    if !accessible(n, sets, user::Access::Write) {
        // The kernel reports the error of such sets.
        return Outcome::Pass;
    }
    let [r, w, x] = sets.map(|p| Set(p.cast()));
    let mut fds: Vec<pollfd> = Vec::new();
    for fd in 0..n {
        let mut events = 0;
        for (set, bit) in [(r, POLLIN), (w, POLLOUT), (x, POLLPRI)] {
            if set.has(fd) {
                events |= bit;
            }
        }
        if events != 0 {
            fds.push(pollfd { fd: fd as i32, events, revents: 0 });
        }
    }
    let mut part = Part::Whole;
    loop {
        // SAFETY: the pointer and the length are those of our own vector.
        match unsafe { poll::poll_with(fds.as_mut_ptr(), fds.len(), || Some(deadline), sigmask, CLOSED, part) } {
            Outcome::Done(_) => {}
            other => return other,
        }
        if fds.iter().any(|p| p.revents & CLOSED == POLLNVAL) {
            return Outcome::Failed(Errno::BADF);
        }
        let found =
            |p: &pollfd| [r, w, x].iter().zip(REPORTED).any(|(set, mask)| set.has(number(p)) && p.revents & mask != 0);
        if deadline == Deadline::Now || fds.iter().any(found) || deadline.passed() {
            break;
        }
        // An end of a connection is none of the conditions of exceptfds: the wait goes on without what is named there alone.
        fds.iter_mut().filter(|p| p.revents != 0).for_each(|p| (p.fd, p.revents) = (!p.fd, 0));
        part = Part::Rest;
    }
    let mut count = 0;
    for p in &fds {
        for (set, mask) in [r, w, x].iter().zip(REPORTED) {
            if set.has(number(p)) {
                let on = p.revents & mask != 0;
                set.put(number(p), on);
                count += isize::from(on);
            }
        }
    }
    Outcome::Done(count)
}

/// The number of an entry. One that the wait goes on without has its complement.
fn number(p: &pollfd) -> usize {
    (if p.fd < 0 { !p.fd } else { p.fd }) as usize
}
