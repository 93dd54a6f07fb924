//! Replaces the library by the one that is in its file now, while the process runs (`netacc_ctl upgrade`).
//!
//! The process is first taken to the kernel as a whole, as by `netacc_ctl off`: then no connection needs the library.
//! Then the threads come out of it ([`netacc_sys::visits`]), and the one that is out first does the rest: what the new
//! copy has to know is written down ([`crate::operator::handover`]), the descriptors and the memory of the old one are
//! given back, and the exported functions lead to the new one, which begins as in a program that was just executed.
//! The table of the exported functions and the mapping of a copy are the preloaded library's, which calls this module.
//!
//! Whatever stands in the way is found before anything is given up. The process then goes on with the library that it
//! has, and is accelerated again.

use crate::conn::targets;
use crate::fd::table::Entry;
use crate::fd::{fd_cache, later, placeholder, table};
use crate::fork::descendants;
use crate::operator::{handover, requests, work};
use crate::switch::comeback;
use crate::wait::bell;
use crate::{epoll, go, listen, process_mode, timeouts};
use alloc::string::String;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use netacc_stats::{Upgraded, page};
use netacc_sys::errno::Errno;
use netacc_sys::{AtomicRef, mem, raw, reserved_fds, static_program, time, visits};
use netacc_transport::rdma::engine;
use rustix::event::{EventfdFlags, eventfd};

/// How far a request is. The thread that carries out the operator's requests writes it, and the one that has closed the
/// library, when the former is not inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
enum Stage {
    /// There is no request.
    None = 0,
    /// The process goes to the kernel, and was accelerated before.
    FromOn = 1,
    /// The process goes to the kernel, or is there: an operator had switched it off before.
    FromOff = 2,
}

static STAGE: AtomicU32 = AtomicU32::new(Stage::None as u32);

/// The eventfd (+ 1) that wakes the threads which sleep in epoll instances; 0: there is none.
static WAKER: AtomicI32 = AtomicI32::new(0);

/// Since when ([`time::now`]) a connect of this process waits at a server; 0: none does.
static WAITS_SINCE: AtomicU64 = AtomicU64::new(0);

const CONNECTS_TAKEN: u64 = time::ns(timeouts::CONNECTS_TAKEN);
const RETRY: u64 = time::ns(timeouts::OPERATOR_RETRY_FIRST);

/// How long (ns) the threads may take to come out.
const COMING_OUT: u64 = time::ns(timeouts::COMING_OUT);

/// Why the library stays.
pub type Obstacle = (Upgraded, Errno);

/// What the preloaded library does for an exchange.
#[derive(Debug)]
pub struct Exchanger {
    /// Maps the new copy. To be called before anything else.
    pub prepare: fn() -> Result<(), Obstacle>,
    /// Forgets the copy that was mapped.
    pub discard: fn(),
}

static EXCHANGER: AtomicRef<Exchanger> = AtomicRef::none();

/// Sets what the preloaded library does.
pub fn on_request(exchanger: &'static Exchanger) {
    EXCHANGER.store(Some(exchanger));
}

fn stage() -> Stage {
    match STAGE.load(Ordering::Relaxed) {
        1 => Stage::FromOn,
        2 => Stage::FromOff,
        _ => Stage::None,
    }
}

/// Whether a request is being carried out.
pub(super) fn is_wanted() -> bool {
    stage() != Stage::None
}

/// Begins with a request. The caller then takes the process to the kernel.
pub(super) fn begin() -> Result<(), Obstacle> {
    let none = |what| Err((what, Errno(0)));
    if is_wanted() {
        return Ok(());
    }
    if static_program::is_one() || go::is_followed() {
        return none(Upgraded::OwnCalls);
    }
    if process_mode::kernel_only().is_some() {
        return none(Upgraded::KernelOnly);
    }
    if engine::is_running() {
        return none(Upgraded::Rdma);
    }
    visits::prepare().map_err(|e| (Upgraded::NoBarrier, e))?;
    let Some(exchanger) = EXCHANGER.load() else { return none(Upgraded::KernelOnly) };
    (exchanger.prepare)()?;
    let from = if process_mode::is_off() { Stage::FromOff } else { Stage::FromOn };
    STAGE.store(from as u32, Ordering::Relaxed);
    Ok(())
}

/// Ends a request that another one has overtaken, or that cannot be carried out. Returns how far it was.
fn end() -> Stage {
    let was = stage();
    STAGE.store(Stage::None as u32, Ordering::Relaxed);
    WAITS_SINCE.store(0, Ordering::Relaxed);
    if was != Stage::None
        && let Some(exchanger) = EXCHANGER.load()
    {
        (exchanger.discard)();
    }
    was
}

/// Forgets a request, since the operator has asked for something else.
pub(super) fn cancel() {
    end();
}

/// Everything is on the kernel: has all threads come out of the library. The time at which to try again, if a connect of
/// this process still waits at a server.
///
/// # Errors
/// A connect waits for too long.
pub(super) fn come_out() -> Result<Option<u64>, Obstacle> {
    let now = time::now();
    if targets::any_connect_waits() {
        // Relaxed: only the thread that carries out the request uses it.
        let _ = WAITS_SINCE.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
        let too_long = now.saturating_sub(WAITS_SINCE.load(Ordering::Relaxed)) > CONNECTS_TAKEN;
        return if too_long { Err((Upgraded::NotLeft, Errno::BUSY)) } else { Ok(Some(now + RETRY)) };
    }
    visits::leave();
    wake_sleepers();
    Ok(None)
}

/// Answers a request that cannot be carried out, and accelerates the process again if it was before.
pub fn refuse((what, errno): Obstacle) {
    let was = end();
    stop_waking();
    netacc_log::log!(
        Warn,
        "process: the library is not replaced ({what}, {errno}); the process goes on with the one it has"
    );
    page().control().set_upgraded(what, errno.0);
    if was == Stage::FromOn {
        work::on();
    }
    requests::done();
}

/// Wakes the threads that sleep in calls of ours. They see that they are to come out, and do.
pub fn wake_sleepers() {
    requests::wake();
    bell::ring_all();
    let waker = waker();
    if waker >= 0 {
        table::each(0, usize::MAX, |_, entry| {
            if let Entry::Epoll(r) = entry {
                epoll::handover::wake(r.obj, waker);
            }
        });
    }
}

/// A descriptor that can be read at any time.
fn waker() -> i32 {
    if WAKER.load(Ordering::Relaxed) == 0
        && let Ok(fd) = eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        && let Ok(fd) = reserved_fds::adopt(fd)
    {
        WAKER.store(fd + 1, Ordering::Relaxed);
    }
    WAKER.load(Ordering::Relaxed) - 1
}

fn stop_waking() {
    let waker = WAKER.swap(0, Ordering::Relaxed) - 1;
    if waker < 0 {
        return;
    }
    table::each(0, usize::MAX, |_, entry| {
        if let Entry::Epoll(r) = entry {
            epoll::handover::stop_waking(r.obj, waker);
        }
    });
    reserved_fds::close(waker);
}

/// Waits until all threads are out, for a tenth of a second. Called by the thread that has closed the library.
///
/// # Errors
/// A thread stays inside.
pub fn wait_until_empty() -> Result<(), Obstacle> {
    if visits::wait_until_all_out(COMING_OUT, wake_sleepers) { Ok(()) } else { Err((Upgraded::ThreadInside, Errno(0))) }
}

/// Writes down what the new copy has to know, and gives back all descriptors of this one. Called by the thread that has
/// closed the library, when no thread is inside.
///
/// # Errors
/// A socket or an epoll instance cannot be left to the kernel; nothing has changed then.
pub fn hand_over() -> Result<String, Obstacle> {
    let not_left = |e| (Upgraded::NotLeft, e);
    let mut failed = None;
    table::each_socket(|fd, r| {
        let rests = !r.obj.is_candidate() || comeback::rests(r.obj);
        if (r.obj.is_shm() || !rests || r.obj.listener().is_some()) && failed.is_none() {
            failed = Some(Errno::BUSY);
        }
        if let Err(e) = placeholder::materialize(fd, r.obj) {
            failed = Some(e);
        }
    });
    if let Some(e) = failed {
        return Err(not_left(e));
    }
    // A thread may have done since the request began what keeps the process on the kernel for good.
    if process_mode::kernel_only().is_some() {
        return Err((Upgraded::KernelOnly, Errno(0)));
    }
    stop_waking();
    let text = handover::write(stage() == Stage::FromOff).map_err(not_left)?;
    later::close_later();
    fd_cache::close_all();
    listen::heirs::leave();
    reserved_fds::each(|fd| {
        if !descendants::held().any(|held| held == fd) {
            let _ = raw::close(fd);
        }
    });
    netacc_log::log!(Info, "process: the library is replaced by the one in its file");
    page().retire();
    Ok(text)
}

/// Takes over what the old copy has written down. Called once, in the new copy, before its first other call.
pub fn take_over(text: &str) {
    work::start();
    handover::read(text);
}

/// Gives the memory of this copy back to the kernel.
///
/// # Safety
/// No thread is inside, and none comes in again: the exported functions lead elsewhere.
#[allow(unsafe_code)]
pub unsafe fn give_memory_back() {
    // SAFETY: the caller guarantees that nobody uses it.
    unsafe { mem::give_all_back() };
}

/// Gives the memory back that this copy shares with others: links, and the statistics page, of which the process is to
/// have one only.
///
/// # Safety
/// No thread is inside, and none comes in again.
#[allow(unsafe_code)]
pub unsafe fn give_shared_memory_back() {
    // SAFETY: the caller guarantees that nobody uses it.
    unsafe {
        netacc_transport::shm::give_back_all_segments();
        netacc_stats::give_back();
    }
}

/// Called in the child of a fork: the request is the parent's.
pub(super) fn after_fork() -> bool {
    STAGE.swap(Stage::None as u32, Ordering::Relaxed) == Stage::FromOn as u32
}
