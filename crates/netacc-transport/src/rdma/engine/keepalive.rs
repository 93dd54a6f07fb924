//! Queue pairs on which nothing comes: whether the other side is still there.

use crate::Endpoint;
use crate::host::{ConnToken, Patience, host};
use crate::rdma::engine::companion::Companion;
use crate::rdma::engine::conn::Conn;
use crate::rdma::engine::qp::Keepalive;
use crate::rdma::engine::worker::Engine;
use crate::timeouts;
use alloc::vec::Vec;
use libc::{IPPROTO_TCP, SOL_SOCKET};
use netacc_sys::raw;
use netacc_sys::time;

const SILENCE: [u64; 2] = [time::ns(timeouts::SILENCE_BUSY), time::ns(timeouts::SILENCE_IDLE)];
const SILENCE_UNUSED: u64 = time::ns(timeouts::SILENCE_UNUSED);
const KEEPALIVE_ANSWER: u64 = time::ns(timeouts::KEEPALIVE_ANSWER);
const SILENCE_NO_COMPANION: u64 = time::ns(timeouts::SILENCE_NO_COMPANION);

impl Engine {
    /// Done once in a while: asks queue pairs on which nothing has come for long, and has those fail that do not
    /// answer.
    pub(super) fn probe_silent(&mut self, now: u64) {
        let mut silent = Vec::new();
        let (mut late, mut alone) = (Vec::new(), Vec::new());
        for at in 0..self.qps.len() {
            let Some(qp) = self.qps.get_mut(at) else { continue };
            if qp.companion.is_late(now) {
                late.push(at);
            }
            // A client's queue pairs end when they have been idle, and those that were never used end soon.
            let (unused, ends) = (qp.conns.is_empty(), qp.route.is_some() || !qp.used);
            let idle = unused && ends || matches!(qp.companion, Companion::Awaited(..) | Companion::Connecting(..));
            let (probed, lacks_companion) = (qp.keepalive, !qp.companion.is_hoped_for());
            let Some((qp_index, _)) = qp.parts(&mut self.devices) else { continue };
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
                    self.broken.push(at);
                }
                qp.keepalive.probed_at = now;
            }
        }
        for at in late {
            self.companion_timed_out(at);
        }
        self.probe_devices(&alone);
        if !silent.is_empty() {
            // We may be the ones that were stopped.
            self.complete_all();
        }
        for at in silent {
            let Some(qp) = self.qps.get_mut(at) else { continue };
            let heard = qp.keepalive.received;
            if qp.parts(&mut self.devices).is_some_and(|(qp_index, _)| qp_index.received() == heard) {
                self.qp_failed(at, "the other side has been silent");
            }
        }
    }

    /// For queue pairs (in order) that have no companion connection, and have been silent for the given time (ns): asks
    /// the other device where that may matter. An answer of the process is not waited for, since it may be stopped.
    fn probe_devices(&mut self, alone: &[(usize, u64)]) {
        let mut asked: Vec<usize> = alone.iter().map(|(at, _)| *at).filter(|at| self.hangs_on_answer(*at)).collect();
        asked.extend(self.with_keepalive(alone));
        asked.sort_unstable();
        asked.dedup();
        for at in asked {
            if let Some((qp_index, _)) = self.qps.get_mut(at).and_then(|e| e.parts(&mut self.devices))
                && qp_index.probe_device().is_err()
            {
                self.broken.push(at);
            }
        }
    }

    /// Whether only the other side can make anything go on: a connection of this queue pair has bytes and no room for
    /// them (TCP would probe a window that is 0), or there is no connection and the next one would have to come.
    fn hangs_on_answer(&self, at: usize) -> bool {
        let Some(qp) = self.qps.get(at) else { return false };
        let waits = |c: &Conn| c.stalled || (c.credit == 0 && !c.is_off_qp() && (c.kernel >= 0 || c.ep.unread() > 0));
        let waiting = || qp.conns.values().filter_map(|c| self.conns.get(*c)).any(waits);
        qp.conns.is_empty() || !qp.resets.is_empty() || waiting()
    }

    /// The queue pairs among them where a program wants to know what the silence means (SO_KEEPALIVE).
    fn with_keepalive(&self, alone: &[(usize, u64)]) -> Vec<usize> {
        let mut asked = Vec::new();
        let Some(host) = host().filter(|host| !alone.is_empty() && host.has_keepalive()) else { return asked };
        host.each_conn(&mut |conn| {
            if conn.ep.is_remote()
                && let Some([seconds, ..]) = host.patience(conn.socket).keepalive
                && let Some(qp_index) = self.mate(conn.ep).and_then(|c| Some(self.conns.get(c)?.qp))
                && let Ok(n) = alone.binary_search_by_key(&qp_index, |(at, _)| *at)
                && alone.get(n).is_some_and(|(_, probed)| probed / 1_000_000_000 >= seconds.into())
            {
                asked.push(qp_index);
            }
        });
        asked
    }
}

/// When the kernel is to give up a companion connection whose queue pair has failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct UserTimeout {
    /// `TCP_USER_TIMEOUT` (ms); 0: its own default.
    ms: u32,
    /// `TCP_KEEPIDLE` and `TCP_KEEPINTVL` (s), `TCP_KEEPCNT`, if the kernel is to ask at all.
    keepalive: Option<[u32; 3]>,
}

impl UserTimeout {
    /// The patience of a companion connection that carries nothing: without it nobody would hear that the other host is gone.
    pub const OF_NOBODY: UserTimeout = UserTimeout { ms: 0, keepalive: Some([60, 15, 4]) };

    /// The patience that a socket's options ask for.
    pub fn of(socket: ConnToken) -> UserTimeout {
        let Patience { user_timeout_ms, keepalive } =
            host().map_or_else(Patience::default, |host| host.patience(socket));
        let ms = match user_timeout_ms {
            0 => keepalive.map_or(0, |k| seconds(k).saturating_mul(1000).min(i32::MAX as u32)),
            ms => ms,
        };
        UserTimeout { ms, keepalive }
    }

    /// The patience of two programs that share the companion connection: the less patient one decides.
    pub fn and(self, other: UserTimeout) -> UserTimeout {
        let ms = [self.ms, other.ms].into_iter().filter(|ms| *ms > 0).min().unwrap_or(0);
        let keepalive = self.keepalive.into_iter().chain(other.keepalive).min_by_key(|k| seconds(*k));
        UserTimeout { ms, keepalive }
    }

    /// Tells the kernel.
    pub fn apply(self, fd: i32) {
        let _ = raw::setsockopt_int(fd, IPPROTO_TCP, libc::TCP_USER_TIMEOUT, self.ms as i32);
        let names = [libc::TCP_KEEPIDLE, libc::TCP_KEEPINTVL, libc::TCP_KEEPCNT];
        for (name, value) in names.into_iter().zip(self.keepalive.into_iter().flatten()) {
            let _ = raw::setsockopt_int(fd, IPPROTO_TCP, name, value as i32);
        }
        let _ = raw::setsockopt_int(fd, SOL_SOCKET, libc::SO_KEEPALIVE, self.keepalive.is_some().into());
    }
}

/// Time (s) that silence lasts until keepalive gives up.
fn seconds([idle, interval, count]: [u32; 3]) -> u32 {
    idle.saturating_add(interval.saturating_mul(count))
}
