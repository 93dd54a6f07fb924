//! Trust in peers: by their user id, or because the host directory lets nobody in but a group.

use netacc_sys::{raw, reserved_fds};
use rustix::fd::AsRawFd;
use rustix::fs::{Mode, OFlags, open};
use rustix::process::{geteuid, getuid};

/// The id that the kernel shows for every user who has no id in our user namespace (user_namespaces(7)).
pub const OVERFLOW: u32 = 65534;

/// Whether a peer may hold our descriptors and pass us its own, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Trust {
    /// It may not.
    No = 0,
    /// It runs as our user or as root.
    User = 1,
    /// We have met it in a host directory of a group ([`crate::shm::host_access::Access::Group`]). It is trusted as long as
    /// it runs as the user that it was then.
    Group = 2,
}

impl Trust {
    /// The trust in a process that we know by nothing but its user.
    pub fn in_user(uid: u32) -> Trust {
        if trusted(uid) { Trust::User } else { Trust::No }
    }

    /// Whether it may.
    pub fn is_given(self) -> bool {
        self != Trust::No
    }

    pub(super) fn from_word(word: u32) -> Trust {
        match word {
            1 => Trust::User,
            2 => Trust::Group,
            _ => Trust::No,
        }
    }
}

/// Whether processes of this user may hold our descriptors and pass us theirs: those of our own user and of root may.
pub fn trusted(uid: u32) -> bool {
    (uid == 0 || uid == geteuid().as_raw()) && is_one_user(uid)
}

/// Whether a process of user `peer` trusts us. The kernel tells it our real user id with each message, so our effective
/// user must not differ.
pub fn are_trusted_by(peer: u32) -> bool {
    let (real, effective) = (getuid().as_raw(), geteuid().as_raw());
    real == effective && (real == 0 || real == peer) && is_one_user(real)
}

/// Whether the number stands for one user. In a user namespace the overflow id stands for every user outside of it,
/// even if a user inside has this id as well.
pub fn is_one_user(uid: u32) -> bool {
    uid != OVERFLOW || everybody_has_a_number()
}

/// Whether our user namespace maps every user, as the initial one does. False if /proc is not mounted, so that this is
/// not visible.
fn everybody_has_a_number() -> bool {
    let Ok(fd) = open(c"/proc/self/uid_map", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else { return false };
    let mut text = [0u8; 256];
    let read = raw::read(fd.as_raw_fd(), text.as_mut_ptr(), text.len(), None);
    reserved_fds::drop_raw(fd);
    read.is_ok_and(|n| maps_everybody(text.get(..n).unwrap_or(&[])))
}

/// Whether the lines of a uid_map (first id inside, first id outside, count) map every user. The last 32-bit id is not
/// a user (-1).
fn maps_everybody(map: &[u8]) -> bool {
    let mut fields = map.split(u8::is_ascii_whitespace).filter(|f| !f.is_empty());
    fields.next() == Some(b"0") && fields.next().is_some() && fields.next() == Some(b"4294967295")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_of_all_users_and_maps_of_some() {
        assert!(maps_everybody(b"         0          0 4294967295\n"));
        assert!(!maps_everybody(b"         0       1000          1\n"));
        assert!(!maps_everybody(b"         0     100000      65536\n     65536 165536 4294836223\n"));
        assert!(!maps_everybody(b"         1          1 4294967294\n"));
        assert!(!maps_everybody(b""));
    }

    #[test]
    fn ordinary_numbers_are_users() {
        assert!(is_one_user(0) && is_one_user(1000));
        assert!(trusted(geteuid().as_raw()) || geteuid().as_raw() == OVERFLOW);
        assert!(!trusted(geteuid().as_raw().wrapping_add(1)) || geteuid().as_raw() == u32::MAX);
    }
}
