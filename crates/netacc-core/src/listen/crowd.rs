//! How many links a listener has, of each user.
//!
//! A link costs its server descriptors before the program has accepted anything, and any user of the host can make
//! some. So each user other than our own and root has a bounded number of links at each listener, and all of these
//! users together have at most a part of what the process may have open. Where a bound is reached an idle link makes
//! room, the oldest first; if there is none the new one is refused, and its client goes to TCP. A user with many links
//! makes room for one with few.

use core::sync::atomic::{AtomicU32, Ordering};
use netacc_transport::shm::Link;
use rustix::process::{Resource, getrlimit};

/// Divisor of the process's limit of descriptors: links of one user at one listener, within the bounds of [`USER`].
const PART_OF_USER: usize = 16;
const USER: core::ops::RangeInclusive<usize> = 8..=512;
/// Divisor of the same limit: links of all users but our own and root, at most [`OTHERS`].
const PART_OF_OTHERS: usize = 4;
const OTHERS: usize = 4096;
/// Divisor of the same limit: links of our own user and root at one listener. A program with a fault is to leave us
/// something, too.
const PART_OF_TRUSTED: usize = 2;
/// Number of users that are told apart when the one with most links is looked for.
const USERS: usize = 32;

/// Number of links of other users, at all listeners of this process.
static STRANGERS: AtomicU32 = AtomicU32::new(0);

/// Whether there is room for a new link.
#[derive(Clone, Copy, Debug)]
pub(super) enum Room {
    /// There is room.
    Free,
    /// This idle link would make room.
    Of(&'static Link),
    /// There is no room, and no idle link that would make some.
    Full,
}

/// The user of a link for the bounds. All users that are trusted count as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum User {
    /// Our own user or root.
    Trusted,
    /// Any other user, by its number.
    Other(u32),
}

impl User {
    /// The user whose process made the link.
    pub(super) fn of(link: &Link) -> User {
        if link.trusts_peer() { User::Trusted } else { User::Other(link.peer_uid()) }
    }

    /// The user with this number.
    pub(super) fn numbered(uid: u32) -> User {
        if netacc_transport::shm::users::trusted(uid) { User::Trusted } else { User::Other(uid) }
    }
}

/// The link belongs to its listener from now on.
pub(super) fn entered(link: &Link) {
    if !link.trusts_peer() {
        STRANGERS.fetch_add(1, Ordering::Relaxed);
    }
}

/// The link does not belong to its listener any more.
pub(super) fn link_removed(link: &Link) {
    if !link.trusts_peer() {
        let _ = STRANGERS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
    }
}

/// Room for one more link of `user` at a listener that has `links`, the newest first.
pub(super) fn room(links: impl Iterator<Item = &'static Link> + Clone, user: User) -> Room {
    let open = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX).min(1 << 30) as usize;
    let own = links.clone().filter(|l| User::of(l) == user).count();
    let bound = match user {
        User::Trusted => (open / PART_OF_TRUSTED).max(*USER.end()),
        User::Other(_) => (open / PART_OF_USER).clamp(*USER.start(), *USER.end()),
    };
    if own >= bound {
        return oldest_idle(links, user);
    }
    let others = (open / PART_OF_OTHERS).clamp(*USER.start(), OTHERS);
    if user == User::Trusted || (STRANGERS.load(Ordering::Relaxed) as usize) < others {
        return Room::Free;
    }
    match greediest(links.clone()) {
        Some((greedy, count)) if count > own + 1 => oldest_idle(links, greedy),
        _ => Room::Full,
    }
}

fn oldest_idle(links: impl Iterator<Item = &'static Link>, user: User) -> Room {
    links.filter(|l| User::of(l) == user && l.is_idle()).last().map_or(Room::Full, Room::Of)
}

/// The other user with most links, and how many.
fn greediest(links: impl Iterator<Item = &'static Link>) -> Option<(User, usize)> {
    let mut users = [(User::Trusted, 0); USERS];
    for user in links.map(User::of).filter(|user| *user != User::Trusted) {
        let place = users.iter_mut().find(|(known, count)| *known == user || *count == 0);
        if let Some((known, count)) = place {
            *known = user;
            *count += 1;
        }
    }
    users.into_iter().filter(|(_, count)| *count > 0).max_by_key(|(_, count)| *count)
}
