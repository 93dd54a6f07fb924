//! A process that relays between two kernel sockets, for a connection that has to be one kernel socket now although
//! some bytes are left that precede those of its socket.
//!
//! This is rare: the peer has left shared memory, we have not read our ring to its end, and now our side is passed to
//! another program too. The unread bytes go into a new pair of sockets, and everything else follows through the relay.
//! The relay ends with the connection.

use netacc_sys::errno::{Errno, Result};
use netacc_sys::raw;

const BUFFER: usize = 32 * 1024;

/// One direction of the relay, which holds at most one buffer.
struct Direction {
    from: i32,
    to: i32,
    buf: [u8; BUFFER],
    at: usize,
    len: usize,
    ended: bool,
    done: bool,
}

impl Direction {
    const fn new(from: i32, to: i32) -> Direction {
        Direction { from, to, buf: [0; BUFFER], at: 0, len: 0, ended: false, done: false }
    }

    /// The descriptor and the events that this direction waits for.
    fn wants(&self) -> libc::pollfd {
        let (fd, events) = match (self.done, self.len > self.at) {
            (true, _) => (-1, 0),
            (false, true) => (self.to, libc::POLLOUT),
            (false, false) => (self.from, libc::POLLIN),
        };
        libc::pollfd { fd, events, revents: 0 }
    }

    fn step(&mut self) -> Result<()> {
        if self.done {
            return Ok(());
        }
        if self.len == self.at {
            let room = self.buf.as_mut_slice();
            match raw::recv(self.from, room.as_mut_ptr(), room.len(), libc::MSG_DONTWAIT) {
                Ok(0) => self.ended = true,
                Ok(n) => (self.at, self.len) = (0, n),
                Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
                Err(e) => return Err(e),
            }
        }
        let left = self.buf.get(self.at..self.len).unwrap_or(&[]);
        if !left.is_empty() {
            match raw::send(self.to, left.as_ptr(), left.len(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) {
                Ok(n) => self.at += n,
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(e) => return Err(e),
            }
        }
        if self.ended {
            self.done = true;
            let _ = raw::shutdown(self.to, libc::SHUT_WR);
        }
        Ok(())
    }
}

/// Starts a relay between `a` and `b`. The caller may close both after that.
pub fn start(a: i32, b: i32) -> Result<()> {
    raw::detached(|| {
        raw::set_name(b"netacc-relay\0\0\0\0");
        let (low, high) = (a.min(b) as u32, a.max(b) as u32);
        for (first, last) in [(0, low.wrapping_sub(1)), (low + 1, high - 1), (high + 1, u32::MAX)] {
            if first <= last && last != u32::MAX || first == high + 1 {
                let _ = raw::close_range(first, last, 0);
            }
        }
        run(a, b);
    })
}

fn run(a: i32, b: i32) {
    let mut ways = [Direction::new(a, b), Direction::new(b, a)];
    while ways.iter().any(|w| !w.done) {
        let [x, y] = &ways;
        let mut p = [x.wants(), y.wants()];
        match raw::ppoll(p.as_mut_ptr(), 2, core::ptr::null_mut(), core::ptr::null()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return,
        }
        if ways.iter_mut().any(|w| w.step().is_err()) {
            // One end was reset, so a linger time of 0 resets the other one as well.
            let now = [1i32, 0];
            for fd in [a, b] {
                let _ = raw::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, now.as_ptr().cast(), 8);
            }
            return;
        }
    }
}
