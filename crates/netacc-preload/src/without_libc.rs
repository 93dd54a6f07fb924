//! What stands for libc's functions in a process without libc ([`netacc_sys::static_program`]): the system calls. The
//! program makes its calls by their numbers, so that only those functions are needed to which such a call can come.

use core::ffi::{CStr, c_int, c_long, c_void};
use netacc_sys::{raw, static_program, weak};

/// Size (bytes) of the kernel's set of signals.
const SIGNAL_SET: usize = 8;

/// The kernel's answer as libc gives it.
fn told(answer: isize) -> c_long {
    if (-4095..0).contains(&answer) {
        weak::set_errno(-answer as i32);
        return -1;
    }
    answer as c_long
}

macro_rules! calls {
    ($( $($alias:ident)|+ => $number:ident ($($arg:ident),*) $given:expr; )*) => {
        /// The function that makes the system call of this name; null if there is none here.
        pub fn function(name: &CStr) -> *mut c_void {
            $({
                unsafe extern "C" fn call($($arg: usize),*) -> c_long {
                    // SAFETY: the program's arguments, in the order in which the kernel wants them.
                    told(unsafe { raw::syscall6(libc::$number, $given) })
                }
                if $(name == name_of!($alias))||+ {
                    return call as *mut c_void;
                }
            })*
            match name.to_bytes() {
                b"syscall" => syscall as *mut c_void,
                b"sysconf" => sysconf as *mut c_void,
                _ => core::ptr::null_mut(),
            }
        }
    };
}

calls! {
    socket => SYS_socket(a, b, c) [a, b, c, 0, 0, 0];
    close => SYS_close(a) [a, 0, 0, 0, 0, 0];
    close_range => SYS_close_range(a, b, c) [a, b, c, 0, 0, 0];
    dup => SYS_dup(a) [a, 0, 0, 0, 0, 0];
    dup2 => SYS_dup2(a, b) [a, b, 0, 0, 0, 0];
    dup3 => SYS_dup3(a, b, c) [a, b, c, 0, 0, 0];
    fcntl | fcntl64 => SYS_fcntl(a, b, c) [a, b, c, 0, 0, 0];
    ioctl => SYS_ioctl(a, b, c) [a, b, c, 0, 0, 0];
    bind => SYS_bind(a, b, c) [a, b, c, 0, 0, 0];
    listen => SYS_listen(a, b) [a, b, 0, 0, 0, 0];
    connect => SYS_connect(a, b, c) [a, b, c, 0, 0, 0];
    accept => SYS_accept(a, b, c) [a, b, c, 0, 0, 0];
    accept4 => SYS_accept4(a, b, c, d) [a, b, c, d, 0, 0];
    shutdown => SYS_shutdown(a, b) [a, b, 0, 0, 0, 0];
    getsockname => SYS_getsockname(a, b, c) [a, b, c, 0, 0, 0];
    getpeername => SYS_getpeername(a, b, c) [a, b, c, 0, 0, 0];
    getsockopt => SYS_getsockopt(a, b, c, d, e) [a, b, c, d, e, 0];
    setsockopt => SYS_setsockopt(a, b, c, d, e) [a, b, c, d, e, 0];
    read => SYS_read(a, b, c) [a, b, c, 0, 0, 0];
    readv => SYS_readv(a, b, c) [a, b, c, 0, 0, 0];
    recvfrom => SYS_recvfrom(a, b, c, d, e, f) [a, b, c, d, e, f];
    write => SYS_write(a, b, c) [a, b, c, 0, 0, 0];
    writev => SYS_writev(a, b, c) [a, b, c, 0, 0, 0];
    sendto => SYS_sendto(a, b, c, d, e, f) [a, b, c, d, e, f];
    sendfile | sendfile64 => SYS_sendfile(a, b, c, d) [a, b, c, d, 0, 0];
    splice => SYS_splice(a, b, c, d, e, f) [a, b, c, d, e, f];
    // The kernel takes an offset in two halves, of which the first has all of it here.
    preadv2 => SYS_preadv2(a, b, c, d, e) [a, b, c, d, 0, e];
    pwritev2 => SYS_pwritev2(a, b, c, d, e) [a, b, c, d, 0, e];
    poll => SYS_poll(a, b, c) [a, b, c, 0, 0, 0];
    epoll_create => SYS_epoll_create(a) [a, 0, 0, 0, 0, 0];
    epoll_create1 => SYS_epoll_create1(a) [a, 0, 0, 0, 0, 0];
    epoll_ctl => SYS_epoll_ctl(a, b, c, d) [a, b, c, d, 0, 0];
    epoll_wait => SYS_epoll_wait(a, b, c, d) [a, b, c, d, 0, 0];
    epoll_pwait => SYS_epoll_pwait(a, b, c, d, e) [a, b, c, d, e, SIGNAL_SET];
    epoll_pwait2 => SYS_epoll_pwait2(a, b, c, d, e) [a, b, c, d, e, SIGNAL_SET];
    setns => SYS_setns(a, b) [a, b, 0, 0, 0, 0];
    unshare => SYS_unshare(a) [a, 0, 0, 0, 0, 0];
    setrlimit | setrlimit64 => SYS_setrlimit(a, b) [a, b, 0, 0, 0, 0];
    prlimit | prlimit64 => SYS_prlimit64(a, b, c, d) [a, b, c, d, 0, 0];
    mlockall => SYS_mlockall(a) [a, 0, 0, 0, 0, 0];
    prctl => SYS_prctl(a, b, c, d, e) [a, b, c, d, e, 0];
    mount => SYS_mount(a, b, c, d, e) [a, b, c, d, e, 0];
    fork => SYS_fork() [0; 6];
}

/// syscall(2).
unsafe extern "C" fn syscall(n: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long {
    // SAFETY: the program's arguments, in the kernel's order.
    told(unsafe { raw::syscall6(n, [a, b, c, d, e, f]) })
}

/// sysconf(3), as far as it is asked here.
extern "C" fn sysconf(name: c_int) -> c_long {
    let kind = match name {
        libc::_SC_PAGESIZE => libc::AT_PAGESZ,
        libc::_SC_CLK_TCK => libc::AT_CLKTCK,
        _ => return -1,
    };
    static_program::auxiliary(kind as usize) as c_long
}
