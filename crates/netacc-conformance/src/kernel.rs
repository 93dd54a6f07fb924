//! The kernel's TCP over loopback as a transport: it shows that the suite expects of every transport what TCP does.
#![allow(unsafe_code)]

use crate::ends::{End, Pair, Rig};
use core::sync::atomic::{AtomicBool, Ordering};
use netacc_sys::{Errno, raw, time};
use netacc_transport::{Endpoint, Interest, Iov, Readiness, Shut, WaitSet};

use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, IntoRawFd};

/// Time (ns) for which a look waits for segments that the other end has sent. The kernel delivers them at once, but on a
/// busy machine a thread of its own does it.
const DELIVERY: u64 = 50_000_000;
/// The size of a socket's buffers, which the kernel doubles: with the usual limit of 208 KiB it gets that.
const BUFFER: i32 = 200_000;
/// Values of `tcpi_state`.
const ESTABLISHED: u8 = 1;
const FIN_WAIT1: u8 = 4;
const FIN_WAIT2: u8 = 5;

/// `a` is the end that connected.
#[derive(Debug)]
pub struct Connecting;
/// `a` is the end that was accepted.
#[derive(Debug)]
pub struct Accepted;

impl Rig for Connecting {
    const DIRECT: bool = false;
    const HELD: usize = 3 << 20;
    const PART: usize = 4;
    const ROOM_AFTER: usize = 1;

    fn pair() -> Pair {
        let [client, server] = sockets();
        pair(client, server)
    }
}

impl Rig for Accepted {
    const DIRECT: bool = false;
    const HELD: usize = 3 << 20;
    const PART: usize = 4;
    const ROOM_AFTER: usize = 1;

    fn pair() -> Pair {
        let [client, server] = sockets();
        pair(server, client)
    }
}

fn sockets() -> [i32; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (server, _) = listener.accept().unwrap();
    [client, server].map(|socket| {
        socket.set_nodelay(true).unwrap();
        socket.set_nonblocking(true).unwrap();
        // The kernel would make them as large as the stream needs.
        for buffer in [libc::SO_SNDBUF, libc::SO_RCVBUF] {
            raw::setsockopt_int(socket.as_raw_fd(), libc::SOL_SOCKET, buffer, BUFFER).unwrap();
        }
        socket.into_raw_fd()
    })
}

fn pair(a: i32, b: i32) -> Pair {
    let open: &'static [AtomicBool; 2] = Box::leak(Box::new([AtomicBool::new(true), AtomicBool::new(true)]));
    let [a, b] = [(a, b, 0), (b, a, 1)]
        .map(|(fd, peer, me)| -> &'static Socket { Box::leak(Box::new(Socket { fd, peer, me, open })) });
    // The kernel closes what a process that is killed had open.
    Pair { a: End::new(a), b: End::new(b), kill_b: Box::new(|| b.close(false)), _keep: Box::new(()) }
}

/// One end: its socket, and that of the other end, which is in the same process.
struct Socket {
    fd: i32,
    peer: i32,
    me: usize,
    open: &'static [AtomicBool; 2],
}

/// What `TCP_INFO` says of a socket: its state, and the numbers of bytes that were sent (none of them twice) and received
/// (the end of the stream counts as one).
fn info(fd: i32) -> Option<(u8, u64, u64)> {
    let mut info = [0u64; 32];
    let mut len = size_of_val(&info) as u32;
    raw::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, info.as_mut_ptr().cast(), &raw mut len).ok()?;
    let [received, sent, again] = [info[16], info[25], info[26]];
    Some((info[0].to_ne_bytes()[0], sent - again, received))
}

impl Socket {
    /// Waits for what the other end has sent.
    fn look(&self) {
        let limit = time::now() + DELIVERY;
        while self.is_under_way() && time::now() < limit {
            raw::sched_yield();
        }
    }

    fn is_under_way(&self) -> bool {
        if !self.open[self.me].load(Ordering::SeqCst) {
            return false;
        }
        let Some((state, sent, received)) = info(self.fd) else { return false };
        if !self.open[1 - self.me].load(Ordering::SeqCst) {
            // A FIN or a reset comes.
            return matches!(state, ESTABLISHED | FIN_WAIT1 | FIN_WAIT2);
        }
        let Some((there, sent_there, received_there)) = info(self.peer) else { return false };
        let ended = |state| !matches!(state, ESTABLISHED);
        let fin = |from, to| from == FIN_WAIT1 && !ended(to);
        sent > received_there || sent_there > received || fin(there, state) || fin(state, there)
    }

    fn ioctl(&self, request: libc::c_ulong) -> usize {
        self.look();
        let mut n = 0i32;
        raw::ioctl(self.fd, request as usize, (&raw mut n).addr()).unwrap();
        n as usize
    }
}

/// Calls sendmsg(2) or recvmsg(2) with the unused buffers, and moves the cursor over what was sent or received.
fn transfer(
    buffers: &mut Iov<'_>,
    call: impl FnOnce(*mut libc::msghdr) -> Result<usize, Errno>,
) -> Result<usize, Errno> {
    // Of a buffer that was used in part the rest is enough: the kernel may take a part.
    let rest = buffers.first().map(|(start, len)| libc::iovec { iov_base: start.cast(), iov_len: len });
    let (vec, count) = buffers.whole().unwrap_or((rest.as_ref().map_or(core::ptr::null(), |v| v), rest.iter().len()));
    // SAFETY: all zeroes is a message header without anything.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (vec.cast_mut(), count);
    let n = call(&raw mut message)?;
    buffers.skip(n);
    Ok(n)
}

impl Endpoint for Socket {
    fn try_write(&self, src: &mut Iov<'_>) -> Result<usize, Errno> {
        self.look();
        transfer(src, |message| raw::sendmsg(self.fd, message, libc::MSG_NOSIGNAL))
    }

    fn try_read(&self, dst: &mut Iov<'_>, peek: bool) -> Result<usize, Errno> {
        self.look();
        transfer(dst, |message| raw::recvmsg(self.fd, message, if peek { libc::MSG_PEEK } else { 0 }))
    }

    fn readiness(&self) -> Readiness {
        self.look();
        const ASKED: i16 = libc::POLLIN | libc::POLLOUT | libc::POLLRDNORM | libc::POLLWRNORM | libc::POLLRDHUP;
        let mut fds = [libc::pollfd { fd: self.fd, events: ASKED, revents: 0 }];
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        raw::ppoll(fds.as_mut_ptr(), 1, &raw mut now, core::ptr::null()).unwrap();
        Readiness(fds[0].revents as u16 as u32)
    }

    fn arm(&'static self, interest: Interest, set: &mut WaitSet) -> bool {
        let events = if interest.read { libc::POLLIN } else { 0 } | if interest.write { libc::POLLOUT } else { 0 };
        set.add(self.fd, events);
        let now = self.readiness();
        interest.read && now.readable() || interest.write && now.writable()
    }

    fn disarm(&self, _: Interest, _: &WaitSet) {}

    fn shutdown(&self, how: Shut) {
        let how = match how {
            Shut::Read => libc::SHUT_RD,
            Shut::Write => libc::SHUT_WR,
            Shut::Both => libc::SHUT_RDWR,
        };
        self.look();
        // It fails if the connection is over.
        let _ = raw::shutdown(self.fd, how);
    }

    fn close(&'static self, abort: bool) {
        self.look();
        if !self.open[self.me].swap(false, Ordering::SeqCst) {
            return;
        }
        if abort {
            let linger = libc::linger { l_onoff: 1, l_linger: 0 };
            let (value, len) = ((&raw const linger).cast(), size_of_val(&linger) as u32);
            raw::setsockopt(self.fd, libc::SOL_SOCKET, libc::SO_LINGER, value, len).unwrap();
        }
        raw::close(self.fd).unwrap();
    }

    fn unread(&self) -> usize {
        self.ioctl(libc::FIONREAD)
    }

    fn unsent(&self) -> usize {
        self.ioctl(libc::TIOCOUTQ)
    }

    fn take_error(&self) -> i32 {
        self.look();
        raw::getsockopt_int(self.fd, libc::SOL_SOCKET, libc::SO_ERROR).unwrap()
    }

    fn peer_cpu(&self) -> u32 {
        netacc_sys::cpu::NO_CPU
    }
}
