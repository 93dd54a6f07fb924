//! Carries out an operator's request (`netacc_ctl`): the whole process switches to the kernel while its connections
//! live, or is accelerated again, or it loads its rules anew.
//!
//! The thread that receives the request does the work, for a slice of time in each of its calls, so that no call of the
//! program takes much longer. A connection that cannot switch yet delays no other one: it is tried again later, in a
//! later call of any thread.

use crate::fd::table::Entry;
use crate::fd::{fd_cache, placeholder, table};
use crate::listen::{adopt, opening, withdrawal};
use crate::object::reference::Ref;
use crate::object::socket::{Path, Socket};
use crate::operator::{exchange, requests, rules};
use crate::runtime::Runtime;
use crate::switch::{comeback, demote, queued_connects, redispatch};
use crate::wait::bell;
use crate::{process_mode, runtime, timeouts};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use netacc_stats::{ControlCommand, ControlState, Reason, page};
use netacc_sys::{SharedCell, lock, time};

const SLICE: u64 = time::ns(timeouts::OPERATOR_SLICE);
const RETRY_FIRST: u64 = time::ns(timeouts::OPERATOR_RETRY_FIRST);
const RETRY_LONGEST: u64 = time::ns(timeouts::OPERATOR_RETRY_LONGEST);

/// Descriptor at which the next slice begins. Only the working thread uses the words from here on.
static FROM: SharedCell<usize> = SharedCell::<usize>::new(0);
/// Number of connections that could not switch in this round.
static LEFT: AtomicU32 = AtomicU32::new(0);
/// Time (ns) between this round and the next one.
static PAUSE: AtomicU64 = AtomicU64::new(0);

static WORK: fn() = work;

/// Called when the library starts: from then on requests are carried out.
pub fn start() {
    requests::on_request(&WORK);
}

/// Called in the child of a fork, which has a page of its own: the child is on or off as its parent was, and has its
/// rules.
pub(crate) fn after_fork() {
    let unfinished = requests::after_fork();
    let to_be_replaced = exchange::after_fork();
    // Without a page of its own the child can be asked for nothing.
    let has_page = page().control().state().is_some();
    if has_page && runtime::get().is_some() && !Runtime::shows_rules() {
        requests::reload_here();
    }
    if to_be_replaced || process_mode::is_off() || process_mode::is_returning() {
        // Else the child would open a rendezvous when it is switched on, and clients would queue where nobody accepts.
        table::each_socket(|fd, r| {
            if adopt::is_kernels_listener(fd, r.obj) {
                r.obj.inherit_listener();
            }
        });
    }
    if to_be_replaced || process_mode::is_returning() {
        // Its parent was going to the kernel only to have the library replaced, which nobody has asked the child for; or
        // the thread that was switching it on is the parent's.
        on();
    }
    if !process_mode::is_off() {
        return;
    }
    FROM.set(0);
    LEFT.store(0, Ordering::Relaxed);
    page().control().set_state(if unfinished { ControlState::GoingOff } else { ControlState::Off }, 0);
    if unfinished {
        requests::left_until(0);
    }
}

/// Begins the work of a new request, or continues that of the current one.
fn work() {
    let taken = requests::take();
    if let Some(count) = taken.reload {
        rules::reload(count);
    }
    if let Some(request) = taken.switch {
        match ControlCommand::of(request) {
            // A confined process (seccomp) uses the kernel alone, and a further system call might kill it.
            _ if process_mode::reason() == Some(Reason::Confined) => {}
            Some(ControlCommand::Off) => {
                exchange::cancel();
                if !process_mode::is_off() {
                    off();
                }
            }
            Some(ControlCommand::On) => {
                exchange::cancel();
                on();
            }
            Some(ControlCommand::Upgrade) => match exchange::begin() {
                Ok(()) if !process_mode::is_off() => off(),
                Ok(()) => {}
                Err(obstacle) => exchange::refuse(obstacle),
            },
            None => {}
        }
    }
    if !process_mode::is_off() {
        bell::ring_all();
        return requests::done();
    }
    match slice() {
        Some(due) => requests::left_until(due),
        None if exchange::is_wanted() => match exchange::come_out() {
            Ok(None) => requests::rest(),
            Ok(Some(due)) => requests::left_until(due),
            Err(obstacle) => exchange::refuse(obstacle),
        },
        None => requests::done(),
    }
}

/// Ends acceleration: listeners are left to the kernel, and the switches of the connections begin.
fn off() {
    netacc_log::log!(
        Info,
        "process: switched off by an operator; its connections and its listeners go to kernel TCP, new ones begin there"
    );
    process_mode::switch_off();
    PAUSE.store(RETRY_FIRST, Ordering::Relaxed);
    table::each_socket(|fd, r| {
        if let Some(_pin) = r.pin()
            && let Some(l) = r.obj.listener()
        {
            // Clients that wait at the rendezvous may have queued the oldest connects.
            l.take_links_of_ours();
            leave_listener(fd, r.obj);
        }
    });
    page().control().set_state(ControlState::GoingOff, 0);
    placeholder::drop_ready_sockets();
    fd_cache::close_all();
    FROM.set(0);
    LEFT.store(0, Ordering::Relaxed);
}

/// Leaves a listener to the kernel, unless that would reverse the order in which its connections are accepted, or leave another
/// user's behind: then the program first accepts what waits in shared memory, and this is tried again. Returns whether the
/// listener is the kernel's.
fn leave_listener(fd: i32, s: &'static Socket) -> bool {
    if let Some(l) = s.listener().filter(|_| s.path() == Path::Listener) {
        // Before the look at the kernel's queue: a client that connects by TCP from here on waits for the outcome.
        withdrawal::announce(l, true);
        let is_patient = PAUSE.load(Ordering::Relaxed) < RETRY_LONGEST;
        if withdrawal::must_stay(l, l.kernel_fd(fd), is_patient) {
            withdrawal::announce(l, false);
            return false;
        }
        opening::give_up(fd, s, Reason::Operator);
    }
    true
}

/// Accelerates new sockets and listeners again, unless the process has another reason not to.
pub(super) fn on() {
    process_mode::switch_on();
    // A process that has slept in the kernel since another one left their listener, and so has not seen that it was
    // switched off, takes the listener up again as well.
    if process_mode::reason().is_none() {
        table::each_socket(|fd, r| {
            if let Some(_pin) = r.pin() {
                adopt::reopen(fd, r.obj);
                comeback::woken(r.obj);
            }
        });
    }
    process_mode::listeners_are_back();
    bell::ring_all();
    page().control().set_state(ControlState::On, 0);
    netacc_log::log!(
        Info,
        "process: switched on by an operator; listeners and new connections are accelerated, and so are open ones once their other ends are as well"
    );
}

/// Switches connections to the kernel for a slice of time. `None`: all have switched; else the time at which the next
/// slice is due.
fn slice() -> Option<u64> {
    queued_connects::leave_for_operator();
    // A thread that hardly gets the processor still switches one connection in each slice.
    let mut until = None;
    let mut next = None;
    table::each(FROM.get(), usize::MAX, |fd, e| {
        let Entry::Socket(r) = e else { return };
        if next.is_some() || has_left(r.obj) {
            return;
        }
        let now = time::now();
        if now > *until.get_or_insert(now.saturating_add(SLICE)) {
            next = usize::try_from(fd).ok();
        } else if !has_gone(fd, r) {
            LEFT.fetch_add(1, Ordering::Relaxed);
        }
    });
    if let Some(at) = next {
        FROM.set(at);
        page().control().set_state(ControlState::GoingOff, LEFT.load(Ordering::Relaxed) + rest(at));
        return Some(0);
    }
    FROM.set(0);
    let left = LEFT.swap(0, Ordering::Relaxed);
    if left == 0 {
        if page().control().state() != Some(ControlState::Off) {
            page().control().set_state(ControlState::Off, 0);
            netacc_log::log!(Info, "process: all connections are on kernel TCP; it stays so until it is switched on");
        }
        return None;
    }
    page().control().set_state(ControlState::GoingOff, left);
    let pause = PAUSE.load(Ordering::Relaxed);
    PAUSE.store((pause * 2).min(RETRY_LONGEST), Ordering::Relaxed);
    Some(time::now().saturating_add(pause))
}

/// Number of connections with descriptors from `at` on, which this round has not visited.
fn rest(at: usize) -> u32 {
    let mut n = 0;
    table::each(at, usize::MAX, |_, e| {
        n += u32::from(matches!(e, Entry::Socket(r) if !has_left(r.obj)));
    });
    n
}

/// Whether a socket needs nothing of the library's any more, or only its locks.
fn has_left(s: &Socket) -> bool {
    !matches!(s.path(), Path::Shm | Path::Listener) && (!s.is_candidate() || comeback::rests(s))
}

/// Switches a connection to the kernel without waiting for its peer. False: it has to be tried again.
fn has_gone(fd: i32, r: Ref<Socket>) -> bool {
    if lock::interrupted() {
        return false;
    }
    let Some(_pin) = r.pin() else { return true };
    if r.obj.path() == Path::Listener {
        return leave_listener(fd, r.obj);
    }
    let leaving = |r: Ref<Socket>| r.obj.ring().is_some_and(|ep| ep.side.is_leaving());
    if leaving(r) {
        // The peer has left already. The program first reads what is in the ring, for which it needs no other process.
        redispatch::complete_switch(r);
        return !r.obj.is_shm();
    }
    // It is tried again for some time, since another thread may have the connect just now.
    if queued_connects::is_left_behind(r.obj) && PAUSE.load(Ordering::Relaxed) < RETRY_LONGEST {
        return false;
    }
    match demote::demote_now(fd, r, Reason::Operator) {
        _ if has_left(r.obj) || !r.valid() => true,
        Ok(()) => false,
        Err(e) => {
            netacc_log::log!(Debug, "fd {fd}: cannot become a kernel socket yet ({e}); it is tried again");
            false
        }
    }
}
