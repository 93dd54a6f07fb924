//! Queue pairs on which nothing comes: whether the other side is still there.

use crate::rdma::QpConn;
use crate::rdma::engine::companions::companion::Companion;
use crate::rdma::engine::qp::Keepalive;
use crate::rdma::engine::qps::Qps;
use crate::rdma::engine::worker::Engine;
use crate::timeouts;
use alloc::vec::Vec;
use netacc_sys::time;

const SILENCE: [u64; 2] = [time::ns(timeouts::SILENCE_BUSY), time::ns(timeouts::SILENCE_IDLE)];
const SILENCE_UNUSED: u64 = time::ns(timeouts::SILENCE_UNUSED);
const KEEPALIVE_ANSWER: u64 = time::ns(timeouts::KEEPALIVE_ANSWER);
const COMPLETION_STALL: u64 = time::ns(timeouts::COMPLETION_STALL);
const SILENCE_NO_COMPANION: u64 = time::ns(timeouts::SILENCE_NO_COMPANION);

/// Queue pairs whose other side may be gone, by their places.
#[derive(Default)]
struct Suspects {
    /// Those that have not answered a question.
    silent: Vec<usize>,
    /// Those that have not completed a send for long, with the completion that is awaited.
    stalled: Vec<(usize, Option<u32>)>,
    /// Those whose companion connection does not come.
    late: Vec<usize>,
    /// Those that cannot be asked, since they have no companion to go on with: for how long nothing has come.
    alone: Vec<(usize, u64)>,
}

impl Suspects {
    /// Looks at one queue pair, and asks the other side if nothing has come for long.
    fn look(&mut self, qps: &mut Qps, at: usize, now: u64) {
        let Some(qp) = qps.table.get_mut(at) else { return };
        if qp.companion.is_late(now) {
            self.late.push(at);
        }
        // A client's queue pairs end when they have been idle, and those that were never used end soon.
        let (unused, ends) = (qp.conns.is_empty(), qp.route.is_some() || !qp.used);
        let idle = unused && ends || matches!(qp.companion, Companion::Awaited(..) | Companion::Connecting(..));
        let (probed, lacks_companion) = (qp.keepalive, !qp.companion.is_hoped_for());
        let Some((qp_conn, _)) = qp.parts(&mut qps.devices) else { return };
        let awaited = qp_conn.awaited_completion();
        if qp.completion_stall.look(awaited, now) > COMPLETION_STALL && !lacks_companion {
            self.stalled.push((at, awaited));
        }
        let Some((qp_index, _)) = qp.parts(&mut qps.devices) else { return };
        if idle || probed.since == 0 || probed.received != qp_index.received() {
            qp.keepalive = Keepalive { since: now, received: qp_index.received(), probed_at: 0 };
            return;
        }
        let silence = now.saturating_sub(probed.since);
        if lacks_companion {
            let after = if unused { SILENCE_UNUSED } else { SILENCE_NO_COMPANION };
            if now.saturating_sub(probed.since.max(probed.probed_at)) > after {
                qp.keepalive.probed_at = now;
                self.alone.push((at, silence));
            }
            return;
        }
        let [busy, still] = SILENCE;
        let after = match qp_index.expects() {
            _ if unused => SILENCE_UNUSED,
            true => busy,
            false => still,
        };
        if probed.probed_at != 0 {
            if now.saturating_sub(probed.probed_at) > KEEPALIVE_ANSWER {
                self.silent.push(at);
            }
        } else if silence > after {
            // If there is no room for a question, there are others that were not answered.
            if qp_index.can_send() && qp_index.probe().is_err() {
                qps.broken.push(at);
            }
            qp.keepalive.probed_at = now;
        }
    }
}

impl Engine {
    /// Done once in a while: asks queue pairs on which nothing has come for long, and has those fail that do not
    /// answer.
    pub(super) fn probe_silent(&mut self, now: u64) {
        let mut found = Suspects::default();
        for at in 0..self.mux.qps.table.len() {
            found.look(&mut self.mux.qps, at, now);
        }
        for at in found.late {
            self.companions.timed_out(&mut self.mux.qps, at);
            self.end_lost();
        }
        self.mux.probe_devices(&found.alone);
        if !found.silent.is_empty() || !found.stalled.is_empty() {
            // We may be the ones that were stopped.
            self.complete_all();
        }
        for at in found.silent {
            let Some(qp) = self.mux.qps.table.get_mut(at) else { continue };
            let heard = qp.keepalive.received;
            if qp.parts(&mut self.mux.qps.devices).is_some_and(|(qp_index, _)| qp_index.received() == heard) {
                self.qp_failed(at, "the other side has been silent");
            }
        }
        for (at, awaited) in found.stalled {
            let Some(qp) = self.mux.qps.table.get_mut(at) else { continue };
            let stands = |(qp_conn, _): (&mut QpConn, _)| qp_conn.awaited_completion() == awaited;
            if qp.parts(&mut self.mux.qps.devices).is_some_and(stands) {
                self.qp_failed(at, "none of its sends completes");
            }
        }
    }
}
