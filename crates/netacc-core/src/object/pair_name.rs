//! The name by which a connection has its pair of addresses alone. Sockets that share a local port (SO_REUSEADDR) could make
//! two connections with one pair, which the kernel refuses; it knows nothing of connections in shared memory. So the
//! client holds an abstract UNIX socket with a name made of the pair, of which there is one in a network namespace.

use core::net::SocketAddr;
use core::sync::atomic::{AtomicI32, Ordering};
use netacc_sys::errno::Errno;
use netacc_sys::reserved_fds;
use netacc_transport::shm::rendezvous;

/// The name that a socket holds, if any.
#[derive(Debug)]
pub struct PairName {
    /// The UNIX socket (descriptor + 1); 0: none. The threads that connect or retire the socket use it.
    fd: AtomicI32,
}

impl PairName {
    /// Takes the name of the pair. False: another connection has it. Without a descriptor for the name the pair counts as
    /// free.
    pub(crate) fn take(&self, local: SocketAddr, peer: SocketAddr) -> bool {
        self.release();
        match rendezvous::hold_pair(local, peer).and_then(reserved_fds::adopt) {
            Ok(fd) => self.fd.store(fd + 1, Ordering::Relaxed),
            Err(Errno::ADDRINUSE) => return false,
            Err(_) => {}
        }
        true
    }

    /// Gives the name up.
    #[inline]
    pub(crate) fn release(&self) {
        if self.fd.load(Ordering::Relaxed) != 0 {
            match self.fd.swap(0, Ordering::Relaxed) {
                0 => {}
                fd => reserved_fds::close(fd - 1),
            }
        }
    }
}
