//! Queue pairs on which nothing comes: whether the other side is still there.

use crate::carrier::base::Base;
use crate::carrier::conn::Conn;
use crate::carrier::engine::Engine;
use crate::carrier::entry::Quiet;
use crate::fdtable::{self, Entry};
use crate::socket::{Path, Socket, opts};
use crate::timeouts;
use alloc::vec::Vec;
use libc::{IPPROTO_TCP, SOL_SOCKET};
use netacc_sys::raw;
use netacc_sys::time;
use netacc_transport::Endpoint;

const SILENCE: [u64; 2] = [time::ns(timeouts::SILENCE_BUSY), time::ns(timeouts::SILENCE_IDLE)];
const SILENCE_UNUSED: u64 = time::ns(timeouts::SILENCE_UNUSED);
const KEEPALIVE_ANSWER: u64 = time::ns(timeouts::KEEPALIVE_ANSWER);
const SILENCE_NO_COMPANION: u64 = time::ns(timeouts::SILENCE_NO_COMPANION);

impl Engine {
    /// Done once in a while: asks queue pairs on which nothing has come for long, and has those fail that do not
    /// answer.
    pub(super) fn ask_the_quiet(&mut self, now: u64) {
        let mut silent = Vec::new();
        let (mut late, mut alone) = (Vec::new(), Vec::new());
        for at in 0..self.pipes.len() {
            let Some(entry) = self.pipes.get_mut(at) else { continue };
            if entry.base.is_late(now) {
                late.push(at);
            }
            // A client's queue pairs end when they have been idle, and those that were never used end soon.
            let (unused, ends) = (entry.conns.is_empty(), entry.route.is_some() || !entry.used);
            let idle = unused && ends || matches!(entry.base, Base::Awaited(..) | Base::Connecting(..));
            let (quiet, lacks_base) = (entry.quiet, !entry.base.is_hoped_for());
            let Some((pipe, _)) = entry.parts(&mut self.devices) else { continue };
            if idle || quiet.since == 0 || quiet.heard != pipe.heard() {
                entry.quiet = Quiet { since: now, heard: pipe.heard(), asked: 0 };
                continue;
            }
            if lacks_base {
                let long = now.saturating_sub(quiet.since.max(quiet.asked))
                    > if unused { SILENCE_UNUSED } else { SILENCE_NO_COMPANION };
                if long {
                    entry.quiet.asked = now;
                    alone.push((at, now.saturating_sub(quiet.since)));
                }
                continue;
            }
            let [busy, still] = SILENCE;
            let after = match pipe.expects() {
                _ if unused => SILENCE_UNUSED,
                true => busy,
                false => still,
            };
            if quiet.asked != 0 {
                if now.saturating_sub(quiet.asked) > KEEPALIVE_ANSWER {
                    silent.push(at);
                }
            } else if now.saturating_sub(quiet.since) > after {
                // If there is no room for a question, there are others that were not answered.
                if pipe.can_send() && pipe.probe().is_err() {
                    self.broken.push(at);
                }
                entry.quiet.asked = now;
            }
        }
        for at in late {
            self.base_is_late(at);
        }
        self.ask_devices(&alone);
        if !silent.is_empty() {
            // We may be the ones that were stopped.
            self.complete_all();
        }
        for at in silent {
            let Some(entry) = self.pipes.get_mut(at) else { continue };
            let heard = entry.quiet.heard;
            if entry.parts(&mut self.devices).is_some_and(|(pipe, _)| pipe.heard() == heard) {
                self.pipe_failed(at, "the other side has been silent");
            }
        }
    }

    /// For queue pairs (in order) that have no base, and have been quiet for the given time (ns): asks the other device
    /// where that may matter. An answer of the process is not waited for, since it may be stopped.
    fn ask_devices(&mut self, alone: &[(usize, u64)]) {
        let mut asked: Vec<usize> = alone.iter().map(|(at, _)| *at).filter(|at| self.hangs_on_answer(*at)).collect();
        asked.extend(self.kept_alive(alone));
        asked.sort_unstable();
        asked.dedup();
        for at in asked {
            if let Some((pipe, _)) = self.pipes.get_mut(at).and_then(|e| e.parts(&mut self.devices))
                && pipe.ask_device().is_err()
            {
                self.broken.push(at);
            }
        }
    }

    /// Whether only the other side can make anything go on: a connection of this queue pair has bytes and no room for
    /// them (TCP would probe a window that is 0), or there is no connection and the next one would have to come.
    fn hangs_on_answer(&self, at: usize) -> bool {
        let Some(entry) = self.pipes.get(at) else { return false };
        let waits = |c: &Conn| c.stalled || (c.credit == 0 && !c.is_over() && (c.kernel >= 0 || c.ep.unread() > 0));
        let waiting = || entry.conns.values().filter_map(|c| self.conns.get(*c)).any(waits);
        entry.conns.is_empty() || !entry.resets.is_empty() || waiting()
    }

    /// The queue pairs among them where a program wants to know what the quiet means (SO_KEEPALIVE).
    fn kept_alive(&self, alone: &[(usize, u64)]) -> Vec<usize> {
        let mut asked = Vec::new();
        if alone.is_empty() || !opts::has_keepalive() {
            return asked;
        }
        fdtable::each(0, usize::MAX, |_, e| {
            let Entry::Socket(r) = e else { return };
            let after = || {
                let _g = r.obj.meta.lock();
                keepalive(r.obj)
            };
            if r.obj.path() == Path::Shm
                && let Some(ep) = r.obj.endpoint().filter(|ep| ep.is_far())
                && let Some(seconds) = after()
                && let Some(pipe) = self.mate(ep).and_then(|c| Some(self.conns.get(c)?.pipe))
                && let Ok(n) = alone.binary_search_by_key(&pipe, |(at, _)| *at)
                && alone.get(n).is_some_and(|(_, quiet)| quiet / 1_000_000_000 >= seconds.into())
            {
                asked.push(pipe);
            }
        });
        asked
    }
}

/// When the kernel is to give up a base whose queue pair has failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Patience {
    /// `TCP_USER_TIMEOUT` (ms); 0: its own default.
    ms: u32,
    /// `TCP_KEEPIDLE` and `TCP_KEEPINTVL` (s), `TCP_KEEPCNT`, if the kernel is to ask at all.
    keepalive: Option<[u32; 3]>,
}

impl Patience {
    /// The patience of a base that carries nothing: without it nobody would hear that the other host is gone.
    pub const OF_NOBODY: Patience = Patience { ms: 0, keepalive: Some([60, 15, 4]) };

    /// The patience that a socket's options ask for.
    pub fn of(s: &Socket) -> Patience {
        let _g = s.meta.lock();
        // tcp(7): the defaults of a host that was not configured.
        let number = |name, default| option(s, IPPROTO_TCP, name, default);
        let keepalive = keepalive(s).map(|idle| [idle, number(libc::TCP_KEEPINTVL, 75), number(libc::TCP_KEEPCNT, 9)]);
        let ms = match number(libc::TCP_USER_TIMEOUT, 0) {
            0 => keepalive.map_or(0, |k| seconds(k).saturating_mul(1000).min(i32::MAX as u32)),
            ms => ms,
        };
        Patience { ms, keepalive }
    }

    /// The patience of two programs that share the base: the less patient one decides.
    pub fn and(self, other: Patience) -> Patience {
        let ms = [self.ms, other.ms].into_iter().filter(|ms| *ms > 0).min().unwrap_or(0);
        let keepalive = self.keepalive.into_iter().chain(other.keepalive).min_by_key(|k| seconds(*k));
        Patience { ms, keepalive }
    }

    /// Tells the kernel.
    pub fn tell(self, fd: i32) {
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

/// Number of quiet seconds after which a socket's options would have the other side asked, if at all. Under its `meta`.
fn keepalive(s: &Socket) -> Option<u32> {
    let on = option(s, SOL_SOCKET, libc::SO_KEEPALIVE, 0) != 0;
    on.then(|| option(s, IPPROTO_TCP, libc::TCP_KEEPIDLE, 7200))
}

fn option(s: &Socket, level: i32, name: i32, default: u32) -> u32 {
    s.opts.get(level, name).map_or(default, |v| v.max(0) as u32)
}
