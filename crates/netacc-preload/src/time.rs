//! Time-outs in the forms that libc's functions take.

use core::ffi::c_int;
use netacc_core::Outcome;
use netacc_sys::time::{Deadline, Until};
use netacc_sys::{libc_kind, user};

/// Deadline of poll(2) and epoll_wait(2), whose time-out is in milliseconds; negative means for ever.
pub fn ms(t: i32) -> Deadline {
    Deadline::after(ms_ns(t))
}

/// The time-out of poll(2) and epoll_wait(2) in nanoseconds; negative means for ever.
pub fn ms_ns(t: i32) -> i64 {
    i64::from(t) * 1_000_000
}

/// Deadline of ppoll(2) and similar calls, where null means for ever. `None`: the time is not valid or cannot be read;
/// the kernel reports which.
pub fn timespec(t: *const libc::timespec) -> Option<Deadline> {
    timespec_ns(t).map(Deadline::after)
}

/// The time-out of ppoll(2) and similar calls in nanoseconds; negative means for ever. `None`: the time is not valid or
/// cannot be read.
pub fn timespec_ns(t: *const libc::timespec) -> Option<i64> {
    if t.is_null() {
        return Some(-1);
    }
    // SAFETY: two numbers, which any bytes are.
    let t = unsafe { user::load(t) }?;
    if t.tv_sec < 0 || !(0..1_000_000_000).contains(&t.tv_nsec) {
        return None;
    }
    Some(t.tv_sec.saturating_mul(1_000_000_000).saturating_add(t.tv_nsec))
}

/// Deadline of select(2), where null means for ever. `None`: the time is not valid or cannot be read.
pub fn timeval(t: *const libc::timeval) -> Option<Deadline> {
    if t.is_null() {
        return Some(Deadline::Never);
    }
    // SAFETY: two numbers, which any bytes are.
    let t = unsafe { user::load(t) }?;
    if t.tv_sec < 0 || t.tv_usec < 0 {
        return None;
    }
    Some(Deadline::after(t.tv_sec.saturating_mul(1_000_000_000).saturating_add(t.tv_usec.saturating_mul(1000))))
}

/// A time-out of poll(2) and epoll_wait(2) for the rest of a call with the time-out `given`.
pub fn ms_left(until: Until, given: c_int) -> c_int {
    // Rounded up, so that no call ends early.
    until.left().map_or(given, |ns| c_int::try_from(ns.div_ceil(1_000_000)).unwrap_or(given))
}

/// A time-out for the rest of a call, in the form that the call takes; none where the call has its whole time-out.
pub struct Left<T>(Option<T>);

impl<T> Left<T> {
    /// Its address, or else that of the whole time-out.
    pub fn or(&mut self, given: *const T) -> *mut T {
        match &mut self.0 {
            Some(left) => left,
            None => given.cast_mut(),
        }
    }
}

/// The time-out for the rest of a call of ppoll(2) and similar ones.
pub fn timespec_left(until: Until) -> Left<libc::timespec> {
    // Both numbers fit: a number of nanoseconds is below 2 to the power of 64.
    Left(
        until
            .left()
            .map(|ns| libc::timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 }),
    )
}

/// The time-out for the rest of a select(2) with the time-out `given`. That of glibc has stored what is left there already, if
/// it can be written, and stores what is left in the end.
pub fn timeval_left(until: Until, given: *mut libc::timeval) -> Left<libc::timeval> {
    let is_stored = || !libc_kind::is_musl() && user::writable(given, size_of::<libc::timeval>());
    Left(until.left().filter(|_| !is_stored()).map(|ns| {
        let us = ns.div_ceil(1000);
        libc::timeval { tv_sec: (us / 1_000_000) as i64, tv_usec: (us % 1_000_000) as i64 }
    }))
}

/// Makes `call`, unless the kernel makes it, and writes what is left of the time-out `t` to `t` afterwards, as the
/// kernel's ppoll and pselect6 do. Where it cannot be written, the kernel reports no error.
///
/// # Safety
/// `t` is the program's argument of the call.
pub unsafe fn left_in(t: *mut libc::timespec, call: impl FnOnce() -> Outcome) -> Outcome {
    let deadline = timespec(t);
    let done = call();
    if let (false, Outcome::Done(_) | Outcome::Failed(_) | Outcome::Anew { .. }, Some(deadline)) =
        (t.is_null(), done, deadline)
    {
        let left = deadline.left().max(0);
        let left = libc::timespec { tv_sec: left / 1_000_000_000, tv_nsec: left % 1_000_000_000 };
        // SAFETY: where the program wants it.
        let _ = unsafe { user::store(t, left) };
    }
    done
}
