//! Calls by which the process becomes another user.

use core::ffi::c_int;
use libc::uid_t;
use netacc_core::identity::may_change;

/// setuid(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setuid(user: uid_t) -> c_int {
    may_change(|| call_next!(setuid(user => uid_t) -> c_int))
}

/// setreuid(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setreuid(real: uid_t, effective: uid_t) -> c_int {
    may_change(|| call_next!(setreuid(real => uid_t, effective => uid_t) -> c_int))
}

/// setresuid(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setresuid(real: uid_t, effective: uid_t, saved: uid_t) -> c_int {
    may_change(|| call_next!(setresuid(real => uid_t, effective => uid_t, saved => uid_t) -> c_int))
}
