//! Calls by which the process becomes another user.

use core::ffi::c_int;
use libc::uid_t;
use netacc_core::identity::may_change;

exports! {
    /// setuid(2).
    fn setuid(user: uid_t) -> c_int {
        visit!(setuid(user));
        may_change(user, || call_next!(setuid(user => uid_t) -> c_int))
    }

    /// setreuid(2).
    fn setreuid(real: uid_t, effective: uid_t) -> c_int {
        visit!(setreuid(real, effective));
        may_change(real, || call_next!(setreuid(real => uid_t, effective => uid_t) -> c_int))
    }

    /// setresuid(2).
    fn setresuid(real: uid_t, effective: uid_t, saved: uid_t) -> c_int {
        visit!(setresuid(real, effective, saved));
        may_change(real, || call_next!(setresuid(real => uid_t, effective => uid_t, saved => uid_t) -> c_int))
    }
}
