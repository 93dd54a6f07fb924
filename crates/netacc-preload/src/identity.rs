//! Calls by which the process becomes another user, or gives up rights in another way.

use core::ffi::{c_char, c_int, c_void};
use libc::uid_t;
use netacc_core::fork::rights::{self, Change};
use netacc_core::identity::may_change;
use netacc_sys::{raw, user};

exports! {
    /// setuid(2).
    fn setuid(user: uid_t) -> c_int {
        visit!(setuid(user));
        rights::before_change(Change::All(user));
        may_change(user, || call_next!(setuid(user => uid_t) -> c_int))
    }

    /// setreuid(2).
    fn setreuid(real: uid_t, effective: uid_t) -> c_int {
        visit!(setreuid(real, effective));
        rights::before_change(Change::RealEffective(real, effective));
        may_change(real, || call_next!(setreuid(real => uid_t, effective => uid_t) -> c_int))
    }

    /// setresuid(2).
    fn setresuid(real: uid_t, effective: uid_t, saved: uid_t) -> c_int {
        visit!(setresuid(real, effective, saved));
        rights::before_change(Change::Each([real, effective, saved]));
        may_change(real, || call_next!(setresuid(real => uid_t, effective => uid_t, saved => uid_t) -> c_int))
    }

    /// chroot(2).
    fn chroot(path: *const c_char) -> c_int {
        visit!(chroot(path));
        rights::before_fewer_rights();
        call_next!(chroot(path => *const c_char) -> c_int)
    }

    /// capset(2), as libcap calls it.
    fn capset(header: *const c_void, sets: *const c_void) -> c_int {
        visit!(capset(header, sets));
        // SAFETY: the application's arguments.
        unsafe { before_capabilities(header, sets) };
        call_next!(capset(header => *const c_void, sets => *const c_void) -> c_int)
    }
}

/// Effective, permitted and inheritable capabilities: 32 of each.
type Sets = [u32; 3];
/// `_LINUX_CAPABILITY_VERSION_3`, and that of the first version, which has 32 capabilities.
const VERSIONS: [u32; 2] = [0x2008_0522, 0x1998_0330];

/// To be called before capset(2), by libc's function or by syscall(2).
///
/// # Safety
/// The arguments are those of the call. What cannot be read is left to the kernel to refuse.
pub unsafe fn before_capabilities(header: *const c_void, sets: *const c_void) {
    let [newest, first] = VERSIONS;
    // SAFETY: any bytes are a number.
    let Some(version) = (unsafe { user::load(header.cast::<u32>()) }) else { return };
    // SAFETY: any bytes are sets.
    let sets = unsafe {
        match version == first {
            true => user::load(sets.cast::<Sets>()).map(|sets| [sets, [0; 3]]),
            false => user::load(sets.cast::<[Sets; 2]>()),
        }
    };
    let Some(wanted) = sets else { return };
    let mut own = [newest, 0];
    let mut now: [Sets; 2] = [[0; 3]; 2];
    let args = [(&raw mut own).expose_provenance(), (&raw mut now).expose_provenance(), 0, 0, 0, 0];
    // SAFETY: the kernel writes a header of two words and two groups of sets, which is what this version has.
    if unsafe { raw::syscall6(libc::SYS_capget, args) } != 0 {
        return;
    }
    if now.iter().zip(wanted).any(|([_, permitted, _], [_, kept, _])| permitted & !kept != 0) {
        rights::before_fewer_rights();
    }
}
