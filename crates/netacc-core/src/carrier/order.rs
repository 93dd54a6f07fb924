//! Connects to one destination reach it in the order in which the program made them, whichever engines carry them: who
//! connects twice expects to be accepted in that order.
//!
//! Each connect takes a ticket before it is queued on its engine's link. An engine takes a connect from there when it has a
//! queue pair for it and the ticket is the oldest to that destination; then it tells the engine whose turn is next. Where
//! there is one engine its queue has the order, and none of this is done.

use crate::carrier::engines::{self, Place};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::cell::UnsafeCell;
use core::net::SocketAddr;
use core::sync::atomic::Ordering;
use netacc_sys::Lock;

/// Per destination the engines with tickets, oldest first.
type Tickets = Vec<(SocketAddr, VecDeque<usize>)>;

struct Shared {
    /// Taken with an engine's, or with none.
    lock: Lock,
    tickets: UnsafeCell<Tickets>,
}

#[allow(unsafe_code)]
// SAFETY: the tickets are only reached under the lock.
unsafe impl Sync for Shared {}

static SHARED: Shared = Shared { lock: Lock::new(), tickets: UnsafeCell::new(Vec::new()) };

#[allow(unsafe_code)]
fn with<T>(f: impl FnOnce(&mut Tickets) -> T) -> T {
    let _g = SHARED.lock.lock();
    // SAFETY: under the lock, and `f` cannot keep the reference.
    f(unsafe { &mut *SHARED.tickets.get() })
}

fn is_needed() -> bool {
    engines::all().len() > 1
}

/// A connect to `dest` is about to be queued for `engine`.
pub fn enter(engine: usize, dest: SocketAddr) {
    if is_needed() {
        with(|tickets| match tickets.iter_mut().find(|(d, _)| *d == dest) {
            Some((_, line)) => line.push_back(engine),
            None => tickets.push((dest, VecDeque::from([engine]))),
        });
    }
}

/// Whether `engine` has the oldest ticket to `dest`.
pub(super) fn is_first(engine: usize, dest: SocketAddr) -> bool {
    !is_needed() || with(|tickets| first(tickets, dest).is_none_or(|e| e == engine))
}

/// `engine` has taken its oldest connect to `dest`, or it was not queued after all.
pub fn leave(engine: usize, dest: SocketAddr) {
    if is_needed() {
        let next = with(|tickets| drop_ticket(tickets, engine, dest, 1));
        tell(next.filter(|next| *next != engine));
    }
}

/// `engine` takes no connects to `dest` any more.
pub(super) fn leave_all(engine: usize, dest: SocketAddr) {
    if is_needed() {
        tell(with(|tickets| drop_ticket(tickets, engine, dest, usize::MAX)));
    }
}

/// Tickets of `engine` to destinations to which no connect of its waits are gone.
pub(super) fn forget_others(engine: usize, waits: impl Fn(SocketAddr) -> bool) {
    if !is_needed() {
        return;
    }
    let has = |line: &VecDeque<usize>| line.contains(&engine);
    let all: Vec<SocketAddr> = with(|tickets| tickets.iter().filter(|(_, line)| has(line)).map(|(d, _)| *d).collect());
    for dest in all.into_iter().filter(|dest| !waits(*dest)) {
        leave_all(engine, dest);
    }
}

/// In the child of a fork: the connects that wait are the parent's.
pub(super) fn after_fork() {
    SHARED.lock.reset();
    // Another thread may have been in the middle of a change: they are not looked at again.
    with(|tickets| core::mem::forget(core::mem::take(tickets)));
}

fn first(tickets: &Tickets, dest: SocketAddr) -> Option<usize> {
    tickets.iter().find(|(d, _)| *d == dest).and_then(|(_, line)| line.front().copied())
}

/// Up to `count` of the oldest tickets of an engine are gone; who is first now.
fn drop_ticket(tickets: &mut Tickets, engine: usize, dest: SocketAddr, mut count: usize) -> Option<usize> {
    let (_, line) = tickets.iter_mut().find(|(d, _)| *d == dest)?;
    line.retain(|e| {
        let goes = *e == engine && count > 0;
        count -= usize::from(goes);
        !goes
    });
    let next = line.front().copied();
    if next.is_none() {
        tickets.retain(|(_, line)| !line.is_empty());
    }
    next
}

/// Its thread looks whether it can go on.
fn tell(engine: Option<usize>) {
    if let Some(place) = engine.and_then(engines::at) {
        // SeqCst: it rings after that, and who takes the mark looks at the tickets.
        place.its_turn.store(true, Ordering::SeqCst);
        Place::ring(place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::Ipv4Addr;

    #[test]
    fn tickets_are_served_by_age_whoever_leaves() {
        let dest = |port| SocketAddr::new(Ipv4Addr::new(10, 0, 0, 1).into(), port);
        let mut t: Tickets = alloc::vec![(dest(1), VecDeque::from([2, 0, 2, 1])), (dest(2), VecDeque::from([3]))];
        assert_eq!((first(&t, dest(1)), first(&t, dest(2)), first(&t, dest(3))), (Some(2), Some(3), None));
        // Not the oldest: one that was not queued after all.
        assert_eq!(drop_ticket(&mut t, 1, dest(1), 1), Some(2));
        assert_eq!(drop_ticket(&mut t, 2, dest(1), 1), Some(0));
        assert_eq!(drop_ticket(&mut t, 0, dest(1), usize::MAX), Some(2));
        assert_eq!(drop_ticket(&mut t, 3, dest(2), 1), None);
        assert_eq!(drop_ticket(&mut t, 2, dest(1), 1), None);
        assert!(t.is_empty() && drop_ticket(&mut t, 2, dest(1), 1).is_none());
    }
}
