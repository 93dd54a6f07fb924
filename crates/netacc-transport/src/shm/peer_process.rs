//! The process at the other end of a link: who it is, whether it is trusted, and whether it has ended.

use crate::shm::procfs::{is_in_another_user_namespace, is_zombie};
use crate::shm::users::are_trusted_by;
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use netacc_sys::{raw, reserved_fds};
use rustix::fd::{FromRawFd, OwnedFd};
use rustix::process::getuid;

/// The process that the kernel named as a link's peer.
#[derive(Debug)]
pub struct PeerProcess {
    /// Its process id according to the kernel (`SO_PEERCRED`); 0: it is in another PID namespace.
    pid: AtomicU32,
    /// A pidfd of it (descriptor + 1), if it has no process id here; see [`PeerProcess::lives`].
    file: AtomicI32,
    uid: AtomicU32,
    /// Set if it runs as our user or as root. The wakers of another peer are not written, since a write could block; it
    /// is woken by messages instead.
    trusted: AtomicU32,
    /// 1 if it will trust the process that made this end of the link, which is decided by that process's user at the
    /// time. It is used until the peer has stored its own word, also in the child of a fork, which may run as another
    /// user.
    expects_trust: AtomicU32,
}

impl PeerProcess {
    /// Notes the peer of a new link whose control socket is `control`.
    pub(super) fn begin(&self, control: i32, pid: u32, trusted: bool) {
        self.trusted.store(trusted.into(), Ordering::Relaxed);
        self.pid.store(pid, Ordering::Relaxed);
        self.open(control);
        self.set_uid(if trusted { getuid().as_raw() } else { u32::MAX });
    }

    /// Keeps a pidfd (`SO_PEERPIDFD`, Linux 6.5) of a peer in a PID namespace that is not visible here, so that its end
    /// can be seen. The child of a fork keeps it, too.
    fn open(&self, control: i32) {
        const SO_PEERPIDFD: i32 = 77;
        self.file.store(0, Ordering::Relaxed);
        if self.pid() != 0 {
            return;
        }
        if let Ok(fd @ 0..) = raw::getsockopt_int(control, libc::SOL_SOCKET, SO_PEERPIDFD) {
            #[allow(unsafe_code)]
            // SAFETY: the kernel has just made the descriptor for this process, and no other code knows it.
            let fd = unsafe { OwnedFd::from_raw_fd(fd) };
            if let Ok(fd) = reserved_fds::adopt(fd) {
                self.file.store(fd + 1, Ordering::Relaxed);
            }
        }
    }

    /// Closes the pidfd.
    pub(super) fn close(&self) {
        let fd = self.file.swap(0, Ordering::Relaxed) - 1;
        if fd >= 0 {
            reserved_fds::close(fd);
        }
    }

    /// The process id according to the kernel; 0: it is in another PID namespace.
    pub(super) fn pid(&self) -> u32 {
        self.pid.load(Ordering::Relaxed)
    }

    /// The user (SO_PEERCRED).
    pub fn uid(&self) -> u32 {
        self.uid.load(Ordering::Relaxed)
    }

    /// Notes the user. A process in another user namespace may see a user for us who stands for everybody, whatever number
    /// it has here, and is not expected to trust us before it says so.
    pub fn set_uid(&self, uid: u32) {
        self.uid.store(uid, Ordering::Relaxed);
        let expected = are_trusted_by(uid) && (self.pid() == 0 || !is_in_another_user_namespace(self.pid()));
        self.expects_trust.store(expected.into(), Ordering::Relaxed);
    }

    /// Whether the kernel says that it is root.
    pub fn is_root(&self) -> bool {
        self.uid() == 0
    }

    /// Whether it runs as our user or as root.
    pub fn is_trusted(&self) -> bool {
        self.trusted.load(Ordering::Relaxed) != 0
    }

    /// Ends the trust in it.
    pub(super) fn distrust(&self) {
        self.trusted.store(0, Ordering::Relaxed);
    }

    /// Whether it is expected to trust the process that made this end of the link.
    pub(super) fn will_trust_us(&self) -> bool {
        self.expects_trust.load(Ordering::Relaxed) != 0
    }

    /// Whether the process still lives. One in another PID namespace counts as alive if the kernel has no pidfd of it.
    pub(super) fn lives(&self) -> bool {
        let file = self.file.load(Ordering::Relaxed) - 1;
        if file >= 0 {
            return raw::events_now(file, libc::POLLIN) & libc::POLLIN == 0;
        }
        let pid = self.pid();
        raw::process_exists(pid) && !is_zombie(pid)
    }
}
