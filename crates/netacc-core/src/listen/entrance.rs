//! Entrances: the sockets in the host directory by which clients in other network namespaces reach a listener.
//!
//! Each process that serves a listener has an entrance of its own for it, since the kernel decides which process accepts
//! a connection, and only that one can say whether a connection is its own.

use crate::epoll::listeners;
use crate::host_directory;
use crate::object::listener::Listener;
use crate::object::socket::Socket;
use crate::switch::syn_stamp;
use netacc_sys::reserved_fds;
use netacc_transport::shm::host_dir;

/// Opens the entrance of a listener, unless it has one. True: it has one now. A listener that only this network
/// namespace can reach needs none.
pub fn open(s: &'static Socket) -> bool {
    let Some(l) = s.listener() else { return false };
    if l.entrance.fd() >= 0 {
        return true;
    }
    let Some(local) = s.local.get().filter(|local| !local.ip().to_canonical().is_loopback()) else { return false };
    let Some(dir) = host_directory::usable().filter(|_| l.permitted().shm) else { return false };
    let made = host_dir::open_entrance(dir, local.port());
    let opened = made.and_then(|(fd, name)| Ok((reserved_fds::adopt(fd)?, name)));
    let (fd, name) = match opened {
        Ok(opened) => opened,
        Err(e) => {
            netacc_log::log!(Info, "NACC_HOST_DIR={dir}: no socket for the listener at {local}: error {}", e.0);
            return false;
        }
    };
    let first = {
        let _g = l.lock.lock();
        l.entrance.open(fd, name)
    };
    if !first {
        // Another thread was faster.
        reserved_fds::close(fd);
        host_dir::remove(dir, name);
        return true;
    }
    listeners::watch_hello(l, fd);
    syn_stamp::keep(l.kernel_fd(s.first_fd()));
    true
}

/// Closes the entrance of a listener and removes its name. Called under the listener's lock.
pub(crate) fn close(l: &Listener) {
    leave(l);
    let fd = l.entrance.take();
    if fd >= 0 {
        reserved_fds::close(fd);
    }
}

/// Removes the name of a listener's entrance, if this process has made it: the process ends.
pub(crate) fn leave(l: &Listener) {
    if let Some(name) = l.entrance.name()
        && let Some(dir) = host_directory::configured()
    {
        host_dir::remove(dir, name);
    }
}
