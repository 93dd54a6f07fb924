//! What a process leaves when it ends, or when another program runs in it: the connections that it carries and that
//! other processes share.
//!
//! The kernel goes on with a TCP connection as long as any process has it. Here another process does: a copy of this
//! one for which no process waits, which closes everything of the program's, and waits for the end of this one, which
//! is the end of a pipe. Queue pairs do not survive a fork, so their connections fail over to the companions before. To
//! the copy, the program that had the connections is a peer whose process is gone.
//!
//! A copy that has waited in vain, since no other program could be executed, ends without having done anything.

use crate::Endpoint;
use crate::host::host;
use crate::num;
use crate::rdma::Device;
use crate::rdma::engine::cell::{self, EngineCell};
use crate::rdma::engine::qp::Stage;
use crate::rdma::engine::worker::{Engine, Step};
use crate::rdma::engine::{manager, order, process};
use crate::shm::{Link, ShmEndpoint};
use crate::timeouts;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use netacc_sys::errno::Errno;
use netacc_sys::thread::{self, Thread};
use netacc_sys::{SharedCell, cpu, raw, reserved_fds, time};
use netacc_verbs::EventChannel;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

/// fork(2), past our own hook: returns what fork(2) does.
pub type Fork = fn() -> i32;

/// The writing end (+ 1) of the pipe at which the copy waits; 0: there is none. Written by the thread that hands over
/// or takes back.
static COPY: AtomicI32 = AtomicI32::new(0);
/// When (ns) the copy was made.
static SINCE: SharedCell<u64> = SharedCell::<u64>::new(0);
/// Set when processes were made for it.
static FORKED: AtomicBool = AtomicBool::new(false);
/// Set if this process ends: then it gets what it handed over back only if it wants it.
static ENDS: AtomicBool = AtomicBool::new(false);
const EXEC_RETURN: u64 = time::ns(timeouts::EXEC_RETURN);
const EXIT_RETURN: u64 = time::ns(timeouts::EXIT_RETURN);
/// Stack (bytes) of a thread of the copy.
const ENGINE_STACK: usize = 2 << 20;
const HANDED_OVER_CHECK: u32 = timeouts::ms(timeouts::HANDED_OVER_CHECK);

/// Whether processes were made since the last call, of which the program was not to hear.
pub(super) fn has_forked() -> bool {
    FORKED.swap(false, Ordering::Relaxed)
}

/// Makes the copy, if it is needed; called by a thread of ours, which has all signals blocked. From then on this
/// process carries nothing until [`take_back`]; if it `ends`, not before a thread wants that.
pub(super) fn hand_off(fork: Fork, ends: bool) {
    let mut needed = false;
    for cell in cell::all() {
        needed |= cell.with_from_app(Engine::release_to_sharers) == Some(true);
    }
    if !needed {
        return;
    }
    let ours = |fd| reserved_fds::adopt(fd).ok();
    let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
    let Some((reading, writing)) = pair.ok().and_then(|(r, w)| ours(r).zip(ours(w))) else {
        return netacc_log::log!(
            Warn,
            "exit or exec: cannot create a socket pair; connections that other processes share end with this process"
        );
    };
    // What the copy goes on with is at rest.
    let (loading, held) = (manager::at_rest(false), cell::stop(false));
    let child = fork();
    if child == 0 {
        // Forked once more, so that no process waits for the copy.
        let copy = fork();
        if copy == 0 {
            drop((loading, held));
            live_on(reading);
        }
        raw::exit_group((copy < 0).into());
    }
    reserved_fds::close(reading);
    FORKED.store(child > 0, Ordering::Relaxed);
    // If the child's exit status is not available (SIGCHLD is ignored), the copy is assumed to exist.
    if u32::try_from(child).map_or(true, |child| raw::reap(child).is_some_and(|status| status != 0)) {
        reserved_fds::close(writing);
        return netacc_log::log!(
            Warn,
            "exit or exec: cannot fork a process that goes on; connections that other processes share end with this process"
        );
    }
    cell::set_aside(&held);
    ENDS.store(ends, Ordering::Relaxed);
    cell::forget_wanted();
    SINCE.set(time::now());
    COPY.store(writing + 1, Ordering::Release);
}

/// Ends the copy, since this process continues.
#[inline]
pub(super) fn take_back() {
    if COPY.load(Ordering::Acquire) != 0 {
        take_back_copy();
    }
}

#[cold]
fn take_back_copy() {
    let writing = COPY.swap(0, Ordering::AcqRel) - 1;
    if writing < 0 {
        return;
    }
    let word = [1u8];
    let _ = raw::send(writing, word.as_ptr(), word.len(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
    reserved_fds::close(writing);
    for cell in cell::all() {
        cell.bring_back();
        cell.ring();
    }
}

/// For an engine's thread that finds no engine: waits a moment. This thread finds out that no other program runs.
pub(super) fn wait_aside() {
    sleep_ms(HANDED_OVER_CHECK.into());
    let since = SINCE.get();
    let wanted = !ENDS.load(Ordering::Relaxed) || cell::was_wanted();
    if time::now().saturating_sub(since) > if wanted { EXEC_RETURN } else { EXIT_RETURN } {
        take_back();
    }
}

fn sleep_ms(ms: i64) {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: ms * 1_000_000 };
    let _ = raw::ppoll(core::ptr::null_mut(), 0, &raw mut ts, core::ptr::null());
}

/// The copy's life. All signals are blocked: it ends when what it carries has ended.
fn live_on(reading: i32) -> ! {
    raw::set_name(b"netacc-engine\0\0\0");
    process::be_alone();
    // Not by `with`, which may make progress: until the other process has ended, nothing belongs to us.
    let mut links = Vec::new();
    let mut held = vec![reading];
    for cell in cell::all() {
        let _ = cell.try_with(|e| {
            e.forget_devices();
            links.extend(e.mux.links.table.each().map(|(_, l)| l.link));
            e.descriptors(&mut held);
        });
    }
    let is_kept = |link: &'static Link| links.iter().any(|l| core::ptr::eq(*l, link));
    each_endpoint(|_, ep| {
        if !is_kept(ep.side.link()) {
            ep.side.link().inherit();
        }
    });
    close_others(held);
    let mut word = 0u8;
    loop {
        match raw::read(reading, &raw mut word, 1, None) {
            Ok(0) => break,
            Err(Errno::INTR) => {}
            _ => raw::exit_group(0),
        }
    }
    order::after_fork();
    crate::shm::after_fork();
    crate::shm::promote::after_fork();
    // On a link that is kept, the end of these endpoints with their process would not be noticed.
    each_endpoint(|shared, ep| {
        if !shared && is_kept(ep.side.link()) {
            ep.close(ep.unread() > 0);
        }
    });
    let Some((first, others)) = cell::all().split_first() else { raw::exit_group(0) };
    let start = |cell: &'static EngineCell| {
        thread::spawn("netacc-engine", ENGINE_STACK, move || run_until_idle(cell)).map_err(|_| cell)
    };
    let (threads, late): (Vec<_>, Vec<_>) = others.iter().map(start).partition(Result::is_ok);
    run_until_idle(first);
    // Engines without a thread of their own have their turn now.
    late.into_iter().filter_map(Result::err).for_each(run_until_idle);
    threads.into_iter().flatten().for_each(Thread::join);
    raw::exit_group(0)
}

/// Calls `f` for the program's connections over rings, with whether other processes share them.
fn each_endpoint(mut f: impl FnMut(bool, &'static ShmEndpoint)) {
    if let Some(host) = host() {
        host.each_conn(&mut |conn| f(conn.shared, conn.ep));
    }
}

/// Closes all descriptors but these.
fn close_others(mut held: Vec<i32>) {
    held.retain(|fd| *fd >= 0);
    held.sort_unstable();
    held.dedup();
    let mut from = 0u32;
    for fd in held.into_iter().map(i32::cast_unsigned).chain([const { num::constant(reserved_fds::MAX_FDS) }]) {
        if from < fd && raw::close_range(from, fd - 1, 0).is_err() {
            // This is for kernels before Linux 5.9, which have no close_range(2).
            for fd in from..fd {
                let _ = raw::close(fd.cast_signed());
            }
        }
        from = fd + 1;
    }
}

/// The work of an engine's thread in the copy, until nothing is left.
fn run_until_idle(cell: &'static EngineCell) {
    let _ = cell.with(Engine::be_alone);
    let mut fds = Vec::new();
    let mut last = time::now();
    loop {
        let Some(step) = cell.with(|e| (!e.mux.is_done()).then(|| e.step(&mut fds, &mut last))).flatten() else {
            return;
        };
        match step {
            Step::Again => {}
            Step::Poll | Step::Load => cpu::pause(),
            Step::Sleep { ms, naps } => {
                cell.sleep(&mut fds, ms, naps);
                let _ = cell.with(|e| e.wake(&fds));
            }
        }
    }
}

impl Engine {
    /// The process is about to end: moves the connections that others share to companion connections. Returns whether
    /// there is any such connection.
    fn release_to_sharers(&mut self) -> bool {
        self.progress_once();
        let mut qps: Vec<usize> =
            self.mux.conns.table.each().filter(|(_, c)| self.mux.links.is_handed_off(c)).map(|(_, c)| c.qp).collect();
        qps.sort_unstable();
        qps.dedup();
        let mut any = false;
        for at in qps {
            if self.mux.qps.table.get(at).is_some_and(|e| e.is_up() && e.can_hand_off()) {
                self.qp_failed(at, "its process ends, and others have some of them");
            }
            any |= self.mux.qps.table.get(at).is_some_and(|e| !e.is_up() && e.can_hand_off());
        }
        any
    }

    /// In the copy: forgets devices and connection manager, which are the other process's. Nothing of them may be
    /// touched, or given back.
    fn forget_devices(&mut self) {
        for (_, qp) in self.mux.qps.table.each_mut() {
            if !qp.is_failed_over() {
                core::mem::forget(qp.take_stage());
            }
        }
        let fds: Vec<i32> = self.mux.qps.devices.iter().flat_map(Device::descriptors).collect();
        let manager = self.mux.qps.events.as_ref().map(EventChannel::fd);
        fds.into_iter().chain(manager).chain(self.listeners.doors()).for_each(reserved_fds::close);
        core::mem::forget(core::mem::take(&mut self.mux.qps.devices));
        core::mem::forget(self.mux.qps.events.take());
        self.listeners.leave();
        self.removals.forget();
        self.said.clear();
        self.sleep.forget();
        self.mux.qps.short = false;
        for link in self
            .routes
            .table
            .each()
            .filter_map(|(_, r)| r.link)
            .chain(self.mux.links.seats.iter().map(|(link, _)| *link))
        {
            link.inherit();
        }
    }

    /// Adds the descriptors that the copy needs.
    fn descriptors(&self, held: &mut Vec<i32>) {
        held.push(self.waker);
        held.extend(self.companions.fds(&self.mux.qps));
        for (_, local) in self.mux.links.table.each() {
            local.link.descriptors(|fd| held.push(fd));
        }
        for (_, conn) in self.mux.conns.table.each() {
            held.push(conn.kernel);
            held.extend(conn.ep.descriptors());
        }
    }

    /// In the copy, when the other process has ended: ends what went by its queue pairs.
    fn be_alone(&mut self) {
        let pending: Vec<usize> =
            self.mux.conns.table.each().filter(|(_, c)| c.upgrade.is_some()).map(|(at, _)| at).collect();
        for at in pending {
            // The program's socket is still the kernel's.
            core::mem::forget(self.mux.conns.table.remove(at));
        }
        self.mux.conns.pending_upgrades.clear();
        let all: Vec<usize> = self.mux.qps.table.each().map(|(at, _)| at).collect();
        for at in all {
            if self.mux.qps.table.get(at).is_some_and(|e| matches!(e.stage(), Stage::Taken(_))) {
                self.end_qp(at, "its process has ended");
            }
        }
        let conns: Vec<usize> = self.mux.conns.table.each().map(|(at, _)| at).collect();
        conns.into_iter().for_each(|at| self.mux.conns.queue(at));
    }
}
