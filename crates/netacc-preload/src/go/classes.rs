//! The system calls of Go programs that concern the library. Every other one is made as if we were absent.

/// Length of the table. Higher numbers do not concern us.
pub const NUMBERS: usize = 512;

/// The call does not concern us.
pub const PLAIN: u8 = 0;
/// The call concerns us if its first argument is a number of ours.
pub const DESCRIPTOR: u8 = 1;
/// The dispatcher decides.
pub const ANY: u8 = 2;
/// The dispatcher decides. Of what a child that shares our memory does between vfork and exec, such a call comes first,
/// so that it is where such a child is recognised.
pub const CHILDS: u8 = 3;

/// Calls on a descriptor, which are the most frequent ones.
const DESCRIPTORS: &[i64] = &[
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_recvfrom,
    libc::SYS_sendto,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_shutdown,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_sendfile,
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
];

const ANYS: &[i64] = &[
    libc::SYS_socket,
    libc::SYS_epoll_create,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_select,
    libc::SYS_pselect6,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_splice,
];

const CHILDREN: &[i64] = &[
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_dup,
    libc::SYS_dup2,
    libc::SYS_dup3,
    libc::SYS_fcntl,
    libc::SYS_ioctl,
    libc::SYS_fork,
    libc::SYS_vfork,
    libc::SYS_clone,
    libc::SYS_clone3,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_exit_group,
    libc::SYS_setuid,
    libc::SYS_setreuid,
    libc::SYS_setresuid,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_setrlimit,
    libc::SYS_prlimit64,
    libc::SYS_mlockall,
    libc::SYS_prctl,
    libc::SYS_seccomp,
    libc::SYS_io_uring_setup,
    libc::SYS_kcmp,
    libc::SYS_mount,
    libc::SYS_fsconfig,
    libc::SYS_bpf,
    libc::SYS_pidfd_getfd,
    // These give a child numbers that the table does not know.
    libc::SYS_open,
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_pipe2,
];

const fn with(mut table: [u8; NUMBERS], numbers: &[i64], class: u8) -> [u8; NUMBERS] {
    let mut i = 0;
    while i < numbers.len() {
        #[allow(clippy::indexing_slicing, reason = "evaluated by the compiler, which refuses what is out of bounds")]
        {
            table[numbers[i] as usize] = class;
        }
        i += 1;
    }
    table
}

/// The class of each number.
pub static CLASSES: [u8; NUMBERS] =
    with(with(with([PLAIN; NUMBERS], DESCRIPTORS, DESCRIPTOR), ANYS, ANY), CHILDREN, CHILDS);
