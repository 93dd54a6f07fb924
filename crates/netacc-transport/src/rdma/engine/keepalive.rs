//! Queue pairs on which nothing comes: whether the other side is still there.

use crate::rdma::QpConn;
use crate::rdma::engine::companions::companion::Companion;
use crate::rdma::engine::qp::Keepalive;
use crate::rdma::engine::worker::Engine;
use crate::timeouts;
use alloc::vec::Vec;
use netacc_sys::time;

const SILENCE: [u64; 2] = [time::ns(timeouts::SILENCE_BUSY), time::ns(timeouts::SILENCE_IDLE)];
const SILENCE_UNUSED: u64 = time::ns(timeouts::SILENCE_UNUSED);
const KEEPALIVE_ANSWER: u64 = time::ns(timeouts::KEEPALIVE_ANSWER);
const COMPLETION_STALL: u64 = time::ns(timeouts::COMPLETION_STALL);
const SILENCE_NO_COMPANION: u64 = time::ns(timeouts::SILENCE_NO_COMPANION);

impl Engine {
    /// Done once in a while: asks queue pairs on which nothing has come for long, and has those fail that do not
    /// answer.
    pub(super) fn probe_silent(&mut self, now: u64) {
        let (mut silent, mut stalled) = (Vec::new(), Vec::new());
        let (mut late, mut alone) = (Vec::new(), Vec::new());
        for at in 0..self.mux.qps.table.len() {
            let Some(qp) = self.mux.qps.table.get_mut(at) else { continue };
            if qp.companion.is_late(now) {
                late.push(at);
            }
            // A client's queue pairs end when they have been idle, and those that were never used end soon.
            let (unused, ends) = (qp.conns.is_empty(), qp.route.is_some() || !qp.used);
            let idle = unused && ends || matches!(qp.companion, Companion::Awaited(..) | Companion::Connecting(..));
            let (probed, lacks_companion) = (qp.keepalive, !qp.companion.is_hoped_for());
            let Some(awaited) = qp.parts(&mut self.mux.qps.devices).map(|(qp_conn, _)| qp_conn.awaited_completion())
            else {
                continue;
            };
            if qp.completion_stall.look(awaited, now) > COMPLETION_STALL && !lacks_companion {
                stalled.push((at, awaited));
            }
            let Some((qp_index, _)) = qp.parts(&mut self.mux.qps.devices) else { continue };
            if idle || probed.since == 0 || probed.received != qp_index.received() {
                qp.keepalive = Keepalive { since: now, received: qp_index.received(), probed_at: 0 };
                continue;
            }
            if lacks_companion {
                let long = now.saturating_sub(probed.since.max(probed.probed_at))
                    > if unused { SILENCE_UNUSED } else { SILENCE_NO_COMPANION };
                if long {
                    qp.keepalive.probed_at = now;
                    alone.push((at, now.saturating_sub(probed.since)));
                }
                continue;
            }
            let [busy, still] = SILENCE;
            let after = match qp_index.expects() {
                _ if unused => SILENCE_UNUSED,
                true => busy,
                false => still,
            };
            if probed.probed_at != 0 {
                if now.saturating_sub(probed.probed_at) > KEEPALIVE_ANSWER {
                    silent.push(at);
                }
            } else if now.saturating_sub(probed.since) > after {
                // If there is no room for a question, there are others that were not answered.
                if qp_index.can_send() && qp_index.probe().is_err() {
                    self.mux.qps.broken.push(at);
                }
                qp.keepalive.probed_at = now;
            }
        }
        for at in late {
            self.companions.timed_out(&mut self.mux.qps, at);
            self.end_lost();
        }
        self.mux.probe_devices(&alone);
        if !silent.is_empty() || !stalled.is_empty() {
            // We may be the ones that were stopped.
            self.complete_all();
        }
        for at in silent {
            let Some(qp) = self.mux.qps.table.get_mut(at) else { continue };
            let heard = qp.keepalive.received;
            if qp.parts(&mut self.mux.qps.devices).is_some_and(|(qp_index, _)| qp_index.received() == heard) {
                self.qp_failed(at, "the other side has been silent");
            }
        }
        for (at, awaited) in stalled {
            let Some(qp) = self.mux.qps.table.get_mut(at) else { continue };
            let stands = |(qp_conn, _): (&mut QpConn, _)| qp_conn.awaited_completion() == awaited;
            if qp.parts(&mut self.mux.qps.devices).is_some_and(stands) {
                self.qp_failed(at, "none of its sends completes");
            }
        }
    }
}
