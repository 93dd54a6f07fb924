//! Server's host: the companion connection of a queue pair that comes to the listener's own port.
//!
//! The kernel hands out connections in the order in which they came, so only accept(2) itself can take a companion out.
//! While one is awaited, accept looks at the first bytes of each connection that the kernel gives it. Those of a
//! companion are there by then ([`companion_client`](crate::rdma::engine::companion_client)) and have a token that only the
//! other end of the queue pair knows; every other connection goes to the program as it is, at once. Nobody accepts for
//! the program, so nothing is held up, and nobody's addresses are believed.
//!
//! A token is looked for until its companion has come, also where the queue pair gave it up meanwhile: the program must not
//! see it later either. In the child of a fork the tokens of its parent are known, too, and such a companion is closed; its
//! client then tries the other port.

use crate::host::host;
use crate::rdma::engine::cell;
use crate::rdma::engine::companion::Companion;
use crate::rdma::engine::local::RESETS;
use crate::rdma::engine::worker::Engine;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use netacc_sys::errno::Result;
use netacc_sys::{raw, reserved_fds};
use netacc_wire::companion::{self as wire, HELLO, OwnPort, TOKEN};
use netacc_wire::frame::{Frame, Kind};

/// Companions that may be awaited at a time; beyond that the oldest is forgotten.
const PLACES: usize = 256;

/// Of [`Place::state`]: nothing; one thread has the place; a companion is awaited.
const FREE: u32 = 0;
const BUSY: u32 = 1;
const AWAITED: u32 = 2;

/// A companion that is awaited, and then its connection.
#[derive(Debug)]
struct Place {
    state: AtomicU32,
    token: [AtomicU64; 2],
    /// The connection that came (number + 1), until the engine has it.
    came: AtomicI32,
    engine: AtomicUsize,
}

static ALL: [Place; PLACES] = [const {
    Place {
        state: AtomicU32::new(FREE),
        token: [const { AtomicU64::new(0) }; 2],
        came: AtomicI32::new(0),
        engine: AtomicUsize::new(0),
    }
}; PLACES];
/// How many are awaited: while there are none accept has nothing to look at.
static EXPECTED: AtomicUsize = AtomicUsize::new(0);
/// How many have come and are not with their engine yet.
static CAME: AtomicUsize = AtomicUsize::new(0);
/// The place that is written over next if there is no free one.
static OLDEST: AtomicUsize = AtomicUsize::new(0);

fn halves(token: &[u8; TOKEN]) -> [u64; 2] {
    let n = u128::from_ne_bytes(*token);
    [n as u64, (n >> 64) as u64]
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
}

/// The companion with this token is awaited by an engine.
fn expect(token: &[u8; TOKEN], engine: usize) {
    let claimed = ALL.iter().find(|cell| cell.claim(FREE)).or_else(|| {
        let oldest = ALL.get(OLDEST.fetch_add(1, Ordering::Relaxed) % PLACES)?;
        oldest.claim(AWAITED).then(|| {
            EXPECTED.fetch_sub(1, Ordering::Relaxed);
            oldest
        })
    });
    let Some(place) = claimed else { return };
    for (cell, half) in place.token.iter().zip(halves(token)) {
        cell.store(half, Ordering::Relaxed);
    }
    place.engine.store(engine, Ordering::Relaxed);
    EXPECTED.fetch_add(1, Ordering::Relaxed);
    // Release: an accept that claims the place sees the token.
    place.state.store(AWAITED, Ordering::Release);
}

/// The place of the companion with this token, which is not awaited any more and which the caller has to free.
fn claim(token: &[u8; TOKEN]) -> Option<&'static Place> {
    let wanted = halves(token);
    ALL.iter().find(|cell| {
        let [a, b] = &cell.token;
        let is = || [a.load(Ordering::Relaxed), b.load(Ordering::Relaxed)] == wanted;
        if cell.state.load(Ordering::Acquire) != AWAITED || !is() || !cell.claim(AWAITED) {
            return false;
        }
        if is() {
            EXPECTED.fetch_sub(1, Ordering::Relaxed);
            return true;
        }
        // It became another companion's just before.
        cell.state.store(AWAITED, Ordering::Release);
        false
    })
}

/// Whether `fd`, which accept(2) has just got from the kernel, is a companion: then the program never hears of it.
#[inline]
pub fn take(fd: i32) -> bool {
    // Relaxed: the client comes after it has our answer, and that after the count.
    EXPECTED.load(Ordering::Relaxed) != 0 && take_if_expected(fd)
}

#[cold]
fn take_if_expected(fd: i32) -> bool {
    let mut said = [0u8; HELLO];
    let got = raw::recv(fd, said.as_mut_ptr(), HELLO, libc::MSG_DONTWAIT | libc::MSG_PEEK);
    if got != Ok(HELLO) {
        return false;
    }
    let Some(place) = wire::token(&said).and_then(|token| claim(&token)) else { return false };
    let fd = reserved_fds::raise(fd);
    let engine = cell::at(place.engine.load(Ordering::Relaxed)).filter(|_| without_blocking(fd).is_ok());
    match engine {
        Some(engine) => {
            place.came.store(fd + 1, Ordering::Relaxed);
            CAME.fetch_add(1, Ordering::Release);
            engine.ring();
        }
        // The engine is the parent's.
        None => {
            reserved_fds::close(fd);
            place.free();
        }
    }
    true
}

fn without_blocking(fd: i32) -> Result<()> {
    let flags = raw::fcntl(fd, libc::F_GETFL, 0)?;
    raw::fcntl(fd, libc::F_SETFL, (flags | libc::O_NONBLOCK) as usize).map(drop)
}

/// Whether some have come that are not with their engines yet.
#[inline]
pub(super) fn any_came() -> bool {
    CAME.load(Ordering::Relaxed) != 0
}

/// The next connection that has come for this engine.
pub(super) fn next(engine: usize) -> Option<i32> {
    // Acquire: with the count.
    if CAME.load(Ordering::Acquire) == 0 {
        return None;
    }
    ALL.iter().find_map(|cell| {
        if cell.engine.load(Ordering::Relaxed) != engine || cell.state.load(Ordering::Relaxed) != BUSY {
            return None;
        }
        let came = cell.came.swap(0, Ordering::AcqRel);
        (came != 0).then(|| {
            CAME.fetch_sub(1, Ordering::Relaxed);
            cell.free();
            came - 1
        })
    })
}

/// In the child of a fork: what has come is the parent's.
pub(super) fn after_fork() {
    for place in &ALL {
        let came = place.came.swap(0, Ordering::Relaxed);
        if came != 0 {
            reserved_fds::close(came - 1);
            place.free();
        }
    }
    CAME.store(0, Ordering::Relaxed);
}

impl Engine {
    /// A client asks whether its companion may come to the listener's own port, or a server has answered that. False: the
    /// other side broke the rules.
    pub(super) fn own_port(&mut self, at: usize, frame: Frame) -> bool {
        let Some(qp) = self.qps.get_mut(at) else { return true };
        if qp.route.is_some() {
            return OwnPort::of(frame.generation).is_some_and(|answer| self.own_port_answered(at, answer));
        }
        if qp.resets.len() >= RESETS {
            // It goes on asking, and gives us no room to answer.
            return false;
        }
        let answer = match &qp.companion {
            Companion::Awaited(token, _) => {
                let answer = host().map_or(OwnPort::Closed, |host| host.takes_companions(qp.port));
                // Where the client asks once more it is awaited already.
                claim(token).into_iter().for_each(Place::free);
                if answer == OwnPort::Come {
                    expect(token, self.index);
                }
                answer
            }
            _ => OwnPort::Closed,
        };
        let generation = answer.code();
        qp.resets.push_back(Frame {
            kind: Kind::OwnPort,
            credits: 0,
            large: false,
            conn: 0,
            generation,
            window: 0,
            acked: 0,
            next: 0,
        });
        true
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
        expect(&token, 0);
        for said in [&[] as &[u8], b"GET / HTTP/1.1\r\n\r\n and more", &wire::hello(&other), &wire::hello(&token)[..23]]
        {
            let (_client, fd) = accepted(said);
            assert!(!take(fd), "{said:?}");
            reserved_fds::close(fd);
        }
        // Without an engine it is closed; and it was the only one.
        let (_client, fd) = accepted(&wire::hello(&token));
        assert!(take(fd));
        let (_client, fd) = accepted(&wire::hello(&token));
        assert!(!take(fd));
        reserved_fds::close(fd);
    }

    #[test]
    fn the_oldest_of_too_many_makes_room() {
        let token = |n: usize| {
            let mut token = [9; TOKEN];
            token[..8].copy_from_slice(&n.to_ne_bytes());
            token
        };
        let _g = ALONE.lock();
        for n in 0..PLACES * 2 {
            expect(&token(n), 1);
        }
        assert!(claim(&token(PLACES * 2 - 1)).inspect(|cell| cell.free()).is_some());
        assert!(claim(&token(0)).is_none());
        (0..PLACES * 2).filter_map(|n| claim(&token(n))).for_each(Place::free);
    }
}
