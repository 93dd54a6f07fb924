//! Checking whether the process that the kernel named as a link's peer has ended.

use crate::shm::Link;
use crate::shm::procfs::is_zombie;
use core::sync::atomic::Ordering;
use netacc_sys::{raw, reserved_fds};
use rustix::fd::{FromRawFd, OwnedFd};

impl Link {
    /// Keeps a pidfd (`SO_PEERPIDFD`, Linux 6.5) of a peer in a PID namespace that is not visible here, so that its end
    /// can be seen. The child of a fork keeps it, too.
    pub(super) fn know_peer_process(&self, control: i32) {
        const SO_PEERPIDFD: i32 = 77;
        self.peer_process.store(0, Ordering::Relaxed);
        if self.peer_pid.load(Ordering::Relaxed) != 0 {
            return;
        }
        if let Ok(fd @ 0..) = raw::getsockopt_int(control, libc::SOL_SOCKET, SO_PEERPIDFD) {
            #[allow(unsafe_code)]
            // SAFETY: the kernel has just made the descriptor for this process, and no other code knows it.
            let fd = unsafe { OwnedFd::from_raw_fd(fd) };
            if let Ok(fd) = reserved_fds::adopt(fd) {
                self.peer_process.store(fd + 1, Ordering::Relaxed);
            }
        }
    }

    pub(super) fn forget_peer_process(&self) {
        let fd = self.peer_process.swap(0, Ordering::Relaxed) - 1;
        if fd >= 0 {
            reserved_fds::close(fd);
        }
    }

    /// Whether the process that the kernel named as the peer still lives. A process in another PID namespace counts as
    /// alive if the kernel has no pidfd of it.
    pub(super) fn has_peer_process(&self) -> bool {
        let file = self.peer_process.load(Ordering::Relaxed) - 1;
        if file >= 0 {
            let mut p = libc::pollfd { fd: file, events: libc::POLLIN, revents: 0 };
            let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            let _ = raw::ppoll(&raw mut p, 1, &raw mut ts, core::ptr::null());
            return p.revents & libc::POLLIN == 0;
        }
        let pid = self.peer_pid.load(Ordering::Relaxed);
        raw::process_exists(pid) && !is_zombie(pid)
    }
}
