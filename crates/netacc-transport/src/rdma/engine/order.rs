//! Connects to one destination reach it in the order in which the program made them, whichever queue pairs and engines carry
//! them: a program that connects twice expects to be accepted in that order.
//!
//! One queue pair keeps an order, but two do not: a packet may be lost, and at the other side they may belong to
//! different threads. So a connect goes by another queue pair than the one before only when the server is known to have
//! dealt with that one. Each message says how many its sender has dealt with; if no message comes the other side is
//! asked to say something, which costs a round trip.
//!
//! Where there are several engines, each connect takes a ticket before it is queued on its engine's link. An engine takes a
//! connect from there when it has a queue pair for it and the ticket is the oldest to that destination. It keeps the
//! ticket of the last connect that it took until the server has heard of the connect, or until its own next one; then
//! it tells the engine whose turn is next. If there is one engine, its queue has the order.

use crate::rdma::engine::cell::{self, EngineCell};
use crate::rdma::engine::qp::Opened;
use crate::rdma::engine::worker::Engine;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::cell::UnsafeCell;
use core::net::SocketAddr;
use core::sync::atomic::Ordering;
use netacc_sys::Lock;

/// Per destination the engines with tickets, the oldest first.
type Tickets = Vec<(SocketAddr, VecDeque<usize>)>;

struct Shared {
    /// Taken under an engine's lock, or under none.
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
    cell::all().len() > 1
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
    SHARED.lock.reset();
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

/// Has an engine's thread look whether it can go on.
fn wake(engine: Option<usize>) {
    if let Some(cell) = engine.and_then(cell::at) {
        // SeqCst: this rings after that, and a thread that takes the mark looks at the tickets.
        cell.ticket_due.store(true, Ordering::SeqCst);
        EngineCell::ring(cell);
    }
}

impl Engine {
    /// Client's host: whether the next connect to a route's server is ours. If it is not, the engine that has the turn
    /// is told to go on.
    pub(super) fn holds_oldest_ticket(&mut self, route: usize) -> bool {
        let Some((dest, held)) = self.routes.get(route).map(|r| (r.dest, r.holds_ticket)) else { return false };
        if !is_needed() {
            return true;
        }
        let (front, next) = with(|tickets| oldest_tickets(tickets, self.index, dest, held.into()));
        if next != self.index {
            // The engine at the front may keep its ticket only because nobody has asked for it.
            wake(Some(front).filter(|e| *e != self.index));
        }
        next == self.index
    }

    /// Client's host: gives up the ticket that this engine has kept, if another engine waits for it and may go on.
    pub(super) fn pass_ticket(&mut self, route: usize) {
        let Some(dest) = self.routes.get(route).filter(|r| r.holds_ticket).map(|r| r.dest) else { return };
        let awaited = with(|tickets| nth(tickets, dest, 1)).is_some_and(|e| e != self.index);
        if awaited && self.may_send_connect(route, None) {
            self.release_ticket(route);
        }
    }

    fn release_ticket(&mut self, route: usize) {
        if let Some(r) = self.routes.get_mut(route).filter(|r| r.holds_ticket) {
            r.holds_ticket = false;
            discard_oldest(self.index, r.dest);
        }
    }

    /// Client's host: notes that a connect was taken, and goes by this queue pair.
    pub(super) fn note_open(&mut self, route: usize, qp_index: usize, conn: usize) {
        if let Some(qp) = self.qps.get_mut(qp_index) {
            qp.opened = Some(Opened { conn, after: None, awaited: false, reply_requested: false });
        }
        let Some(r) = self.routes.get_mut(route) else { return };
        r.last = Some(qp_index);
        if !is_needed() {
            return;
        }
        let dest = r.dest;
        if core::mem::replace(&mut r.holds_ticket, true) {
            discard_oldest(self.index, dest);
        }
        // Other engines may wait for what the server says of it.
        self.pump(conn);
        self.post_all();
        self.pass_ticket(route);
    }

    /// Client's host: whether a connect may go by this queue pair, or by another engine's. If not, the engine looks again when
    /// it may.
    pub(super) fn may_send_connect(&mut self, route: usize, qp_index: Option<usize>) -> bool {
        let Some(last) = self.routes.get(route).and_then(|r| r.last) else { return true };
        if qp_index == Some(last) {
            return true;
        }
        if let Some(conn) = self.unsent(last) {
            self.pump(conn);
        }
        self.post_all();
        self.on_open_answered(last);
        if self.routes.get(route).is_none_or(|r| r.last.is_none()) {
            return true;
        }
        let Some(qp) = self.qps.get_mut(last) else { return true };
        let Some(mut opened) = qp.opened.take() else { return true };
        // A queue pair that has failed is not the last one any more.
        let Some((qp_index, _)) = qp.parts(&mut self.devices) else { return true };
        opened.awaited = true;
        if opened.after.is_some() && !opened.reply_requested && qp_index.can_send() && !qp_index.is_waiting() {
            opened.reply_requested = true;
            if qp_index.probe().is_err() {
                self.broken.push(last);
            }
        }
        qp.opened = Some(opened);
        false
    }

    /// The last connection that was opened on a queue pair, if the other side has not been told of it.
    fn unsent(&self, qp_index: usize) -> Option<usize> {
        let opened = self.qps.get(qp_index)?.opened?;
        self.conns.get(opened.conn).filter(|c| c.qp == qp_index && c.opening.is_some()).map(|_| opened.conn)
    }

    /// To be called when something has come by a queue pair: the other side may have dealt with what was opened there
    /// last.
    pub(super) fn on_open_answered(&mut self, qp_index: usize) {
        let unsent = self.unsent(qp_index).is_some();
        let Some(qp) = self.qps.get_mut(qp_index) else { return };
        let (Some(mut opened), route) = (qp.opened, qp.route) else { return };
        let Some((qp_conn, _)) = qp.parts(&mut self.devices) else { return };
        if !unsent {
            opened.after = opened.after.or(Some(qp_conn.sent()));
        }
        let heard = opened.after.is_some_and(|after| qp_conn.has_acked(after));
        qp.opened = Some(opened).filter(|_| !heard);
        if heard
            && let Some(route) = route
            && let Some(r) = self.routes.get_mut(route).filter(|r| r.last == Some(qp_index))
        {
            r.last = None;
            self.release_ticket(route);
        }
        if opened.awaited && (heard || !opened.reply_requested) {
            // SeqCst: as in `wake`.
            self.cell.ticket_due.store(true, Ordering::SeqCst);
        }
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
