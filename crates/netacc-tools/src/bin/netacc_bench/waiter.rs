//! How a process waits for the next message of one connection.
//!
//! By the functions of libc, where the library stands in between.

use std::io;
use std::net::TcpStream;
use std::os::fd::AsFd;

use netacc_tools::bench_wire::Waiting;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::select::{FdSet, select};

pub(crate) enum Waiter {
    /// The read that follows waits itself.
    Recv,
    Epoll(Epoll),
    Poll,
    Select,
}

impl Waiter {
    /// For one connection, which must block.
    pub(crate) fn new(waiting: Waiting, stream: &TcpStream) -> io::Result<Self> {
        Ok(match waiting {
            Waiting::Usual | Waiting::Recv => Self::Recv,
            Waiting::Epoll => {
                let set = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
                set.add(stream, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
                Self::Epoll(set)
            }
            Waiting::Poll => Self::Poll,
            Waiting::Select => Self::Select,
        })
    }

    /// Returns when a read has something to return.
    pub(crate) fn wait(&self, stream: &TcpStream) -> io::Result<()> {
        loop {
            let ready = match self {
                Self::Recv => return Ok(()),
                Self::Epoll(set) => set.wait(&mut [EpollEvent::empty()], EpollTimeout::NONE).map(|ready| ready as i32),
                Self::Poll => poll(&mut [PollFd::new(stream.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE),
                Self::Select => {
                    let mut set = FdSet::new();
                    set.insert(stream.as_fd());
                    select(None, &mut set, None, None, None)
                }
            };
            match ready {
                Err(Errno::EINTR) => {}
                Ok(1) => return Ok(()),
                Ok(count) => return Err(io::Error::other(format!("{count} descriptors are ready, of one"))),
                Err(error) => return Err(error.into()),
            }
        }
    }
}
