//! fork(2): what parent and child may touch, and when a connection is nobody else's again.

use crate::fdtable::{self, Entry, Ref};
use crate::socket::{self, Path, SHARED, Socket};
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use netacc_stats::{Counter, page};
use netacc_sys::errno::Result;
use netacc_sys::{Lock, private, raw};
use netacc_transport::shm::Link;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::pipe::{PipeFlags, pipe_with};

/// Forks whose children (or their children) may still live, at most. Beyond that connections stay shared,
/// which costs a little speed and nothing else.
const FORKS: usize = 64;

/// Reading ends (descriptor + 1) of pipes whose writing ends the descendants hold: the kernel ends one when
/// the last of them is gone or runs another program.
static DESCENDANTS: [AtomicI32; FORKS] = [const { AtomicI32::new(0) }; FORKS];
/// Pipes in `DESCENDANTS`, or `FORKS + 1` when there was no room for one.
static LIVE: AtomicU32 = AtomicU32::new(0);
/// Guards both.
static LOCK: Lock = Lock::new();

/// What [`prepare`] hands to [`parent`] and [`child`].
#[derive(Debug, Default)]
pub struct Forking {
    /// Reading and writing end of the pipe, if there is anything to share.
    pipe: Option<(i32, i32)>,
}

/// Before the fork, in the parent: every unconnected socket becomes real, every connection gets what several
/// processes need to share it.
pub fn prepare() -> Forking {
    let mut shared = false;
    fdtable::each(0, usize::MAX, |fd, e| {
        let Entry::Socket(r) = e else { return };
        match r.obj.path() {
            Path::New => {
                let _ = socket::create::materialize(fd, r.obj);
            }
            Path::Shm => {
                shared = true;
                share(fd, r);
            }
            Path::Listener => {
                if let Some(l) = r.obj.listener() {
                    l.many.store(1, Ordering::Relaxed);
                }
            }
            Path::Tcp => {
                if r.obj.has(socket::CANDIDATE) && socket::promote::cancel(fd, r) {
                    shared = true;
                    share(fd, r);
                }
            }
        }
    });
    let mut forking = Forking::default();
    if shared {
        page().count(Counter::Forks);
        forking.pipe = pipe_with(PipeFlags::CLOEXEC).ok().and_then(|(r, w)| {
            let r = private::adopt(r).ok()?;
            Some((r, private::adopt(w).ok()?))
        });
    }
    forking
}

fn share(fd: i32, r: Ref<Socket>) {
    let s = r.obj;
    let Some(ep) = s.endpoint() else { return };
    // Nobody is in the middle of an operation when the connection becomes shared.
    let _g = (s.rx.lock(), s.tx.lock());
    if s.set(SHARED, true) && ep.base_fd() >= 0 {
        return;
    }
    match ep.share() {
        Ok(Some(base)) => {
            if let Err(e) = put_under(fd, r, &base) {
                crate::log!(Warn, "fd {fd}: no base for the child: {e}");
            }
            private::drop_raw(base);
        }
        Ok(None) => {}
        Err(e) => crate::log!(Warn, "fd {fd}: no base for the child: {e}"),
    }
}

/// Puts the base under every number the application has for the connection.
fn put_under(first: i32, r: Ref<Socket>, base: &OwnedFd) -> Result<()> {
    if r.obj.has(socket::NONBLOCK) {
        raw::fcntl(base.as_raw_fd(), libc::F_SETFL, (libc::O_RDWR | libc::O_NONBLOCK) as usize)?;
    }
    let result = socket::create::replace_everywhere(r.obj, base.as_raw_fd());
    if let (Ok(()), Some(ep)) = (result, r.obj.endpoint()) {
        ep.set_base(first);
    }
    result
}

/// The application closes `fd`: if that number was the base or the tail of a connection that other numbers
/// refer to as well, one of them is from now on.
pub fn number_closed(fd: i32, r: Ref<Socket>) {
    let Some(ep) = r.obj.endpoint() else { return };
    let (base, tail) = (ep.base_fd() == fd, ep.tail_fd() == fd);
    if (base || tail)
        && let Some(other) = fdtable::number_of(r, fd)
    {
        if base {
            ep.set_base(other);
        }
        if tail {
            ep.set_tail(other);
        }
    }
}

/// After the fork, in the parent (also when it failed).
pub fn parent(f: Forking) {
    let Some((reading, writing)) = f.pipe else {
        return;
    };
    private::close(writing);
    let _g = LOCK.lock();
    match DESCENDANTS.iter().find(|d| d.load(Ordering::Relaxed) == 0) {
        Some(d) => {
            d.store(reading + 1, Ordering::Relaxed);
            LIVE.fetch_add(1, Ordering::Relaxed);
        }
        None => {
            private::close(reading);
            LIVE.store(FORKS as u32 + 1, Ordering::Relaxed);
        }
    }
}

/// Whether no descendant can hold a connection of ours any more. Asks the kernel about each.
fn alone() -> bool {
    if LIVE.load(Ordering::Relaxed) == 0 {
        return true;
    }
    let _g = LOCK.lock();
    for d in &DESCENDANTS {
        let fd = d.load(Ordering::Relaxed) - 1;
        if fd >= 0 && ended(fd) {
            private::close(fd);
            d.store(0, Ordering::Relaxed);
            LIVE.fetch_sub(1, Ordering::Relaxed);
        }
    }
    LIVE.load(Ordering::Relaxed) == 0
}

fn ended(fd: i32) -> bool {
    let mut p = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    raw::ppoll(&raw mut p, 1, &raw mut ts, core::ptr::null()) == Ok(1)
}

/// Whether a connection is ours alone again. The caller holds both direction locks of `s`.
pub fn unshare_if_alone(s: &Socket) {
    if s.has(SHARED)
        && alone()
        && let Some(ep) = s.endpoint().filter(|e| !e.link().is_inherited())
    {
        ep.unshare();
        s.set(SHARED, ep.is_shared());
    }
}

/// Called now and then when a thread goes to sleep: connections that children shared come back.
pub fn idle_check() {
    if LIVE.load(Ordering::Relaxed) == 0 || !alone() {
        return;
    }
    fdtable::each(0, usize::MAX, |_, e| {
        if let Entry::Socket(r) = e
            && r.obj.has(SHARED)
            && let Some(rx) = r.obj.rx.try_lock()
            && let Some(tx) = r.obj.tx.try_lock()
        {
            unshare_if_alone(r.obj);
            drop((rx, tx));
        }
    });
}

/// In the child: no other thread exists, locks may be in any state, the links are the parent's.
pub fn child(f: Forking) {
    LOCK.reset();
    for d in &DESCENDANTS {
        let fd = d.swap(0, Ordering::Relaxed) - 1;
        if fd >= 0 {
            private::close(fd);
        }
    }
    LIVE.store(0, Ordering::Relaxed);
    // The writing end stays open as long as we live: that is its purpose.
    if let Some((reading, _)) = f.pipe {
        private::close(reading);
    }
    crate::runtime::reset_locks();
    crate::epoll::reset_locks();
    socket::reset_locks();
    netacc_transport::shm::link::reset_after_fork();
    socket::pool::after_fork();
    netacc_transport::shm::promote::after_fork();
    fdtable::each(0, usize::MAX, |_, e| {
        let Entry::Socket(r) = e else { return };
        for l in [&r.obj.rx, &r.obj.tx, &r.obj.meta] {
            l.reset();
        }
        if let Some(l) = r.obj.listener() {
            l.after_fork();
        }
        if let Some(ep) = r.obj.endpoint() {
            inherit(ep.link());
        }
    });
    let mut live = alloc::vec::Vec::new();
    fdtable::each(0, usize::MAX, |fd, _| live.push(fd));
    crate::runtime::after_fork(live);
}

/// A link of the parent's: its sockets must not be kept open by the child, or the parent's death would go
/// unnoticed.
pub fn inherit(link: &'static Link) {
    link.inherit();
}
