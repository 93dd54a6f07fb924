//! Client's host: which connect goes next, and by which queue pair: see [`order`](crate::rdma::engine::order).

use crate::rdma::engine::mux::Mux;
use crate::rdma::engine::order;
use crate::rdma::engine::qp::Opened;
use crate::rdma::engine::routes::Routes;
use core::sync::atomic::Ordering;

impl Routes {
    /// Whether the next connect to a route's server is ours. If it is not, the engine that has the turn
    /// is told to go on.
    pub fn holds_oldest_ticket(&self, mux: &Mux, route: usize) -> bool {
        let Some((dest, held)) = self.table.get(route).map(|r| (r.dest, r.holds_ticket)) else { return false };
        !order::is_needed() || order::has_turn(mux.qps.index, dest, held.into())
    }

    /// Gives up the ticket that this engine has kept, if another engine waits for it and may go on.
    pub fn pass_ticket(&mut self, mux: &mut Mux, route: usize) {
        let Some(dest) = self.table.get(route).filter(|r| r.holds_ticket).map(|r| r.dest) else { return };
        if order::is_awaited(mux.qps.index, dest) && self.may_send_connect(mux, route, None) {
            self.release_ticket(mux, route);
        }
    }

    fn release_ticket(&mut self, mux: &Mux, route: usize) {
        if let Some(r) = self.table.get_mut(route).filter(|r| r.holds_ticket) {
            r.holds_ticket = false;
            order::discard_oldest(mux.qps.index, r.dest);
        }
    }

    /// Notes that a connect was taken, and goes by this queue pair.
    pub fn note_open(&mut self, mux: &mut Mux, route: usize, qp_index: usize, conn: usize) {
        if let Some(qp) = mux.qps.table.get_mut(qp_index) {
            qp.opened = Some(Opened { conn, after: None, awaited: false, reply_requested: false });
        }
        let Some(r) = self.table.get_mut(route) else { return };
        r.last = Some(qp_index);
        if !order::is_needed() {
            return;
        }
        let dest = r.dest;
        if core::mem::replace(&mut r.holds_ticket, true) {
            order::discard_oldest(mux.qps.index, dest);
        }
        // Other engines may wait for what the server says of it.
        mux.pump(conn);
        mux.qps.post_all();
        self.pass_ticket(mux, route);
    }

    /// Whether a connect may go by this queue pair, or by another engine's. If not, the engine looks again when
    /// it may.
    pub fn may_send_connect(&mut self, mux: &mut Mux, route: usize, qp_index: Option<usize>) -> bool {
        let Some(last) = self.table.get(route).and_then(|r| r.last) else { return true };
        if qp_index == Some(last) {
            return true;
        }
        if let Some(conn) = mux.unsent(last) {
            mux.pump(conn);
        }
        mux.qps.post_all();
        self.on_open_answered(mux, last);
        if self.table.get(route).is_none_or(|r| r.last.is_none()) {
            return true;
        }
        let Some(qp) = mux.qps.table.get_mut(last) else { return true };
        let Some(mut opened) = qp.opened.take() else { return true };
        // A queue pair that has failed is not the last one any more.
        let Some((qp_index, _)) = qp.parts(&mut mux.qps.devices) else { return true };
        opened.awaited = true;
        if opened.after.is_some() && !opened.reply_requested && qp_index.can_send() && !qp_index.is_waiting() {
            opened.reply_requested = true;
            if qp_index.probe().is_err() {
                mux.qps.broken.push(last);
            }
        }
        qp.opened = Some(opened);
        false
    }

    /// To be called when something has come by a queue pair: the other side may have dealt with what was opened there
    /// last.
    pub fn on_open_answered(&mut self, mux: &mut Mux, qp_index: usize) {
        let unsent = mux.unsent(qp_index).is_some();
        let Some(qp) = mux.qps.table.get_mut(qp_index) else { return };
        let (Some(mut opened), route) = (qp.opened, qp.route) else { return };
        let Some((qp_conn, _)) = qp.parts(&mut mux.qps.devices) else { return };
        if !unsent {
            opened.after = opened.after.or(Some(qp_conn.sent()));
        }
        let heard = opened.after.is_some_and(|after| qp_conn.has_acked(after));
        qp.opened = Some(opened).filter(|_| !heard);
        if heard
            && let Some(route) = route
            && let Some(r) = self.table.get_mut(route).filter(|r| r.last == Some(qp_index))
        {
            r.last = None;
            self.release_ticket(mux, route);
        }
        if opened.awaited && (heard || !opened.reply_requested) {
            // SeqCst: as in `order::wake`.
            mux.status.ticket_due.store(true, Ordering::SeqCst);
        }
    }
}
