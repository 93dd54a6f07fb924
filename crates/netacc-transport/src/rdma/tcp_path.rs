//! Messages by TCP, for connections whose queue pair has failed.
//!
//! The kernel's socket does what credits do for a queue pair: a message that it does not take waits, and no other one
//! is written then. Errors are kept for the next read.

use crate::num;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use netacc_ring::to_usize;
use netacc_sys::errno::{Errno, Result};
use netacc_sys::{raw, reserved_fds};
use netacc_wire::companion::LENGTH;
use netacc_wire::frame::{FRAME, Frame};

extern crate alloc;

/// Number of bytes that are read at a time.
const READ: usize = 64 * 1024;

/// The TCP connection of a queue pair that has failed.
#[derive(Debug)]
pub struct Stream {
    fd: i32,
    /// Bytes that the kernel has not taken yet: those from `written` on.
    out: Vec<u8>,
    written: usize,
    /// Offset of the message that is being made.
    begun: usize,
    inbox: Vec<u8>,
    /// Offset of what is to be read next.
    at: usize,
    /// Length (bytes) of the longest message that is made here, and of the longest that we take.
    most: usize,
    size: usize,
    /// Set once the other side has acknowledged what it had received.
    resumed: bool,
    error: Option<Errno>,
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.fd >= 0 {
            reserved_fds::close(self.fd);
        }
    }
}

impl Stream {
    /// Makes a stream that sends messages of up to `most` bytes by `fd`, which it owns from here on, and also messages
    /// that went out by a queue pair before and may be longer; messages that come have at most `size` bytes. With -1
    /// they wait for [`Stream::attach`].
    pub fn new(fd: i32, most: usize, size: usize) -> Stream {
        let out = Vec::with_capacity(2 * (LENGTH + most));
        let inbox = Vec::with_capacity(READ + LENGTH + size);
        Stream { fd, out, written: 0, begun: 0, inbox, at: 0, most, size, resumed: false, error: None }
    }

    /// Gives the stream its socket.
    pub fn attach(&mut self, fd: i32) {
        self.fd = fd;
        self.flush();
    }

    /// The companion's socket, or -1.
    pub fn fd(&self) -> i32 {
        self.fd
    }

    /// Whether the other side has acknowledged what it had received.
    pub fn is_resumed(&self) -> bool {
        self.resumed
    }

    /// Retransmits the messages that the other side had not received, after it has reported which those are.
    pub fn resume(&mut self, again: VecDeque<Vec<u8>>) {
        self.resumed = true;
        for message in again {
            self.begin();
            self.out.extend_from_slice(&message);
            self.finish();
        }
        self.flush();
    }

    /// Whether a message may be sent now.
    pub fn can_send(&self) -> bool {
        self.resumed && self.waiting() < self.most
    }

    fn waiting(&self) -> usize {
        self.out.len() - self.written
    }

    /// Whether the kernel has to report when there is room again.
    pub fn is_full(&self) -> bool {
        self.waiting() > 0
    }

    /// Whether all that was sent has been received.
    pub fn is_flushed(&self) -> bool {
        let mut left = 0i32;
        let asked = raw::ioctl(self.fd, to_usize(libc::TIOCOUTQ), (&raw mut left).addr());
        self.error.is_some() || (self.resumed && self.waiting() == 0 && (asked.is_err() || left == 0))
    }

    /// Number of bytes that fit into one message.
    pub fn payload(&self) -> usize {
        self.most.saturating_sub(FRAME)
    }

    fn begin(&mut self) {
        // Something may always wait, and the waiting bytes are moved no more often than they go out.
        if self.written > self.waiting() {
            self.out.drain(..self.written);
            self.written = 0;
        }
        self.begun = self.out.len();
        self.out.extend_from_slice(&[0; LENGTH]);
    }

    fn finish(&mut self) {
        let len = self.out.len() - self.begun - LENGTH;
        if let Some(place) = self.out.get_mut(self.begun..self.begun + LENGTH) {
            place.copy_from_slice(&num::small(len).to_le_bytes());
        }
    }

    /// Sends a message.
    pub fn send(&mut self, frame: Frame, payload: &[u8]) {
        self.begin();
        self.out.extend_from_slice(&frame.encode());
        self.out.extend_from_slice(payload);
        self.finish();
        self.flush();
    }

    /// Where a message may be put: [`FRAME`] bytes and [`Stream::payload`] after them. It is sent by
    /// [`Stream::send_placed`] or forgotten by [`Stream::forget`].
    pub fn buffer(&mut self) -> *mut u8 {
        self.begin();
        let start = self.out.len();
        self.out.resize(start + FRAME + self.payload(), 0);
        self.out.as_mut_ptr().wrapping_add(start)
    }

    /// Sends what was placed, of which `len` bytes follow the beginning.
    pub fn send_placed(&mut self, frame: Frame, len: usize) {
        let start = self.begun + LENGTH;
        if let Some(head) = self.out.get_mut(start..start + FRAME) {
            head.copy_from_slice(&frame.encode());
        }
        self.out.truncate(start + FRAME + len);
        self.finish();
        self.flush();
    }

    /// Forgets a place in which nothing was put.
    pub fn forget(&mut self) {
        self.out.truncate(self.begun);
    }

    /// Gives the kernel what it takes; an error is kept for [`Stream::receive`].
    pub fn flush(&mut self) {
        if self.fd < 0 {
            return;
        }
        while let Some(rest) = self.out.get(self.written..).filter(|rest| !rest.is_empty()) {
            match raw::send(self.fd, rest.as_ptr(), rest.len(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) {
                Ok(n) => self.written += n,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(e) => {
                    // The reader gets the cause, if the kernel has one.
                    self.error.get_or_insert(e);
                    break;
                }
            }
        }
        if self.waiting() == 0 {
            self.out.clear();
            self.written = 0;
        }
    }

    /// The next message, whose payload is put into `payload`; `None` if there is none yet. `Errno(0)`: the end of the
    /// stream.
    pub fn receive(&mut self, payload: &mut Vec<u8>) -> Result<Option<Frame>> {
        if self.fd < 0 {
            return Ok(None);
        }
        loop {
            if let Some(frame) = self.parse(payload)? {
                return Ok(Some(frame));
            }
            if !self.fill()? {
                return self.failure().map_or(Ok(None), Err);
            }
        }
    }

    /// Why nothing can be sent any more, if the kernel knew a cause.
    fn failure(&self) -> Option<Errno> {
        self.error.filter(|e| *e != Errno::PIPE)
    }

    fn parse(&mut self, payload: &mut Vec<u8>) -> Result<Option<Frame>> {
        let Some((len, rest)) = self.inbox.get(self.at..).and_then(|bytes| bytes.split_first_chunk::<LENGTH>()) else {
            return Ok(None);
        };
        let len = u32::from_le_bytes(*len) as usize;
        if len < FRAME || len > self.size {
            return Err(Errno::PROTO);
        }
        let Some((head, bytes)) = rest.get(..len).and_then(|message| message.split_first_chunk::<FRAME>()) else {
            return Ok(None);
        };
        let frame = Frame::decode(head).ok_or(Errno::PROTO)?;
        payload.clear();
        payload.extend_from_slice(bytes);
        self.at += LENGTH + len;
        Ok(Some(frame))
    }

    /// Reads; returns whether there was anything.
    fn fill(&mut self) -> Result<bool> {
        // Mostly there is nothing, and the buffer is cleared before a read, which costs more than this look.
        let mut byte = 0u8;
        match raw::recv(self.fd, &raw mut byte, 1, libc::MSG_PEEK | libc::MSG_DONTWAIT) {
            Err(Errno::AGAIN | Errno::INTR) => return Ok(false),
            // The kernel reports the error once, and then the end.
            Err(e) => return Err(e),
            Ok(_) => {}
        }
        self.inbox.drain(..self.at);
        self.at = 0;
        let had = self.inbox.len();
        self.inbox.resize(had + READ, 0);
        let Some(room) = self.inbox.get_mut(had..) else { return Ok(false) };
        let done = raw::recv(self.fd, room.as_mut_ptr(), room.len(), libc::MSG_DONTWAIT);
        self.inbox.truncate(had + done.unwrap_or(0));
        match done {
            // The cause of the end may have been reported when something was sent. An end in the middle of a message is
            // an error.
            Ok(0) => Err(self.failure().unwrap_or(if had == 0 { Errno(0) } else { Errno::CONNRESET })),
            Ok(_) => Ok(true),
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(e) => Err(e),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netacc_wire::frame::Kind;
    use rustix::fd::IntoRawFd;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    const HEAD: Frame =
        Frame { kind: Kind::Data, credits: 0, large: false, conn: 1, generation: 2, window: 3, acked: 4, next: 0 };

    fn pair(most: usize) -> (Stream, Stream) {
        let (a, b) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        let end = |fd: rustix::fd::OwnedFd| Stream::new(fd.into_raw_fd(), most, most);
        (end(a), end(b))
    }

    #[test]
    fn messages_keep_their_order_and_bytes_however_the_kernel_cuts_them() {
        let (mut a, mut b) = pair(5000);
        assert!(!a.can_send(), "the other side has not resumed");
        let again = VecDeque::from([[&HEAD.encode()[..], b"again"].concat()]);
        a.resume(again);
        let (mut sent, mut got, mut bytes) = (0u32, 0u32, Vec::new());
        assert_eq!(b.receive(&mut bytes), Ok(Some(HEAD)));
        assert_eq!(bytes, b"again");
        while got < 2000 {
            while sent < 2000 && a.can_send() {
                let len = sent as usize * 37 % (a.payload() + 1);
                let frame = Frame { generation: sent, ..HEAD };
                if sent % 2 == 0 {
                    a.send(frame, &vec![(sent & 0xff) as u8; len]);
                } else {
                    a.buffer();
                    a.forget();
                    a.buffer();
                    a.send_placed(frame, len);
                }
                sent += 1;
            }
            while let Some(frame) = b.receive(&mut bytes).unwrap() {
                assert_eq!((frame.generation, bytes.len()), (got, got as usize * 37 % (a.payload() + 1)));
                assert!(got % 2 == 1 || bytes.iter().all(|byte| u32::from(*byte) == got & 0xff));
                got += 1;
            }
            a.flush();
        }
        let _alone = crate::starting();
        drop(a);
        assert_eq!(b.receive(&mut bytes), Err(Errno(0)));
    }

    #[test]
    fn an_end_in_the_middle_of_a_message_is_a_reset() {
        let message = [&(num::constant(FRAME) + 3).to_le_bytes()[..], &HEAD.encode(), b"abc"].concat();
        for len in 0..=message.len() {
            let (a, mut b) = pair(100);
            let _alone = crate::starting();
            raw::send(a.fd(), message.as_ptr(), len, 0).unwrap();
            drop(a);
            let whole = len == message.len();
            let first = b.receive(&mut Vec::new());
            let end = if whole { b.receive(&mut Vec::new()) } else { first };
            assert_eq!(whole, first == Ok(Some(HEAD)));
            assert_eq!(end, Err(if whole || len == 0 { Errno(0) } else { Errno::CONNRESET }), "{len}");
        }
    }

    /// A stream by TCP, and the other end's socket, which resets when it is closed.
    fn pair_to_reset() -> (Stream, std::net::TcpStream) {
        use std::os::fd::AsRawFd;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let a = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (b, _) = listener.accept().unwrap();
        let at_once = [1i32, 0];
        raw::setsockopt(b.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, at_once.as_ptr().cast(), 8).unwrap();
        let mut a = Stream::new(std::os::fd::IntoRawFd::into_raw_fd(a), 100, 100);
        a.resume(VecDeque::new());
        (a, b)
    }

    #[test]
    fn a_reset_is_no_end_whichever_call_hears_of_it_first() {
        use std::io::Write;
        for (comes, sends) in [(false, false), (false, true), (true, false), (true, true)] {
            let (mut a, mut b) = pair_to_reset();
            if comes {
                b.write_all(&[&num::constant(FRAME).to_le_bytes()[..], &HEAD.encode()].concat()).unwrap();
            }
            let _alone = crate::starting();
            drop(b);
            if sends {
                a.send(HEAD, &[]);
            }
            let mut bytes = Vec::new();
            if comes {
                assert_eq!(a.receive(&mut bytes), Ok(Some(HEAD)));
            }
            assert_eq!(a.receive(&mut bytes), Err(Errno::CONNRESET), "{comes} {sends}");
        }
    }

    #[test]
    fn what_has_gone_out_takes_no_room() {
        const MOST: usize = 100_000;
        let (mut a, b) = pair(MOST);
        a.resume(VecDeque::new());
        let mut room = [0u8; 1000];
        for _ in 0..5000 {
            while a.can_send() {
                a.send(HEAD, &[0; 10_000]);
            }
            raw::recv(b.fd(), room.as_mut_ptr(), room.len(), libc::MSG_DONTWAIT).unwrap();
            a.flush();
            assert!(a.out.len() < 4 * MOST, "{} bytes, of which {} wait", a.out.len(), a.waiting());
        }
    }

    #[test]
    fn impossible_lengths_are_refused() {
        for len in [0u32, num::constant(FRAME) - 1, 101, u32::MAX] {
            let (a, mut b) = pair(100);
            raw::send(a.fd(), len.to_le_bytes().as_ptr(), LENGTH, 0).unwrap();
            assert_eq!(b.receive(&mut Vec::new()), Err(Errno::PROTO), "{len}");
        }
    }
}
