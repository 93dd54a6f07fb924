//! Queue pairs on which nothing comes: whether the other side is still there.

use crate::carrier::base::Base;
use crate::carrier::engine::Engine;
use crate::carrier::entry::Quiet;
use crate::fdtable::{self, Entry};
use crate::socket::{Path, Socket, opts};
use alloc::vec::Vec;
use libc::{IPPROTO_TCP, SOL_SOCKET};

/// A queue pair with connections whose other side says nothing for so long (ns) is asked for an answer: where messages
/// wait to be confirmed, and where there are none.
const QUIET: [u64; 2] = [3_000_000_000, 15_000_000_000];
/// And without one for so long (ns) it has failed.
const ANSWER: u64 = 5_000_000_000;
/// On one without a base, so often (ns) somebody looks whether a program wants to hear of a silent path.
const LOOK: u64 = 3_000_000_000;

impl Engine {
    /// Once in a while: queue pairs on which nothing has come for long are asked, and those that do not answer have failed.
    pub(super) fn ask_the_quiet(&mut self, now: u64) {
        let mut silent = Vec::new();
        let (mut late, mut alone) = (Vec::new(), Vec::new());
        for at in 0..self.pipes.len() {
            let Some(entry) = self.pipes.get_mut(at) else { continue };
            if entry.base.is_late(now) {
                late.push(at);
            }
            let idle = entry.conns.is_empty() || matches!(entry.base, Base::Awaited(..) | Base::Connecting(..));
            let (quiet, lacks_base) = (entry.quiet, !entry.base.is_hoped_for());
            let Some((pipe, _)) = entry.parts(&mut self.devices) else { continue };
            if idle || quiet.since == 0 || quiet.heard != pipe.heard() {
                entry.quiet = Quiet { since: now, heard: pipe.heard(), asked: 0 };
                continue;
            }
            if lacks_base {
                if now.saturating_sub(quiet.since.max(quiet.asked)) > LOOK {
                    entry.quiet.asked = now;
                    alone.push((at, now.saturating_sub(quiet.since)));
                }
                continue;
            }
            let [busy, still] = QUIET;
            let after = if pipe.expects() { busy } else { still };
            if quiet.asked != 0 {
                if now.saturating_sub(quiet.asked) > ANSWER {
                    silent.push(at);
                }
            } else if now.saturating_sub(quiet.since) > after {
                // Without room for a question there are others that nobody has answered.
                if pipe.can_send() && pipe.probe().is_err() {
                    self.broken.push(at);
                }
                entry.quiet.asked = now;
            }
        }
        for at in late {
            self.lose_base(at);
        }
        self.keep_alive(&alone);
        if !silent.is_empty() {
            // It may be us who were stopped.
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

    /// These queue pairs (in order) have no base, and have been quiet for so long (ns). Where a program wants to know what that means
    /// (SO_KEEPALIVE) a message goes out, which the other device confirms, or ours gives up. An answer is not waited for: that
    /// process may be stopped.
    fn keep_alive(&mut self, alone: &[(usize, u64)]) {
        if alone.is_empty() || !opts::has_keepalive() {
            return;
        }
        let mut asked = Vec::new();
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
        asked.sort_unstable();
        asked.dedup();
        for at in asked {
            if let Some((pipe, _)) = self.pipes.get_mut(at).and_then(|e| e.parts(&mut self.devices))
                && pipe.can_send()
                && pipe.probe().is_err()
            {
                self.broken.push(at);
            }
        }
    }
}

/// How long (ms) a socket's options let the kernel try; 0: as long as it likes.
pub(super) fn patience(s: &Socket) -> u32 {
    let _g = s.meta.lock();
    let user = option(s, IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 0);
    let Some(idle) = keepalive(s).filter(|_| user == 0) else { return user };
    // tcp(7): the defaults of a host that nobody has configured.
    let number = |name, default| option(s, IPPROTO_TCP, name, default);
    let probes = number(libc::TCP_KEEPINTVL, 75).saturating_mul(number(libc::TCP_KEEPCNT, 9));
    idle.saturating_add(probes).saturating_mul(1000).min(i32::MAX as u32)
}

/// After how many quiet seconds a socket's options would have the other side asked, if at all. Under its `meta`.
fn keepalive(s: &Socket) -> Option<u32> {
    let on = option(s, SOL_SOCKET, libc::SO_KEEPALIVE, 0) != 0;
    on.then(|| option(s, IPPROTO_TCP, libc::TCP_KEEPIDLE, 7200))
}

fn option(s: &Socket, level: i32, name: i32, default: u32) -> u32 {
    s.opts.get(level, name).map_or(default, |v| v.max(0) as u32)
}
