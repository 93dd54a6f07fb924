//! Before the process ends, or executes another program: what it has written goes out, and connections that others have
//! go on without it.
//!
//! The calling thread may be in a handler that has interrupted malloc (`_exit` is allowed there): so it only waits, and
//! the first engine's thread does the work, which allocates and forks. Where libc's fork waits for what was
//! interrupted, the caller gives up after a while, and nothing is handed over.

use crate::host::host;
use crate::rdma::MsgPath;
use crate::rdma::engine::cell::{self, EngineCell};
use crate::rdma::engine::exit_handoff::{self, Fork};
use crate::rdma::engine::worker::Engine;
use crate::rdma::engine::{process, status};
use crate::shm::Link;
use crate::timeouts;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};
use netacc_sys::set_once::SetOnce;
use netacc_sys::signals::Blocked;
use netacc_sys::time::{self, Deadline};
use netacc_sys::{SharedCell, lock, raw};

const EXIT_FLUSH: u64 = time::ns(timeouts::EXIT_FLUSH);
/// Time (ns) that the thread may take for the rest, since a copy of a large process takes long.
const COPYING: u64 = 3_000_000_000;

/// The requested [`Task`] of the thread; 0: none. The thread stores 0 when it is done. Other threads that ask meanwhile
/// wait for their turn.
static REQUESTED: AtomicU32 = AtomicU32::new(0);
/// Until when (ns) the thread is to try.
static UNTIL: SharedCell<u64> = SharedCell::<u64>::new(0);
static FORK: SetOnce<Fork> = SetOnce::new();

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
enum Task {
    /// What was written goes out.
    Write = 1,
    /// The ends of the streams go out as well.
    End = 2,
    /// Connections that others have are handed over, until the process wants them back.
    HandOff = 3,
    /// As [`Task::HandOff`], but the process takes them back if it has still not ended after a while.
    Lend = 4,
}

/// To be called when the process ends: what it has written goes out before, for at most two seconds. Connections that
/// others have go on without it, in a process that `fork` makes.
pub fn finish(fork: Fork) {
    drain(fork, Task::End, Task::HandOff);
}

/// To be called when another program is about to run in this process. This does what [`finish`] does, except that it
/// does not end the connections, since the execution may fail. Then [`go_on`] is to be called.
pub fn before_exec(fork: Fork) {
    drain(fork, Task::Write, Task::Lend);
}

/// To be called if no other program runs after all.
pub fn go_on() {
    exit_handoff::take_back();
}

fn drain(fork: Fork, write: Task, then: Task) {
    exit_handoff::take_back();
    // In a handler that has interrupted its thread in the middle of the work no thread can go on with that.
    let ours = status::count() > 0 && process::owner() == raw::getpid();
    if !ours || lock::interrupted() {
        return;
    }
    FORK.set(fork);
    let Some(host) = host() else { return };
    host.decide_upgrades();
    request(write, EXIT_FLUSH);
    host.settle_queued(Deadline::within(timeouts::EXIT_FLUSH));
    // The program must not notice the processes that are made meanwhile.
    let blocked = Blocked::all();
    let told = blocked.is_pending(libc::SIGCHLD);
    request(then, COPYING);
    if exit_handoff::has_forked() && !told {
        blocked.take(libc::SIGCHLD);
        // The program's own children may have sent the signal at the same time.
        if raw::has_ended_child() {
            raw::raise(libc::SIGCHLD);
        }
    }
}

/// Requests a task of the thread, and waits for it for at most `timeout` ns.
fn request(task: Task, timeout: u64) {
    let Some(first) = cell::first() else { return };
    let until = time::now().saturating_add(timeout);
    let mut asked = false;
    while time::now() < until {
        if asked && REQUESTED.load(Ordering::Acquire) == 0 {
            return;
        }
        if !asked {
            // First: the thread reads it when it sees the task.
            UNTIL.set(until);
            asked = REQUESTED.compare_exchange(0, task as u32, Ordering::AcqRel, Ordering::Relaxed).is_ok();
            first.ring();
        }
        let mut moment = libc::timespec { tv_sec: 0, tv_nsec: 50_000 };
        let _ = raw::ppoll(core::ptr::null_mut(), 0, &raw mut moment, core::ptr::null());
    }
    // The thread has lost its processor, or waits for the work that we have interrupted.
    if asked {
        let _ = REQUESTED.compare_exchange(task as u32, 0, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// Whether everything written has gone out; with `ends` the ends of the streams too. Each engine gets its turn, also
/// after one that is not done.
fn flushed(ends: bool) -> bool {
    cell::all().iter().fold(true, |done, cell| done & (cell.with_from_app(|e| e.flush(ends)) != Some(false)))
}

/// By an engine's thread between its rounds: serves such a request; returns whether to look again at once.
pub(super) fn serve(cell: &EngineCell) -> bool {
    let asked = REQUESTED.load(Ordering::Acquire);
    if asked == 0 || !cell::first().is_some_and(|first| core::ptr::eq(first, cell)) {
        return false;
    }
    let is = |task: Task| asked == task as u32;
    if is(Task::Write) || is(Task::End) {
        if !flushed(is(Task::End)) && time::now() < UNTIL.get() {
            raw::sched_yield();
            return true;
        }
    } else if let Some(fork) = FORK.get() {
        exit_handoff::hand_off(fork, is(Task::HandOff));
    }
    let _ = REQUESTED.compare_exchange(asked, 0, Ordering::AcqRel, Ordering::Relaxed);
    false
}

impl Engine {
    /// Whether all that was written has reached the other hosts; with `ends`, since the process ends, also the ends of
    /// its streams.
    fn flush(&mut self, ends: bool) -> bool {
        // A fork just before may have told of its child: a connection that others have does not end with this process.
        let links: Vec<&'static Link> =
            self.mux.links.table.each().filter(|(_, l)| !l.ended).map(|(_, l)| l.link).collect();
        links.into_iter().for_each(Link::service_if_readable);
        let all: Vec<usize> = self.mux.conns.table.each().map(|(c, _)| c).collect();
        for c in &all {
            self.mux.conns.queue(*c);
        }
        self.progress_once();
        let mut done = self
            .mux
            .links
            .table
            .each()
            .all(|(_, l)| l.route.is_none() || l.link.segment().is_none_or(|s| s.queued() == 0));
        for c in all {
            done &= if ends { self.mux.end_of_process(c) } else { self.mux.is_written_out(c) };
        }
        let qps: Vec<usize> = self.mux.qps.table.each().map(|(p, _)| p).collect();
        for p in qps {
            let Some(qp) = self.mux.qps.table.get_mut(p) else { continue };
            match qp.path(&mut self.mux.qps.devices) {
                Some(MsgPath::Qp(qp_index, _)) => {
                    let _ = qp_index.flush();
                    done &= qp_index.is_flushed();
                }
                Some(MsgPath::Companion(stream)) => done &= stream.is_flushed(),
                None => {}
            }
        }
        done
    }
}
