//! Limits of the number of links per user at a listener.
//!
//! A link costs its server descriptors before the program has accepted a connection, and any user of the host can make
//! links. So each user other than our own and root has a limited number of links at each listener, and all of these
//! users together have at most a part of the process's limit of descriptors. If a limit is reached, the oldest idle
//! link is closed; if there is none the new link is refused, and its client uses TCP. Links of a user with many of them
//! are closed in favour of a user with few.

use core::sync::atomic::{AtomicU32, Ordering};
use netacc_sys::own_limit;
use netacc_transport::shm::Link;

/// Divisor of the program's limit of descriptors, and of the number that we may have if that is smaller: links of one user at one
/// listener, within the bounds of [`USER`].
const PART_OF_USER: usize = 16;
const USER: core::ops::RangeInclusive<usize> = 8..=512;
/// The same divisor for the links of all users except our own and root, at most [`OTHERS`].
const PART_OF_OTHERS: usize = 4;
const OTHERS: usize = 4096;
/// Divisor of the number of descriptors that we may have: links of our own user and root at one listener. Each costs four. They
/// are limited too, since the program must not find its descriptors used up.
const PART_OF_TRUSTED: usize = 8;
/// Smallest limit of those links.
const FEW: usize = 2;
/// Number of users that are distinguished in the search for the one with most links.
const USERS: usize = 32;

/// Number of links of other users, at all listeners of this process.
static STRANGERS: AtomicU32 = AtomicU32::new(0);

/// Whether there is room for a new link.
#[derive(Clone, Copy, Debug)]
pub(super) enum Room {
    /// There is room for another link.
    Free,
    /// There is room if this idle link is closed.
    Of(&'static Link),
    /// There is no room, and no idle link to close.
    Full,
}

/// The user of a link, as the limits distinguish them. All trusted users count as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum User {
    /// Our own user, root, or a member of the host directory's group who was met there.
    Trusted,
    /// Any other user, by its number.
    Other(u32),
}

impl User {
    /// The user whose process made the link.
    pub(super) fn of(link: &Link) -> User {
        if link.peer.is_trusted() { User::Trusted } else { User::Other(link.peer.uid()) }
    }

    /// The user with this number.
    pub(super) fn numbered(uid: u32) -> User {
        if netacc_transport::shm::users::trusted(uid) { User::Trusted } else { User::Other(uid) }
    }
}

/// Counts a link that was added to its listener.
pub(super) fn entered(link: &Link) {
    if !link.peer.is_trusted() {
        STRANGERS.fetch_add(1, Ordering::Relaxed);
    }
}

/// Uncounts a link that was removed from its listener.
pub(super) fn link_removed(link: &Link) {
    if !link.peer.is_trusted() {
        let _ = STRANGERS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
    }
}

/// Determines whether there is room for one more link of `user` at a listener with the `links`, newest first.
pub(super) fn room(links: impl Iterator<Item = &'static Link> + Clone, user: User) -> Room {
    let room = own_limit::room();
    let few = room.min(usize::try_from(own_limit::of_program()).unwrap_or(usize::MAX));
    let own = links.clone().filter(|l| User::of(l) == user).count();
    let bound = match user {
        User::Trusted => (room / PART_OF_TRUSTED).max(FEW),
        User::Other(_) => (few / PART_OF_USER).clamp(*USER.start(), *USER.end()),
    };
    if own >= bound {
        return oldest_idle(links, user);
    }
    let others = (few / PART_OF_OTHERS).clamp(*USER.start(), OTHERS);
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

/// The untrusted user with most links, and the number of them.
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
