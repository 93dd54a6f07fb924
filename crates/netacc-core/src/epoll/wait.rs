//! epoll_wait(2): accelerated connections from the ready queue, everything else from the kernel.

use crate::epoll::ready::{arm_bases, arm_children, collect, enqueue, harvest};
use crate::epoll::watch::{Watch, activate, any_bits, arm_all, drop_if_useless};
use crate::epoll::{Epoll, GONE, Kind, Reg, STASH, STRUCTURE, at, open_cookie};
use crate::fdtable::{self, Ref};
use crate::outcome::Outcome;
use crate::socket::Socket;
use core::ffi::c_void;
use core::sync::atomic::Ordering;
use netacc_stats::{Counter, page};
use netacc_sys::errno::Result;
use netacc_sys::time::Deadline;
use netacc_sys::{cpu, raw};

/// While user-space events flow, the kernel's set is looked at after so many ticks (some 50
/// microseconds), so that no other descriptor starves.
const KERNEL_INTERVAL: u64 = 150_000;
/// A registration without a watch is looked at again after so long (ns).
const POLLED_STEP: i64 = 1_000_000;

/// The arguments of an epoll_wait.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// The application's array.
    pub events: *mut libc::epoll_event,
    /// Its length.
    pub max: i32,
    /// When to give up.
    pub deadline: Deadline,
    /// The kernel's signal mask or null.
    pub sigmask: *const c_void,
}

impl Call {
    /// Writes event `i`.
    #[allow(unsafe_code)]
    fn put(&self, i: usize, events: u32, data: u64) {
        // SAFETY: i < max, the length of the application's array.
        unsafe {
            self.events
                .add(i)
                .write_unaligned(libc::epoll_event { events, u64: data })
        };
    }

    #[allow(unsafe_code)]
    fn get(&self, i: usize) -> libc::epoll_event {
        // SAFETY: as above; the kernel has just written it.
        unsafe { self.events.add(i).read_unaligned() }
    }
}

/// What a look at the kernel's set brought.
#[derive(Clone, Copy, Debug, Default)]
struct Looked {
    /// Events for the application.
    foreign: usize,
    /// Events of ours.
    own: usize,
}

/// epoll_wait(2), epoll_pwait(2), epoll_pwait2(2).
pub fn wait(fd: i32, call: Call) -> Outcome {
    let Some(r) = fdtable::epoll(fd) else {
        return Outcome::Pass;
    };
    let e = r.obj;
    if e.ours.load(Ordering::Acquire) == 0 || call.max <= 0 || call.events.is_null() {
        return Outcome::Pass;
    }
    page().count(Counter::EpollWaits);
    match run(e, &call) {
        Ok(n) => Outcome::Done(n as isize),
        Err(err) => Outcome::Failed(err),
    }
}

/// One round in user space.
fn round(e: &'static Epoll, call: &Call, from: usize) -> usize {
    if e.nested.load(Ordering::Relaxed) > 0 {
        absorb_children(e);
    }
    let _g = e.lock.lock();
    collect(e);
    let mut at = from;
    harvest(e, call.max as usize - from, |events, data| {
        call.put(at, events, data);
        at += 1;
    })
}

fn run(e: &'static Epoll, call: &Call) -> Result<usize> {
    let max = call.max as usize;
    let stashed = unstash(e, call);
    loop {
        let n = stashed + round(e, call, stashed);
        if n > 0 {
            let now = cpu::ticks();
            if n < max && now.wrapping_sub(e.last_kernel.load(Ordering::Relaxed)) > KERNEL_INTERVAL
            {
                e.last_kernel.store(now, Ordering::Relaxed);
                return Ok(n + kernel(e, call, n, 0, false)?.foreign);
            }
            return Ok(n);
        }
        if call.deadline == Deadline::Now {
            let seen = kernel(e, call, 0, 0, true)?;
            return Ok(seen.foreign
                + if seen.own > 0 {
                    round(e, call, seen.foreign)
                } else {
                    0
                });
        }
        let waiting = || {
            let _g = e.lock.lock();
            e.ready_len.load(Ordering::Relaxed) > 0 || any_bits(e)
        };
        let alone = e.active.load(Ordering::Relaxed).is_null();
        if !alone
            && e.spin
                .run(e.peer_cpu.load(Ordering::Relaxed), call.deadline, waiting)
        {
            continue;
        }
        if let Some(n) = sleep(e, call)? {
            return Ok(n);
        }
    }
}

/// Sleeps in the kernel. `None`: look again.
fn sleep(e: &'static Epoll, call: &Call) -> Result<Option<usize>> {
    // Announced before the last look, so that a thread that enqueues afterwards kicks us.
    e.sleepers.fetch_add(1, Ordering::SeqCst);
    let quiet = {
        let _g = e.lock.lock();
        arm_all(e)
            && arm_children(e)
            && (e.polled.load(Ordering::Relaxed) == 0 || arm_bases(e))
            && e.ready_len.load(Ordering::Relaxed) == 0
    };
    let mut left = if quiet { call.deadline.left() } else { 0 };
    let mut bounded = false;
    if e.polled.load(Ordering::Relaxed) > e.based.load(Ordering::Relaxed)
        && !(0..=POLLED_STEP).contains(&left)
    {
        left = POLLED_STEP;
        bounded = true;
    }
    if quiet {
        page().count(Counter::Sleeps);
        crate::fork::idle_check();
    }
    let seen = kernel(e, call, 0, left, true);
    e.sleepers.fetch_sub(1, Ordering::SeqCst);
    let seen = seen?;
    e.last_kernel.store(cpu::ticks(), Ordering::Relaxed);
    if quiet && seen.own > 0 {
        page().count(Counter::Wakeups);
    }
    if seen.foreign > 0 {
        return Ok(Some(seen.foreign + round(e, call, seen.foreign)));
    }
    if quiet && !bounded && seen.own == 0 && call.deadline.passed() {
        return Ok(Some(0));
    }
    Ok(None)
}

/// Looks at the kernel's set from index `from` of the application's array on: events of ours are handled,
/// the others stay in the array.
fn kernel(
    e: &'static Epoll,
    call: &Call,
    from: usize,
    timeout: i64,
    masked: bool,
) -> Result<Looked> {
    page().count(Counter::KernelPolls);
    let mask = if masked {
        call.sigmask
    } else {
        core::ptr::null()
    };
    let room = call.max - from as i32;
    #[allow(unsafe_code)]
    // SAFETY: from < max.
    let array = unsafe { call.events.add(from) };
    let n = match raw::epoll_wait(e.fd(), array, room, timeout, mask) {
        Ok(n) => n,
        // Events were found before: they must not be lost to a signal.
        Err(_) if from > 0 => return Ok(Looked::default()),
        Err(err) => return Err(err),
    };
    let mut seen = Looked::default();
    for i in from..from + n {
        let ev = call.get(i);
        match handle(e, ev.events, ev.u64) {
            Some((events, data)) => {
                call.put(from + seen.foreign, events, data);
                seen.foreign += 1;
            }
            None => seen.own += 1,
        }
    }
    Ok(seen)
}

/// Handles one event of the kernel's set. Returns what the application gets to see, if anything.
fn handle(e: &'static Epoll, events: u32, data: u64) -> Option<(u32, u64)> {
    let Some((kind, addr)) = open_cookie(data) else {
        return Some((events, data));
    };
    let queue = |reg: &'static Reg| {
        let _g = e.lock.lock();
        // A registration that was removed, or whose object serves another instance by now, says nothing.
        if core::ptr::eq(reg.epoll.load(Ordering::Relaxed), e)
            && reg.flags.load(Ordering::Relaxed) & GONE == 0
        {
            enqueue(e, reg);
        }
    };
    let sock =
        |reg: &'static Reg| -> Option<&'static Socket> { at(reg.sock.load(Ordering::Acquire)) };
    match kind {
        Kind::Kick => {}
        Kind::Bell => {
            let w = at(addr as *mut Watch)?;
            let _g = e.lock.lock();
            if core::ptr::eq(w.epoll.load(Ordering::Relaxed), e) {
                activate(e, w);
            }
        }
        Kind::Control => serve(e, at(addr as *mut Watch)?),
        Kind::Foreign => {
            let reg = at(addr as *mut Reg)?;
            return Some((events, reg.data.load(Ordering::Relaxed)));
        }
        Kind::TcpListener => {
            let reg = at(addr as *mut Reg)?;
            if let Some(l) = sock(reg).and_then(|s| s.listener()) {
                l.tcp_waits.store(1, Ordering::Relaxed);
            }
            queue(reg);
        }
        Kind::Rendezvous => {
            let reg = at(addr as *mut Reg)?;
            if let Some(l) = sock(reg).and_then(|s| s.listener()) {
                l.take_links();
            }
            queue(reg);
        }
        Kind::Base => {
            let reg = at(addr as *mut Reg)?;
            if let Some(ep) = sock(reg).and_then(|s| s.endpoint()) {
                ep.hear();
            }
            queue(reg);
        }
        Kind::Nested => queue(at(addr as *mut Reg)?),
    }
    None
}

/// A link's control socket has something: messages, or the end.
fn serve(e: &'static Epoll, w: &'static Watch) {
    let Some(link) = w
        .link()
        .filter(|_| core::ptr::eq(w.epoll.load(Ordering::Relaxed), e))
    else {
        return;
    };
    link.hold();
    link.service();
    if link.is_lost() {
        for ep in link.endpoints().iter().filter(|ep| ep.orphaned()) {
            if let Some(s) = at(ep.owner.load(Ordering::Acquire) as *mut Socket) {
                crate::socket::reroute::reroute(Ref { obj: s, generation: s.generation() });
            }
        }
        {
            // The peer will ring no more: everything on this link has its last say.
            let _g = e.lock.lock();
            activate(e, w);
            for ep in link.endpoints() {
                if let Some(reg) = at(ep.registration.load(Ordering::Acquire) as *mut Reg)
                    && core::ptr::eq(reg.epoll.load(Ordering::Relaxed), e)
                {
                    enqueue(e, reg);
                }
            }
        }
        if link.side() == netacc_transport::shm::Side::Server
            && let Some(l) = crate::socket::listen::owner_of(link)
        {
            l.sweep();
        }
        let _s = STRUCTURE.lock();
        drop_if_useless(e, w);
    }
    link.put();
}

/// Moves what the kernel's set holds into our queue and the stash, for somebody who only asks whether the
/// instance is readable. True when something for the application was stashed.
pub(crate) fn absorb(e: &'static Epoll) -> bool {
    let mut buf = [libc::epoll_event { events: 0, u64: 0 }; STASH];
    let have = e.stash_len.load(Ordering::Relaxed) as usize;
    let room = STASH.saturating_sub(have);
    if room == 0 {
        return true;
    }
    let n =
        raw::epoll_wait(e.fd(), buf.as_mut_ptr(), room as i32, 0, core::ptr::null()).unwrap_or(0);
    let mut len = have;
    for ev in buf.iter().take(n) {
        if let Some((events, data)) = handle(e, ev.events, ev.u64)
            && let (Some(a), Some(b)) = (e.stash.get(2 * len), e.stash.get(2 * len + 1))
        {
            a.store(events.into(), Ordering::Relaxed);
            b.store(data, Ordering::Relaxed);
            len += 1;
        }
    }
    e.stash_len.store(len as u32, Ordering::Relaxed);
    len > 0
}

fn absorb_children(e: &'static Epoll) {
    let mut p = e.regs.load(Ordering::Relaxed);
    while let Some(reg) = at(p) {
        p = reg.next_all.load(Ordering::Relaxed);
        if let Some(child) = at(reg.child.load(Ordering::Relaxed)) {
            absorb(child);
        }
    }
}

fn unstash(e: &'static Epoll, call: &Call) -> usize {
    let len = e.stash_len.load(Ordering::Relaxed) as usize;
    if len == 0 {
        return 0;
    }
    e.stash_len.store(0, Ordering::Relaxed);
    let n = len.min(call.max as usize);
    for i in 0..n {
        if let (Some(a), Some(b)) = (e.stash.get(2 * i), e.stash.get(2 * i + 1)) {
            call.put(
                i,
                a.load(Ordering::Relaxed) as u32,
                b.load(Ordering::Relaxed),
            );
        }
    }
    n
}

/// Whether an instance of ours would be reported readable; the outer `None` means it is none of ours.
pub fn readable(fd: i32) -> Option<bool> {
    let e = fdtable::epoll(fd)?.obj;
    if e.ours.load(Ordering::Acquire) == 0 {
        return None;
    }
    Some(absorb(e) || super::ready::is_ready(e))
}

/// Arms an instance for a sleep on its descriptor; false when it is readable already.
pub fn arm(fd: i32) -> bool {
    fdtable::epoll(fd).is_none_or(|r| super::ready::arm(r.obj))
}
