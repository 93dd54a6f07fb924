//! Time-outs in the forms that libc's functions take.

use netacc_sys::time::Deadline;
use netacc_sys::user;

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
///
/// # Safety
/// `t` is null or valid.
pub unsafe fn timespec(t: *const libc::timespec) -> Option<Deadline> {
    // SAFETY: the caller guarantees that `t` is null or valid.
    unsafe { timespec_ns(t) }.map(Deadline::after)
}

/// The time-out of ppoll(2) and similar calls in nanoseconds; negative means for ever. `None`: the time is not valid or
/// cannot be read.
///
/// # Safety
/// `t` is null or valid.
pub unsafe fn timespec_ns(t: *const libc::timespec) -> Option<i64> {
    if !t.is_null() && !user::readable(t, size_of::<libc::timespec>()) {
        return None;
    }
    // SAFETY: null, or in memory that can be read.
    let Some(t) = (unsafe { t.as_ref() }) else {
        return Some(-1);
    };
    if t.tv_sec < 0 || !(0..1_000_000_000).contains(&t.tv_nsec) {
        return None;
    }
    Some(t.tv_sec.saturating_mul(1_000_000_000).saturating_add(t.tv_nsec))
}

/// Deadline of select(2), where null means for ever.
///
/// # Safety
/// `t` is null or valid.
pub unsafe fn timeval(t: *const libc::timeval) -> Option<Deadline> {
    if !t.is_null() && !user::readable(t, size_of::<libc::timeval>()) {
        return None;
    }
    // SAFETY: null, or in memory that can be read.
    let Some(t) = (unsafe { t.as_ref() }) else {
        return Some(Deadline::Never);
    };
    if t.tv_sec < 0 || t.tv_usec < 0 {
        return None;
    }
    Some(Deadline::after(t.tv_sec.saturating_mul(1_000_000_000).saturating_add(t.tv_usec.saturating_mul(1000))))
}

/// Makes `call` with a copy of the time-out `t` and writes what is left of it to `t` afterwards, as the kernel's ppoll
/// and pselect6 do.
///
/// # Safety
/// `t` is null or valid, and may be written to.
pub unsafe fn left_in<R>(t: *mut libc::timespec, call: impl FnOnce(*const libc::timespec) -> R) -> R {
    // SAFETY: the caller guarantees that `t` is null or valid.
    let (copy, deadline) = unsafe { (t.as_ref().copied(), timespec(t)) };
    let done = call(copy.as_ref().map_or(core::ptr::null(), core::ptr::from_ref));
    if let (false, Some(deadline)) = (t.is_null(), deadline) {
        let left = deadline.left().max(0);
        // SAFETY: the caller guarantees that `t`, which is not null here, may be written to.
        unsafe { t.write(libc::timespec { tv_sec: left / 1_000_000_000, tv_nsec: left % 1_000_000_000 }) };
    }
    done
}
