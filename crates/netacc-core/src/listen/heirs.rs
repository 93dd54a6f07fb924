//! The entrance of a process that was forked for one connection: its parent has accepted the connection and gave it up, and
//! the client, in another network namespace, has to find this process.
//!
//! There is one at a time, and its name carries the client's address ([`Entrance::of_connection`]). The process looks at
//! it in its calls on the connection: a client that wants to switch makes calls, too, and no thread has to be woken.

use crate::host_directory;
use crate::object::held_by::Standing;
use crate::object::socket::Socket;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use netacc_sys::{AtomicRef, Lock, lock_rank, raw, reserved_fds};
use netacc_transport::shm::admission::{self, Taken};
use netacc_transport::shm::{Link, host_dir};
use netacc_wire::Entrance;
use rustix::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};

/// Number of calls on the connection after which the entrance is made, well before the client looks for it.
const CALLS_BEFORE_ENTRANCE: u32 = 4;
/// The process looks at its entrance and links in each of so many calls.
const CALLS_PER_LOOK: u32 = 4;
/// Number of clients that may have a link: the connection's, and some that are mistaken.
const LINKS: usize = 4;
/// Number of connects that may wait in a link's queue: none is made.
const BACKLOG: u32 = 1;

/// All below are changed under this lock.
static LOCK: Lock<{ lock_rank::LISTENER }> = Lock::new();
/// The entrance (reserved descriptor + 1); 0: there is none.
static DOOR: AtomicI32 = AtomicI32::new(0);
static ID: AtomicU64 = AtomicU64::new(0);
/// The process that made it.
static PID: AtomicU32 = AtomicU32::new(0);
/// A client that has not sent its Hello (descriptor + 1).
static HELLO: AtomicI32 = AtomicI32::new(0);
static TAKEN: [AtomicRef<Link>; LINKS] = [const { AtomicRef::none() }; LINKS];
/// The socket whose connection it is.
static OF: AtomicRef<Socket> = AtomicRef::none();

/// Makes the entrance when it is time, and takes up links and what they say.
#[cold]
pub fn attend(s: &'static Socket) {
    let calls = s.calls.load(Ordering::Relaxed);
    match s.upgrade.held_by.heir.load(Ordering::Relaxed) {
        1 if calls >= CALLS_BEFORE_ENTRANCE => open(s),
        2 if calls.is_multiple_of(CALLS_PER_LOOK) => look(),
        _ => {}
    }
}

fn open(s: &'static Socket) {
    // Nothing is gained while the parent has the connection.
    if s.upgrade.held_by.standing() != Standing::Alone {
        return;
    }
    let _g = LOCK.lock();
    if DOOR.load(Ordering::Relaxed) != 0 {
        return;
    }
    let (Some(dir), Some(client)) = (host_directory::usable(), s.peer.get()) else { return };
    let made = host_dir::open_for(dir, client);
    let Ok((fd, name)) = made.and_then(|(fd, name)| Ok((reserved_fds::adopt(fd)?, name))) else { return };
    ID.store(name.id, Ordering::Relaxed);
    PID.store(raw::getpid(), Ordering::Relaxed);
    OF.set(Some(s));
    DOOR.store(fd + 1, Ordering::Relaxed);
    s.upgrade.held_by.heir.store(2, Ordering::Relaxed);
}

/// Takes up the next client, and reads what the links have to say.
fn look() {
    {
        let _g = LOCK.lock();
        let door = DOOR.load(Ordering::Relaxed) - 1;
        let free = TAKEN.iter().find(|cell| cell.is_none());
        if let (true, Some(free)) = (door >= 0, free) {
            let room = |_| true;
            let hello = HELLO.swap(0, Ordering::Relaxed) - 1;
            #[allow(unsafe_code)]
            let taken = if hello >= 0 {
                // SAFETY: the number was taken out of its only cell.
                admission::receive_hello(unsafe { OwnedFd::from_raw_fd(hello) }, BACKLOG, room)
            } else {
                // SAFETY: our open descriptor, which is closed only under the lock.
                admission::accept_link(unsafe { BorrowedFd::borrow_raw(door) }, BACKLOG, room)
            };
            match taken {
                Taken::Link(link) => free.set(Some(link)),
                Taken::Later(fd) | Taken::Unable(fd) => HELLO.store(fd.into_raw_fd() + 1, Ordering::Relaxed),
                Taken::Starved | Taken::Refused | Taken::Nobody | Taken::Shut => {}
            }
        }
    }
    for cell in &TAKEN {
        let Some(there) = cell.get() else { continue };
        there.service_if_readable();
        if there.is_lost() && cell.swap(None).is_some_and(|taken| core::ptr::eq(taken, there)) {
            there.put();
        }
    }
}

/// The connection of `s` has switched, or will not: its entrance is closed. Its links stay as long as their clients.
pub fn done(s: &Socket) {
    if s.upgrade.held_by.heir.load(Ordering::Relaxed) != 2 {
        return;
    }
    s.upgrade.held_by.heir.store(0, Ordering::Relaxed);
    let _g = LOCK.lock();
    if OF.is(s) {
        close();
    }
}

/// Removes the entrance and its name. Under the lock.
fn close() {
    leave();
    OF.set(None);
    for cell in [&DOOR, &HELLO] {
        let fd = cell.swap(0, Ordering::Relaxed) - 1;
        if fd >= 0 {
            reserved_fds::close(fd);
        }
    }
}

/// Removes the name of the entrance, if this process has made it: the process ends, or needs it no more.
pub fn leave() {
    if DOOR.load(Ordering::Relaxed) != 0
        && PID.load(Ordering::Relaxed) == raw::getpid()
        && let Some(dir) = host_directory::configured()
    {
        host_dir::remove(dir, Entrance { id: ID.load(Ordering::Relaxed), port: 0 });
    }
}

/// Called in the child of a fork: entrance and links are the parent's.
pub fn after_fork() {
    close();
    for cell in &TAKEN {
        if let Some(link) = cell.get() {
            link.inherit();
        }
        cell.set(None);
    }
}
