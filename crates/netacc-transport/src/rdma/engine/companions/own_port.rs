//! Server's host: the companion connection of a queue pair that comes to the listener's own port.
//!
//! The kernel hands out connections in the order in which they came, so only accept(2) itself can take a companion out.
//! While one is awaited, accept looks at the first bytes of each connection that the kernel gives it. Those of a
//! companion are there by then ([`client`](crate::rdma::engine::companions::client)) and have a token that only the
//! other end of the queue pair knows; every other connection goes to the program as it is, at once. The library does
//! not accept on behalf of the program, so no connection is delayed, and no address is believed.
//!
//! Several processes may serve a listener, and any of them may accept the companion of a queue pair that another one
//! has. So what is awaited stands on a [`Board`] in memory that processes forked from one another share, and the
//! process that accepts a companion passes it on to the process of its queue pair
//! ([`handover`](crate::rdma::engine::companions::handover)). The board has the first half of each token: it tells
//! which connection is a companion, and is not enough to pass for one.
//!
//! A token is looked for until its companion has come, also where the queue pair gave it up meanwhile: the program must
//! not see it later either.

use crate::num;
use crate::rdma::engine::companions::handover::{self, Owner, without_blocking};
use crate::rdma::engine::{process, status};
use crate::timeouts;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use netacc_sys::{AtomicRef, SharedCell, mem, raw, reserved_fds, time};
use netacc_wire::companion::{self as wire, HELLO, OwnPort, TOKEN};
use rustix::rand::{GetRandomFlags, getrandom};

/// Companions that may be awaited at a time; beyond that the oldest is forgotten.
const PLACES: usize = 256;
/// Companions that may have come and not be with their engines yet.
const ARRIVALS: usize = 32;

const AWAITED_COMPANION: u64 = time::ns(timeouts::AWAITED_COMPANION);

/// Of [`Place::state`]: nothing; one thread has the place; a companion is awaited.
const FREE: u32 = 0;
const BUSY: u32 = 1;
const AWAITED: u32 = 2;

/// A companion that is awaited.
#[derive(Debug)]
struct Place {
    state: AtomicU32,
    engine: AtomicU32,
    process: AtomicU64,
    /// The first half of its token.
    half: SharedCell<u64>,
    /// Since when ([`time::coarse`]) it has been awaited.
    since: AtomicU64,
}

/// What processes forked from one another know of the companions that they await. A process that writes nonsense here
/// has the listener too: it can keep companions from their queue pairs, and nothing else.
#[derive(Debug)]
struct Board {
    /// How many are awaited: while there are none accept has nothing to look at.
    awaited: AtomicUsize,
    /// The place that is written over next if there is no free one.
    oldest: AtomicUsize,
    /// Set once a process may accept connections that does not know the board.
    unknown_sharers: SharedCell<u32>,
    /// Ports (modulo their number) at which a process polls before a blocking accept(2), a bit each.
    blocking: AtomicU64,
    places: [Place; PLACES],
}

// SAFETY: it consists of atomics, for which every value is good.
#[allow(unsafe_code)]
unsafe impl mem::Zeroed for Board {}

/// The board, once there is one.
static BOARD: AtomicRef<Board> = AtomicRef::none();
/// The random name of this process, or 0 while it has none.
static NAME: AtomicU64 = AtomicU64::new(0);

/// A companion that has come and is not with its engine yet: its number + 1, and the engine.
#[derive(Debug)]
struct Arrived {
    fd: AtomicI32,
    engine: AtomicUsize,
}

impl Arrived {
    const fn free() -> Arrived {
        Arrived { fd: AtomicI32::new(0), engine: AtomicUsize::new(0) }
    }
}

netacc_sys::tables! {
    static ARRIVED: [Arrived; ARRIVALS] = [const { Arrived::free() }; ARRIVALS];
}
/// How many of them there are.
static CAME: AtomicUsize = AtomicUsize::new(0);

/// The board, if there is one.
#[inline]
fn board() -> Option<&'static Board> {
    BOARD.load()
}

/// The board, which is made if there is none: `None` if there is no memory.
fn make_board() -> Option<&'static Board> {
    BOARD.or_make(|| mem::shared().ok())
}

/// Before a fork of a process with listeners that clients on other hosts may find: whether all processes that share
/// them will know of the companions that one of them awaits.
pub fn before_fork() -> bool {
    process::available() && make_board().is_some()
}

/// Another program may get a listener of ours, and accept connections that are companions.
pub fn note_unknown_sharer() {
    if let Some(board) = board() {
        board.unknown_sharers.set(1);
    }
}

/// A process polls at this port, which it shares with others, and calls a blocking accept(2) then.
pub fn note_blocking(port: u16) {
    if let Some(board) = board() {
        board.blocking.fetch_or(bit_of(port), Ordering::Relaxed);
    }
}

fn bit_of(port: u16) -> u64 {
    1 << (port % 64)
}

/// What to say of a listener that several processes share, all of which came from forks.
pub fn shared_answer(port: u16) -> OwnPort {
    match board() {
        Some(board) if board.unknown_sharers.get() == 0 => {
            if board.blocking.load(Ordering::Relaxed) & bit_of(port) != 0 { OwnPort::Blocking } else { OwnPort::Come }
        }
        _ => OwnPort::Shared,
    }
}

/// The random name of this process.
fn name() -> Option<u64> {
    let known = NAME.load(Ordering::Relaxed);
    if known != 0 {
        return Some(known);
    }
    let mut bytes = [0u8; 8];
    if getrandom(&mut bytes, GetRandomFlags::empty()) != Ok(bytes.len()) {
        return None;
    }
    let fresh = u64::from_ne_bytes(bytes) | 1;
    // Another engine of this process may have been faster.
    Some(NAME.compare_exchange(0, fresh, Ordering::Relaxed, Ordering::Relaxed).map_or_else(|other| other, |_| fresh))
}

/// The name of an engine of this process, by which others pass it what is its own.
fn owner(engine: usize) -> Option<Owner> {
    name().map(|process| Owner { process, engine })
}

fn first_half(token: &[u8; TOKEN]) -> u64 {
    token.first_chunk().map_or(0, |half| u64::from_ne_bytes(*half))
}

impl Place {
    /// Takes the place out of this state. Acquire: what belongs to it is seen.
    fn claim(&self, from: u32) -> bool {
        self.state.compare_exchange(from, BUSY, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Gives back a place that the caller has claimed.
    fn free(&self) {
        self.state.store(FREE, Ordering::Release);
    }

    fn owner(&self) -> Owner {
        Owner { process: self.process.load(Ordering::Relaxed), engine: self.engine.load(Ordering::Relaxed) as usize }
    }
}

impl Board {
    /// The companion with this token is awaited by an engine.
    fn expect(&self, token: &[u8; TOKEN], owner: Owner) {
        // Counted first, so that a process that is killed here leaves accept looking for nothing, rather than missing
        // one.
        self.awaited.fetch_add(1, Ordering::Relaxed);
        let claimed = self.places.iter().find(|place| place.claim(FREE)).or_else(|| {
            let oldest = self.places.get(self.oldest.fetch_add(1, Ordering::Relaxed) % PLACES)?;
            oldest.claim(AWAITED).then(|| {
                self.awaited.fetch_sub(1, Ordering::Relaxed);
                oldest
            })
        });
        let Some(place) = claimed else {
            self.awaited.fetch_sub(1, Ordering::Relaxed);
            return;
        };
        place.half.set(first_half(token));
        place.process.store(owner.process, Ordering::Relaxed);
        place.engine.store(num::small(owner.engine), Ordering::Relaxed);
        place.since.store(time::coarse(), Ordering::Relaxed);
        // Release: an accept that claims the place sees the token.
        place.state.store(AWAITED, Ordering::Release);
    }

    /// The engine that awaits the companion with this token. The companion is no longer awaited afterwards.
    fn claim(&self, token: &[u8; TOKEN]) -> Option<Owner> {
        let wanted = first_half(token);
        self.places.iter().find_map(|place| self.free_if(place, || place.half.get() == wanted))
    }

    /// Forgets the companions of processes that were killed, so that accept has nothing to look at once more.
    fn forget_overdue(&self, now: u64) {
        for place in &self.places {
            self.free_if(place, || now.saturating_sub(place.since.load(Ordering::Relaxed)) > AWAITED_COMPANION);
        }
    }

    /// Frees a place whose companion is awaited and fits, and returns the engine that awaited it.
    fn free_if(&self, place: &Place, fits: impl Fn() -> bool) -> Option<Owner> {
        if place.state.load(Ordering::Acquire) != AWAITED || !fits() || !place.claim(AWAITED) {
            return None;
        }
        if fits() {
            self.awaited.fetch_sub(1, Ordering::Relaxed);
            let owner = place.owner();
            place.free();
            return Some(owner);
        }
        // The place was just taken by another companion.
        place.state.store(AWAITED, Ordering::Release);
        None
    }
}

/// Whether `fd`, which the kernel's accept(2) has just returned, is a companion, which is never reported to the
/// program.
#[inline]
pub fn take(fd: i32) -> bool {
    // Relaxed: the client comes after it has our answer, and that after the count.
    board().is_some_and(|board| board.awaited.load(Ordering::Relaxed) != 0 && take_if_awaited(board, fd))
}

#[cold]
fn take_if_awaited(board: &Board, fd: i32) -> bool {
    let mut said = [0u8; HELLO];
    let got = raw::recv(fd, said.as_mut_ptr(), HELLO, libc::MSG_DONTWAIT | libc::MSG_PEEK);
    let token = if got == Ok(HELLO) { wire::token(&said) } else { None };
    let Some(owner) = token.and_then(|token| board.claim(&token)) else {
        board.forget_overdue(time::coarse());
        return false;
    };
    let fd = reserved_fds::raise(fd);
    let given = if owner.process == NAME.load(Ordering::Relaxed) {
        arrive(fd, owner.engine)
    } else {
        // The client sees the end, and does not use the listener's own port again.
        let passed = handover::pass(owner, fd);
        if let Err(e) = passed {
            netacc_log::log!(
                Info,
                "fd {fd}: a companion TCP connection cannot be passed to the process of its queue pair ({e})"
            );
        }
        false
    };
    if !given {
        reserved_fds::close(fd);
    }
    true
}

/// A companion has come for an engine of this process. False: it cannot be kept.
fn arrive(fd: i32, engine: usize) -> bool {
    let Some(status) = status::at(engine).filter(|_| without_blocking(fd).is_ok()) else { return false };
    let placed = ARRIVED.iter().any(|place| {
        // Only the thread that has claimed the place writes the engine. Others read it after the descriptor, which is
        // stored last.
        let mine = place.fd.compare_exchange(0, -1, Ordering::Acquire, Ordering::Relaxed).is_ok();
        if mine {
            place.engine.store(engine, Ordering::Relaxed);
            place.fd.store(fd + 1, Ordering::Release);
        }
        mine
    });
    if placed {
        CAME.fetch_add(1, Ordering::Release);
        status.ring();
    }
    placed
}

/// Whether some have come that are not with their engines yet.
#[inline]
pub(in crate::rdma::engine) fn any_came() -> bool {
    CAME.load(Ordering::Relaxed) != 0
}

/// The next connection that has come for this engine.
pub(in crate::rdma::engine) fn next(engine: usize) -> Option<i32> {
    // Acquire: with the count.
    if CAME.load(Ordering::Acquire) == 0 {
        return None;
    }
    ARRIVED.iter().find_map(|place| {
        if place.fd.load(Ordering::Acquire) <= 0 || place.engine.load(Ordering::Relaxed) != engine {
            return None;
        }
        // Each engine takes its own alone, under its lock.
        let came = place.fd.swap(0, Ordering::AcqRel);
        CAME.fetch_sub(1, Ordering::Relaxed);
        Some(came - 1)
    })
}

/// In the child of a fork: what has come is the parent's, and so is its name.
pub(in crate::rdma::engine) fn after_fork() {
    NAME.store(0, Ordering::Relaxed);
    // What is 0 already is not written, since every page that the child writes to is copied.
    for place in ARRIVED.iter().filter(|place| place.fd.load(Ordering::Relaxed) != 0) {
        let came = place.fd.swap(0, Ordering::Relaxed);
        if came > 0 {
            reserved_fds::close(came - 1);
        }
    }
    CAME.store(0, Ordering::Relaxed);
}

/// The engine no longer awaits a companion with this token at the listener's own port.
pub(in crate::rdma::engine) fn give_up(token: &[u8; TOKEN]) {
    if let Some(board) = board() {
        let _ = board.claim(token);
    }
}

/// Where what engine `engine` awaits will stand on the board: nowhere if there is no memory.
pub(in crate::rdma::engine) fn place_of(engine: usize) -> Option<Owner> {
    make_board().and(owner(engine))
}

/// The companion with this token is awaited by an engine at the listener's own port.
pub(in crate::rdma::engine) fn expect(token: &[u8; TOKEN], owner: Owner) {
    if let Some(board) = board() {
        board.expect(token, owner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::IntoRawFd;
    use std::sync::Mutex;

    /// The places are the process's.
    static ALONE: Mutex<()> = Mutex::new(());

    impl Board {
        fn zeroed() -> &'static Board {
            mem::shared().unwrap()
        }
    }

    #[test]
    fn only_the_token_makes_a_companion() {
        let _g = ALONE.lock();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let accepted = |said: &[u8]| {
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            client.write_all(said).unwrap();
            let (server, _) = listener.accept().unwrap();
            let fd = server.into_raw_fd();
            let mut p = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            if !said.is_empty() {
                assert_eq!(raw::ppoll(&raw mut p, 1, core::ptr::null_mut(), core::ptr::null()), Ok(1));
            }
            (client, fd)
        };
        let (token, other) = ([3; TOKEN], [4; TOKEN]);
        let board = make_board().unwrap();
        board.expect(&token, Owner { process: 1, engine: 0 });
        for said in [&[] as &[u8], b"GET / HTTP/1.1\r\n\r\n and more", &wire::hello(&other), &wire::hello(&token)[..23]]
        {
            let (_client, fd) = accepted(said);
            assert!(!take(fd), "{said:?}");
            reserved_fds::close(fd);
        }
        // Where its owner is gone it is closed; and it was the only one.
        let (_client, fd) = accepted(&wire::hello(&token));
        assert!(take(fd));
        let (_client, fd) = accepted(&wire::hello(&token));
        assert!(!take(fd));
        reserved_fds::close(fd);
    }

    #[test]
    fn what_has_come_is_its_engines() {
        let _g = ALONE.lock();
        // There is no engine here that could have it.
        assert!(!arrive(0, 3) && !any_came());
        assert_eq!(next(3), None);
    }

    #[test]
    fn what_a_killed_process_awaited_is_forgotten() {
        let board = Board::zeroed();
        board.expect(&[1; TOKEN], Owner { process: 5, engine: 1 });
        let now = time::coarse();
        board.forget_overdue(now);
        assert_eq!(board.awaited.load(Ordering::Relaxed), 1);
        board.forget_overdue(now + 2 * AWAITED_COMPANION);
        assert_eq!((board.awaited.load(Ordering::Relaxed), board.claim(&[1; TOKEN])), (0, None));
    }

    #[test]
    fn the_oldest_of_too_many_makes_room() {
        let token = |n: usize| {
            let mut token = [9; TOKEN];
            token[..8].copy_from_slice(&n.to_ne_bytes());
            token
        };
        let board = Board::zeroed();
        let owner = Owner { process: 5, engine: 1 };
        for n in 0..PLACES * 2 {
            board.expect(&token(n), owner);
        }
        assert_eq!(board.awaited.load(Ordering::Relaxed), PLACES);
        assert_eq!(board.claim(&token(PLACES * 2 - 1)), Some(owner));
        assert_eq!(board.claim(&token(PLACES * 2 - 1)), None);
        assert_eq!(board.claim(&token(0)), None);
        assert_eq!((0..PLACES * 2).filter_map(|n| board.claim(&token(n))).count(), PLACES - 1);
        assert_eq!(board.awaited.load(Ordering::Relaxed), 0);
    }
}
