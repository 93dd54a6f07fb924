//! syscall(2): libuv closes with it, other programs read and write with it. A number that has a line in the
//! table goes there, so that a descriptor of ours means the same by either way. Everything else passes.

use crate::exec::hand_over;
use crate::hooks as h;
use core::ffi::{c_int, c_long, c_uint};
use netacc_core::{kernel_only, runtime};

/// The arguments arrive in registers, so six are there whatever the caller wrote.
///
/// Not here: calls whose kernel form differs in meaning from libc's (ppoll and select write the time left,
/// preadv2 splits its offset, clone), and the making of processes.
#[unsafe(no_mangle)]
#[allow(unused_unsafe, reason = "the macro has a block of its own")]
pub unsafe extern "C" fn syscall(n: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long {
    let fd = a as c_int;
    // SAFETY: the kernel's arguments of these calls are libc's, in libc's order.
    unsafe {
        match n {
            libc::SYS_close => c_long::from(h::close(fd)),
            libc::SYS_close_range => c_long::from(h::close_range(a as c_uint, b as c_uint, c as c_int)),
            libc::SYS_dup => c_long::from(h::dup(fd)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_dup2 => c_long::from(h::dup2(fd, b as c_int)),
            libc::SYS_dup3 => c_long::from(h::dup3(fd, b as c_int, c as c_int)),
            libc::SYS_fcntl => c_long::from(h::fcntl(fd, b as c_int, c)),
            libc::SYS_ioctl => c_long::from(h::ioctl(fd, b, c)),
            libc::SYS_socket => c_long::from(h::socket(fd, b as c_int, c as c_int)),
            libc::SYS_bind => c_long::from(h::bind(fd, b as _, c as _)),
            libc::SYS_listen => c_long::from(h::listen(fd, b as c_int)),
            libc::SYS_connect => c_long::from(h::connect(fd, b as _, c as _)),
            libc::SYS_accept => c_long::from(h::accept(fd, b as _, c as _)),
            libc::SYS_accept4 => c_long::from(h::accept4(fd, b as _, c as _, d as c_int)),
            libc::SYS_shutdown => c_long::from(h::shutdown(fd, b as c_int)),
            libc::SYS_getsockname => c_long::from(h::getsockname(fd, b as _, c as _)),
            libc::SYS_getpeername => c_long::from(h::getpeername(fd, b as _, c as _)),
            libc::SYS_getsockopt => c_long::from(h::getsockopt(fd, b as c_int, c as c_int, d as _, e as _)),
            libc::SYS_setsockopt => c_long::from(h::setsockopt(fd, b as c_int, c as c_int, d as _, e as _)),
            libc::SYS_read => h::read(fd, b as _, c) as c_long,
            libc::SYS_readv => h::readv(fd, b as _, c as c_int) as c_long,
            libc::SYS_recvfrom => h::recvfrom(fd, b as _, c, d as c_int, e as _, f as _) as c_long,
            libc::SYS_recvmsg => crate::arrive::recvmsg(fd, b as _, c as c_int) as c_long,
            libc::SYS_recvmmsg => c_long::from(crate::arrive::recvmmsg(fd, b as _, c as c_uint, d as c_int, e as _)),
            libc::SYS_write => h::write(fd, b as _, c) as c_long,
            libc::SYS_writev => h::writev(fd, b as _, c as c_int) as c_long,
            libc::SYS_sendto => h::sendto(fd, b as _, c, d as c_int, e as _, f as _) as c_long,
            libc::SYS_sendmsg => h::sendmsg(fd, b as _, c as c_int) as c_long,
            libc::SYS_sendmmsg => c_long::from(h::sendmmsg(fd, b as _, c as c_uint, d as c_int)),
            libc::SYS_sendfile => h::sendfile(fd, b as c_int, c as _, d) as c_long,
            #[cfg(target_arch = "x86_64")]
            libc::SYS_poll => c_long::from(h::poll(a as _, b as _, c as c_int)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_epoll_create => c_long::from(h::epoll_create(fd)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_epoll_wait => c_long::from(h::epoll_wait(fd, b as _, c as c_int, d as c_int)),
            libc::SYS_epoll_create1 => c_long::from(h::epoll_create1(fd)),
            libc::SYS_epoll_ctl => c_long::from(h::epoll_ctl(fd, b as c_int, c as c_int, d as _)),
            libc::SYS_epoll_pwait => c_long::from(h::epoll_pwait(fd, b as _, c as c_int, d as c_int, e as _)),
            libc::SYS_epoll_pwait2 => c_long::from(h::epoll_pwait2(fd, b as _, c as c_int, d as _, e as _)),
            libc::SYS_setns => c_long::from(crate::process::setns(fd, b as c_int)),
            libc::SYS_unshare => c_long::from(crate::process::unshare(fd)),
            libc::SYS_prctl => c_long::from(crate::confine::prctl(fd, b, c, d, e)),
            libc::SYS_seccomp
                if matches!(a as c_uint, libc::SECCOMP_SET_MODE_STRICT | libc::SECCOMP_SET_MODE_FILTER) =>
            {
                kernel_only::confine();
                passed(n, a, b, c, d, e, f)
            }
            libc::SYS_execve => {
                hand_over(false, b as _, c as _);
                passed(n, a, b, c, d, e, f)
            }
            libc::SYS_execveat => {
                hand_over(false, c as _, d as _);
                passed(n, a, b, c, d, e, f)
            }
            // It would work on descriptors behind our back: the program is told what many containers tell it.
            libc::SYS_io_uring_setup if runtime::get().is_some_and(|rt| rt.conf.enable_rdma_default) => {
                crate::next::fail(netacc_sys::Errno::NOSYS) as c_long
            }
            _ => passed(n, a, b, c, d, e, f),
        }
    }
}

unsafe fn passed(n: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long {
    call_next!(syscall(n => c_long, a => usize, b => usize, c => usize, d => usize, e => usize, f => usize) -> c_long)
}
