//! Server's host: a companion connection that another process has accepted than the one that has its queue pair, and
//! the way from the first to the second.
//!
//! While an engine awaits companions at the listener's own port it has a UNIX socket with a random name in the abstract
//! namespace, which its sharers find on the [board](crate::rdma::engine::companions::own_port). They connect, pass the
//! connection with one message, and are done. Each side asks the kernel for the other one's user: only processes of one
//! user, or of root, pass each other connections. The engine checks the token, of which the board has one half.

use crate::num;
use crate::rdma::engine::companions::watch::{Watch, of_fd};
use crate::shm::guard;
use crate::shm::users::trusted;
use alloc::format;
use core::mem::MaybeUninit;
use libc::{EPOLL_CTL_ADD, EPOLLIN};
use netacc_sys::errno::{Errno, Result};
use netacc_sys::{raw, reserved_fds};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use rustix::io::{IoSlice, IoSliceMut};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen, recvmsg, sendmsg,
    socket_with,
};

const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);
/// Processes that may have connected and not passed anything yet.
const COURIERS: usize = 16;
/// What the message says that passes a companion.
const PASSES: u8 = 1;

/// The engine that awaits a companion: the random name of its process, which is never 0, and its index there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::rdma::engine) struct Owner {
    pub process: u64,
    pub engine: usize,
}

/// Makes calls on a descriptor answer at once.
pub(in crate::rdma::engine) fn without_blocking(fd: i32) -> Result<()> {
    let flags = raw::fcntl(fd, libc::F_GETFL, 0)?;
    raw::fcntl(fd, libc::F_SETFL, (flags | libc::O_NONBLOCK).cast_unsigned() as usize).map(drop)
}

/// Where an engine gets what others have accepted for it.
#[derive(Debug)]
pub(in crate::rdma::engine) struct Handover {
    /// The listening socket, or -1.
    socket: i32,
    /// Processes that have connected.
    couriers: [i32; COURIERS],
}

impl Default for Handover {
    fn default() -> Handover {
        Handover { socket: -1, couriers: [-1; COURIERS] }
    }
}

impl Handover {
    /// Whether this is where others pass companions.
    pub fn is_at(&self, socket: i32) -> bool {
        self.socket == socket
    }

    /// Whether this process has connected, and may pass something.
    pub fn has(&self, courier: i32) -> bool {
        self.couriers.contains(&courier)
    }

    /// The descriptors of all of this.
    pub fn fds(&self) -> impl Iterator<Item = i32> {
        [self.socket].into_iter().chain(self.couriers).filter(|fd| *fd >= 0)
    }
}

fn address(owner: Owner) -> Result<SocketAddrUnix> {
    let name = format!("netacc-companion-{:016x}-{}", owner.process, owner.engine);
    Ok(SocketAddrUnix::new_abstract_name(name.as_bytes())?)
}

/// Passes a companion that this process has accepted to the engine that awaits it. It waits for nothing.
pub(in crate::rdma::engine) fn pass(to: Owner, companion: i32) -> Result<()> {
    let ours = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)?;
    let sent = connect(&ours, &address(to)?).map_err(Errno::from).and_then(|()| {
        // The name may be another's by now, where the process is gone.
        if !raw::peer_credentials(ours.as_raw_fd()).is_ok_and(|(_, uid)| trusted(uid)) {
            return Err(Errno(libc::EPERM));
        }
        send(ours.as_fd(), companion)
    });
    reserved_fds::drop_raw(ours);
    sent
}

#[allow(unsafe_code)]
fn send(over: BorrowedFd<'_>, companion: i32) -> Result<()> {
    // SAFETY: the caller has the descriptor until this returns.
    let passed = [unsafe { BorrowedFd::borrow_raw(companion) }];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&passed));
    sendmsg(over, &[IoSlice::new(&[PASSES])], &mut control, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
    Ok(())
}

/// What a process passes; `Err(AGAIN)` as long as it has not.
fn receive(over: BorrowedFd<'_>) -> Result<OwnedFd> {
    let mut byte = [0u8];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    reserved_fds::make_room(over.as_raw_fd());
    recvmsg(over, &mut [IoSliceMut::new(&mut byte)], &mut control, flags)?;
    let mut passed = None;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            fds.for_each(|fd| {
                if let Some(before) = passed.replace(fd) {
                    reserved_fds::drop_raw(before);
                }
            });
        }
    }
    let passed = passed.ok_or(Errno::PROTO)?;
    let option = |name| raw::getsockopt_int(passed.as_raw_fd(), libc::SOL_SOCKET, name);
    let is_tcp = matches!(option(libc::SO_DOMAIN), Ok(libc::AF_INET | libc::AF_INET6))
        && option(libc::SO_PROTOCOL) == Ok(libc::IPPROTO_TCP)
        && without_blocking(passed.as_raw_fd()).is_ok();
    if is_tcp {
        return Ok(passed);
    }
    reserved_fds::drop_raw(passed);
    Err(Errno::PROTO)
}

impl Handover {
    /// From here on other processes can pass this engine what is its own.
    pub fn open(&mut self, watch: &mut Watch, owner: Owner) -> Result<()> {
        if self.socket >= 0 {
            return Ok(());
        }
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)?;
        let socket = reserved_fds::adopt(socket)?;
        let opened = address(owner).and_then(|name| {
            #[allow(unsafe_code)]
            // SAFETY: it is open, and ours.
            let fd = unsafe { BorrowedFd::borrow_raw(socket) };
            bind(fd, &name)?;
            listen(fd, const { num::constant(COURIERS).cast_signed() })?;
            watch.ctl(EPOLL_CTL_ADD, socket, EPOLLIN, of_fd(4, socket))
        });
        opened.inspect_err(|_| reserved_fds::close(socket))?;
        self.socket = socket;
        Ok(())
    }

    /// No companion is awaited any more.
    pub fn close(&mut self, watch: &Watch) {
        for fd in core::mem::take(self).fds() {
            watch.forget(fd);
        }
    }

    /// The next process that has connected and may pass something.
    pub fn next_courier(&mut self, watch: &mut Watch) -> Option<i32> {
        #[allow(unsafe_code)]
        // SAFETY: it is open, and ours.
        let fd = accept_with(unsafe { BorrowedFd::borrow_raw(self.socket) }, FLAGS).ok()?;
        if !raw::peer_credentials(fd.as_raw_fd()).is_ok_and(|(_, uid)| trusted(uid)) {
            guard::dismiss(fd);
            return None;
        }
        let fd = reserved_fds::adopt(fd).ok()?;
        let place = self.couriers.iter_mut().find(|place| **place < 0);
        match place {
            Some(place) => *place = fd,
            None => {
                reserved_fds::close(fd);
                return None;
            }
        }
        if watch.ctl(EPOLL_CTL_ADD, fd, EPOLLIN, of_fd(5, fd)).is_err() {
            self.end_courier(watch, fd);
            return None;
        }
        Some(fd)
    }

    /// The companion that a process has passed, if it has passed one. A process that has connected is done then.
    pub fn take(&mut self, watch: &Watch, courier: i32) -> Option<i32> {
        #[allow(unsafe_code)]
        // SAFETY: it is open, and ours.
        let got = receive(unsafe { BorrowedFd::borrow_raw(courier) });
        if matches!(got, Err(Errno::AGAIN | Errno::INTR)) {
            return None;
        }
        self.end_courier(watch, courier);
        got.ok().map(|companion| reserved_fds::raise(companion.into_raw_fd()))
    }

    fn end_courier(&mut self, watch: &Watch, fd: i32) {
        if let Some(place) = self.couriers.iter_mut().find(|place| **place == fd) {
            *place = -1;
            watch.forget(fd);
        }
    }
}
