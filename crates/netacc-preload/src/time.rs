//! Time-outs in the forms that libc's functions take.

use netacc_core::Outcome;
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

/// Makes `call`, unless the kernel makes it, and writes what is left of the time-out `t` to `t` afterwards, as the
/// kernel's ppoll and pselect6 do. Where it cannot be written, the kernel reports no error.
///
/// # Safety
/// `t` is the program's argument of the call.
pub unsafe fn left_in(t: *mut libc::timespec, call: impl FnOnce() -> Outcome) -> Outcome {
    let deadline = timespec(t);
    let done = call();
    if let (false, Outcome::Done(_) | Outcome::Failed(_), Some(deadline)) = (t.is_null(), done, deadline) {
        let left = deadline.left().max(0);
        let left = libc::timespec { tv_sec: left / 1_000_000_000, tv_nsec: left % 1_000_000_000 };
        // SAFETY: where the program wants it.
        let _ = unsafe { user::store(t, left) };
    }
    done
}
