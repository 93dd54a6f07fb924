//! Connects to one destination reach it in the order in which the program made them, whichever queue pairs and engines
//! carry them: a program that connects twice expects to be accepted in that order.
//!
//! One queue pair keeps an order, but two do not: a packet may be lost, and at the other side they may belong to
//! different threads. So a connect goes by another queue pair than the one before only when the server is known to have
//! dealt with that one. Each message says how many its sender has dealt with; if no message comes the other side is
//! probed, which costs a round trip.
//!
//! Where there are several engines, each connect takes a ticket before it is queued on its engine's link. An engine
//! takes a connect from there when it has a queue pair for it and the ticket is the oldest to that destination. It
//! keeps the ticket of the last connect that it took until the server has heard of the connect, or until its own next
//! one; then it tells the engine whose turn is next. If there is one engine, its queue has the order.

use crate::rdma::engine::status;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::sync::atomic::Ordering;
use netacc_sys::{Locked, lock_rank};

/// Per destination the engines with tickets, the oldest first.
type Tickets = Vec<(SocketAddr, VecDeque<usize>)>;

/// Taken under an engine's lock, or under none.
static TICKETS: Locked<{ lock_rank::LEAF }, Tickets> = Locked::new(Vec::new());

fn with<T>(f: impl FnOnce(&mut Tickets) -> T) -> T {
    f(&mut TICKETS.lock())
}

pub(super) fn is_needed() -> bool {
    status::count() > 1
}

/// Takes a ticket for a connect to `dest` that is about to be queued for `engine`.
pub fn enter(engine: usize, dest: SocketAddr) {
    if is_needed() {
        with(|tickets| match tickets.iter_mut().find(|(d, _)| *d == dest) {
            Some((_, line)) => line.push_back(engine),
            None => tickets.push((dest, VecDeque::from([engine]))),
        });
    }
}

/// Takes back the ticket of a connect of `engine`'s that was not queued after all.
pub fn withdraw(engine: usize, dest: SocketAddr) {
    if is_needed() {
        // The newest ticket goes: the oldest may be that of a connect which has been taken.
        wake(with(|tickets| {
            let (_, line) = tickets.iter_mut().find(|(d, _)| *d == dest)?;
            line.iter().rposition(|e| *e == engine).and_then(|at| line.remove(at))?;
            let next = line.front().copied();
            tickets.retain(|(_, line)| !line.is_empty());
            next
        }));
    }
}

/// Drops the oldest ticket of `engine` to `dest`.
pub(super) fn discard_oldest(engine: usize, dest: SocketAddr) {
    if is_needed() {
        let next = with(|tickets| drop_ticket(tickets, engine, dest, 1));
        wake(next.filter(|next| *next != engine));
    }
}

/// Drops all tickets of `engine` to `dest`, since it takes no connects there any more.
pub(super) fn drop_tickets(engine: usize, dest: SocketAddr) {
    if is_needed() {
        wake(with(|tickets| drop_ticket(tickets, engine, dest, usize::MAX)));
    }
}

/// Drops tickets of `engine` to destinations to which no connect of its waits.
pub(super) fn forget_others(engine: usize, waits: impl Fn(SocketAddr) -> bool) {
    if !is_needed() {
        return;
    }
    let has = |line: &VecDeque<usize>| line.contains(&engine);
    let all: Vec<SocketAddr> = with(|tickets| tickets.iter().filter(|(_, line)| has(line)).map(|(d, _)| *d).collect());
    for dest in all.into_iter().filter(|dest| !waits(*dest)) {
        drop_tickets(engine, dest);
    }
}

/// In the child of a fork: the connects that wait are the parent's.
pub(super) fn after_fork() {
    // Another thread may have been in the middle of a change: the tickets are not looked at again.
    with(|tickets| core::mem::forget(core::mem::take(tickets)));
}

/// The engine with the ticket that comes after `others` other tickets.
fn nth(tickets: &Tickets, dest: SocketAddr, others: usize) -> Option<usize> {
    tickets.iter().find(|(d, _)| *d == dest).and_then(|(_, line)| line.get(others).copied())
}

/// The engine with the oldest ticket, and the one with the ticket after those that `engine` keeps: `held` of connects
/// that it has taken. `engine` has one more, for the connect that it is about to take: if that is lost it gets a new
/// one, since otherwise it would never have its turn.
fn oldest_tickets(tickets: &mut Tickets, engine: usize, dest: SocketAddr, held: usize) -> (usize, usize) {
    let at = tickets.iter().position(|(d, _)| *d == dest).unwrap_or(tickets.len());
    if at == tickets.len() {
        tickets.push((dest, VecDeque::new()));
    }
    let Some((_, line)) = tickets.get_mut(at) else { return (engine, engine) };
    for _ in line.iter().filter(|e| **e == engine).count()..=held {
        line.push_back(engine);
    }
    let whose = |n: usize| line.get(n).copied().unwrap_or(engine);
    (whose(0), whose(held))
}

/// Removes up to `count` of the oldest tickets of an engine; returns the engine that is first now.
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

/// Whether the next connect to a server is `engine`'s, which has kept `held` tickets of connects that it has taken. If
/// it is not, the engine that has the turn is told to go on.
pub(super) fn has_turn(engine: usize, dest: SocketAddr, held: usize) -> bool {
    let (front, next) = with(|tickets| oldest_tickets(tickets, engine, dest, held));
    if next != engine {
        // The engine at the front may keep its ticket only because nobody has asked for it.
        wake(Some(front).filter(|e| *e != engine));
    }
    next == engine
}

/// Whether another engine than `engine` waits for the ticket that this one has kept.
pub(super) fn is_awaited(engine: usize, dest: SocketAddr) -> bool {
    with(|tickets| nth(tickets, dest, 1)).is_some_and(|e| e != engine)
}

/// Wakes an engine's thread, which then checks whether it can continue.
fn wake(engine: Option<usize>) {
    if let Some(status) = engine.and_then(status::at) {
        // SeqCst: this rings after that, and a thread that takes the mark looks at the tickets.
        status.ticket_due.store(true, Ordering::SeqCst);
        status.ring();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::Ipv4Addr;

    #[test]
    fn tickets_are_served_by_age_whichever_engine_leaves() {
        let dest = |port| SocketAddr::new(Ipv4Addr::new(10, 0, 0, 1).into(), port);
        let mut t: Tickets = alloc::vec![(dest(1), VecDeque::from([2, 0, 2, 1])), (dest(2), VecDeque::from([3]))];
        assert_eq!([dest(1), dest(2), dest(3)].map(|d| nth(&t, d, 0)), [Some(2), Some(3), None]);
        assert_eq!([dest(1), dest(2), dest(3)].map(|d| nth(&t, d, 1)), [Some(0), None, None]);
        // This is not the oldest ticket, but one of a connect that was not queued after all.
        assert_eq!(drop_ticket(&mut t, 1, dest(1), 1), Some(2));
        assert_eq!(drop_ticket(&mut t, 2, dest(1), 1), Some(0));
        assert_eq!(drop_ticket(&mut t, 0, dest(1), usize::MAX), Some(2));
        assert_eq!(drop_ticket(&mut t, 3, dest(2), 1), None);
        assert_eq!(drop_ticket(&mut t, 2, dest(1), 1), None);
        assert!(t.is_empty() && drop_ticket(&mut t, 2, dest(1), 1).is_none());
    }

    #[test]
    fn a_lost_ticket_is_made_good() {
        let dest = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 1);
        let mut t: Tickets = alloc::vec![(dest, VecDeque::from([0]))];
        // Engine 0 keeps its ticket, and 1 has lost its own: it waits for 0, which can see that.
        assert_eq!(oldest_tickets(&mut t, 1, dest, 0), (0, 0));
        assert_eq!(nth(&t, dest, 1), Some(1));
        // Engine 1 does not get another ticket each time.
        assert_eq!(oldest_tickets(&mut t, 1, dest, 0), (0, 0));
        assert_eq!(drop_ticket(&mut t, 0, dest, 1), Some(1));
        assert_eq!(oldest_tickets(&mut t, 1, dest, 0), (1, 1));
        // The next ticket of an engine that keeps one comes after those of the others.
        assert_eq!(drop_ticket(&mut t, 1, dest, 1), None);
        assert_eq!(oldest_tickets(&mut t, 1, dest, 1), (1, 1));
        assert_eq!(t, [(dest, VecDeque::from([1, 1]))]);
    }
}
