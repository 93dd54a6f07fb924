//! System calls for which the program's libc may have no function, since it is older than the call or leaves it out.
//! The program finds ours under that name, or makes the call by syscall(2), and it is to work as without us.

use core::ffi::{CStr, c_long, c_void};
use netacc_sys::{raw, weak};

/// Size (bytes) of the kernel's set of signals.
const SIGNAL_SET: usize = 8;

macro_rules! stand_ins {
    ($( fn $name:ident ( $($arg:ident),* ) => $number:ident $given:expr; )*) => {
        $(
            unsafe extern "C" fn $name($($arg: usize),*) -> c_long {
                // SAFETY: the application's arguments, in the order in which the kernel wants them.
                let done = unsafe { raw::syscall6(libc::$number, $given) };
                if (-4095..0).contains(&done) {
                    weak::set_errno(-done as i32);
                    return -1;
                }
                done as c_long
            }
        )*

        /// The function that makes the system call of this name; null if there is none here.
        pub fn stand_in(name: &CStr) -> *mut c_void {
            $(
                if name == name_of!($name) {
                    return $name as *mut c_void;
                }
            )*
            core::ptr::null_mut()
        }
    };
}

stand_ins! {
    fn close_range(first, last, flags) => SYS_close_range [first, last, flags, 0, 0, 0];
    fn epoll_pwait2(ep, events, max, time, mask) => SYS_epoll_pwait2 [ep, events, max, time, mask, SIGNAL_SET];
    fn execveat(folder, path, argv, envp, flags) => SYS_execveat [folder, path, argv, envp, flags, 0];
    // The kernel takes an offset in two halves, of which the first has all of it here.
    fn preadv2(fd, vec, n, offset, flags) => SYS_preadv2 [fd, vec, n, offset, 0, flags];
    fn preadv64v2(fd, vec, n, offset, flags) => SYS_preadv2 [fd, vec, n, offset, 0, flags];
    fn pwritev2(fd, vec, n, offset, flags) => SYS_pwritev2 [fd, vec, n, offset, 0, flags];
    fn pwritev64v2(fd, vec, n, offset, flags) => SYS_pwritev2 [fd, vec, n, offset, 0, flags];
}
