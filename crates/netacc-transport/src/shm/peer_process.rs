//! The process at the other end of a link: who it is, whether it is trusted, and whether it has ended.

use crate::shm::procfs::{is_in_another_user_namespace, is_zombie};
use crate::shm::users::{Trust, are_trusted_by, trusted};
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use netacc_sys::{SharedCell, raw, reserved_fds};
use rustix::fd::{FromRawFd, OwnedFd};
use rustix::process::{geteuid, getuid};

/// Value of [`PeerProcess::expects_trust`]: it will not.
const DISTRUSTS: u32 = 0;
/// Value of [`PeerProcess::expects_trust`]: it will.
const TRUSTS: u32 = 1;
/// Value of [`PeerProcess::expects_trust`]: it will, unless it is in another user namespace.
const TRUSTS_IN_OURS: u32 = 2;

/// The process that the kernel named as a link's peer.
#[derive(Debug)]
pub struct PeerProcess {
    /// Its process id according to the kernel (`SO_PEERCRED`); 0: it is in another PID namespace.
    pid: SharedCell<u32>,
    /// A pidfd of it (descriptor + 1), if it has no process id here; see [`PeerProcess::lives`].
    file: AtomicI32,
    uid: AtomicU32,
    /// The [`Trust`] in it. The wakers of a peer without it are not written, since a write could block; it is woken by
    /// messages instead.
    trust: SharedCell<u32>,
    /// Our own real user when the link was made.
    ours: AtomicU32,
    /// Whether it will trust the process that made this end of the link, which is decided by that process's user at the
    /// time. It is used until the peer has stored its own word, also in the child of a fork, which may run as another
    /// user. Most peers have stored it before anybody asks; so /proc is asked for the namespace only then.
    expects_trust: SharedCell<u32>,
}

impl PeerProcess {
    /// Notes the peer of a new link whose control socket is `control`.
    pub(super) fn begin(&self, control: i32, pid: u32, trust: Trust) {
        self.trust.set(trust as u32);
        self.ours.store(getuid().as_raw(), Ordering::Relaxed);
        self.pid.set(pid);
        self.open(control);
        self.set_uid(if trust.is_given() { getuid().as_raw() } else { u32::MAX });
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
        self.pid.get()
    }

    /// The user (SO_PEERCRED).
    pub fn uid(&self) -> u32 {
        self.uid.load(Ordering::Relaxed)
    }

    /// Notes the user. A process in another user namespace may see a user for us who stands for everybody, whatever number
    /// it has here, and is not expected to trust us before it says so.
    pub fn set_uid(&self, uid: u32) {
        self.uid.store(uid, Ordering::Relaxed);
        let expected = match self.trust() {
            Trust::Group => TRUSTS,
            _ if !are_trusted_by(uid) => DISTRUSTS,
            _ if self.pid() == 0 => TRUSTS,
            _ => TRUSTS_IN_OURS,
        };
        self.expects_trust.set(expected);
    }

    /// Whether the kernel says that it is root.
    pub fn is_root(&self) -> bool {
        self.uid() == 0
    }

    fn trust(&self) -> Trust {
        Trust::from_word(self.trust.get())
    }

    /// Whether it may hold our descriptors and pass us its own.
    pub fn is_trusted(&self) -> bool {
        self.trust().is_given()
    }

    /// Whether it still may according to the kernel, which names the real user of a message's sender if that was
    /// requested.
    pub(super) fn may_pass(&self, sender: Option<u32>) -> bool {
        match self.trust() {
            Trust::No => false,
            Trust::User => sender.is_none_or(trusted),
            Trust::Group => sender.is_none_or(|uid| uid == self.uid() || trusted(uid)),
        }
    }

    /// Whether it trusts us still, if it has done so when the link was made: it is told our real user with each message,
    /// so our effective one must not differ.
    pub(super) fn goes_on_trusting_us(&self) -> bool {
        match self.trust() {
            Trust::Group => getuid() == geteuid() && getuid().as_raw() == self.ours.load(Ordering::Relaxed),
            Trust::No | Trust::User => are_trusted_by(self.uid()),
        }
    }

    /// Ends the trust in it.
    pub(super) fn distrust(&self) {
        self.trust.set(Trust::No as u32);
    }

    /// Whether it is expected to trust the process that made this end of the link.
    pub(super) fn will_trust_us(&self) -> bool {
        match self.expects_trust.get() {
            TRUSTS_IN_OURS => {
                let known = if is_in_another_user_namespace(self.pid()) { DISTRUSTS } else { TRUSTS };
                // Two threads that ask at once find the same.
                self.expects_trust.set(known);
                known == TRUSTS
            }
            known => known == TRUSTS,
        }
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
