//! The end of a listener, and the removal of links that bring no more connects.

use crate::epoll::subscription;
use crate::listen::withdrawal::hand_on;
use crate::listen::{crowd, entrance, taking};
use crate::object::listener::{HELD, LISTENERS, Links, Listener, links_from, remote_names, reserved_back};
use crate::object::socket::ListenState;
use crate::timeouts;
use crate::wait::bell;
use core::sync::atomic::Ordering;
use netacc_sys::signals::Blocked;
use netacc_sys::time::Deadline;
use netacc_sys::{raw, reserved_fds};
use netacc_transport::WaitSet;
use netacc_transport::rdma::engine;
use netacc_transport::shm::ServerState;
use netacc_transport::shm::claim::refuse_slot;
use netacc_transport::shm::slots::SLOTS;
use netacc_transport::shm::{Link, guard};

impl Listener {
    /// Removes links whose peer has ended.
    pub fn sweep(&'static self) {
        while let Some(link) = self.unlink_one() {
            subscription::link_gone(link);
            link.put();
        }
    }

    fn unlink_one(&'static self) -> Option<&'static Link> {
        let _g = self.lock.lock();
        let lost = self.links().find(|link| link.is_lost() && link.segment().is_none_or(|s| s.queued() == 0))?;
        self.links.take_out(lost, |link| &link.next);
        crowd::link_removed(lost);
        Some(lost)
    }

    /// Ends the listener after the process has closed its last descriptor of it. Accepted connections go on. Queued
    /// connects are reset, as the kernel does it, unless other processes have the listener, which then serve them.
    pub fn close(&'static self, was: ListenState) {
        match self.many.load(Ordering::Relaxed) {
            0 => self.reset_queued(was),
            _ => self.hand_on(was),
        }
    }

    /// Ends the listener, since no process listens any more: queued connects are reset, accepted connections go on.
    /// A client that still waits at the rendezvous is taken up for that: in shared memory it sees the reset at once.
    pub(crate) fn reset_queued(&'static self, was: ListenState) {
        self.take_links_of_ours();
        self.end(was, |links| {
            // First all of them: what is taken from one link makes no room for a connect on another one.
            links.clone().filter_map(|link| link.segment()).for_each(|seg| seg.set_server(ServerState::Closed));
            for link in links {
                // The number is limited, since a client may keep queueing connects.
                core::iter::from_fn(|| link.pop()).take(SLOTS).for_each(|slot| refuse_slot(link, slot));
            }
        });
    }

    /// Ends the listener in favour of a process that serves it without this library: queued connects go there by TCP.
    pub(crate) fn withdraw(&'static self, was: ListenState) {
        let sock = self.rendezvous_fd();
        if sock >= 0 {
            // This ends the rendezvous socket for all processes that have it. Clients that have connected to it may have
            // queued connects; those that cannot be taken up see its end.
            let _ = raw::shutdown(sock, libc::SHUT_RDWR);
            if self.has_clients_here() {
                self.take_last_links();
            }
            dismiss_waiting(sock);
        }
        self.hand_on(was);
    }

    /// Passes the queued connects to the other processes that have the listener.
    fn hand_on(&'static self, was: ListenState) {
        self.take_links_of_ours();
        self.end(was, hand_on);
    }

    /// Whether the clients that wait at the rendezvous are this process's. They are those of the other processes that
    /// share its socket if this one has served no client, such as the child of a server that forks for each connection.
    fn has_clients_here(&'static self) -> bool {
        self.inherited.load(Ordering::Relaxed) == 0 || self.serves_here()
    }

    /// Takes up the clients that have reached the rendezvous before its end. One that has not introduced itself yet is
    /// waited for briefly: it would queue its connect at a link that no process has, and might not look at it for long.
    fn take_last_links(&'static self) {
        let end = Deadline::within(timeouts::LAST_HELLOS);
        loop {
            self.take_all_links();
            let mut set = WaitSet::new();
            self.hellos().for_each(|fd| {
                set.add(fd, libc::POLLIN);
            });
            if set.is_empty() || end.passed() || set.sleep(end, core::ptr::null()).is_err() {
                return;
            }
        }
    }

    /// Takes up all clients that wait at the rendezvous, if they are this process's: they may have queued connects, which
    /// would be lost with a rendezvous that no other process has, and may not call us for long.
    pub(crate) fn take_links_of_ours(&'static self) {
        if self.has_clients_here() {
            self.take_all_links();
        }
    }

    pub(crate) fn take_all_links(&'static self) {
        for _ in 0..HELD {
            if !taking::take_last(self) {
                return;
            }
        }
    }

    /// Ends the listener, whose state was `was`, and calls `last` with its links.
    fn end(&'static self, was: ListenState, last: impl FnOnce(Links)) {
        // Signals are blocked, since a handler may close another listener, which needs the same locks.
        let _b = Blocked::all();
        if let Some(s) = self.owner.load()
            && was == ListenState::Announced
            && let Some(local) = s.local.get()
        {
            remote_names(s, local).for_each(engine::unlisten);
        }
        let first = {
            let _g = self.lock.lock();
            let sock = self.rendezvous.swap(0, Ordering::Relaxed) - 1;
            if sock >= 0 {
                // The clients that wait at the rendezvous see its end, unless another process has the socket too.
                if self.many.load(Ordering::Relaxed) == 0 {
                    let _ = raw::shutdown(sock, libc::SHUT_RDWR);
                    dismiss_waiting(sock);
                }
                reserved_fds::close(sock);
                // A thread that sleeps on the rendezvous is woken by its end, but the kernel has it look by numbers: where this
                // number has another file by then, the thread would sleep on, and hold the rendezvous in the table of sockets.
                bell::ring_all();
            }
            entrance::close(self);
            self.dismiss_hellos();
            self.links.swap(None)
        };
        last(links_from(first));
        for link in links_from(first) {
            crowd::link_removed(link);
            subscription::link_gone(link);
            link.put();
        }
        LISTENERS.release(self);
    }

    fn dismiss_hellos(&self) {
        for cell in &self.hellos {
            let fd = cell.swap(0, Ordering::Relaxed);
            if fd != 0 {
                guard::dismiss(reserved_back(fd - 1));
            }
        }
    }

    /// Closes the child's copies of the sockets of clients that have not sent their Hello. The parent has them too.
    fn close_hellos(&self) {
        for cell in &self.hellos {
            let fd = cell.swap(0, Ordering::Relaxed);
            if fd != 0 {
                let _ = raw::close(fd - 1);
            }
        }
    }

    /// Called in the child of a fork: drops the links, which belong to the parent, and marks the rendezvous as shared.
    pub fn after_fork(&'static self) {
        self.waits.store(0, Ordering::Relaxed);
        // Relaxed: the child has one thread.
        self.inherited.store(1, Ordering::Relaxed);
        self.servers.after_fork();
        for link in links_from(self.links.swap(None)) {
            crowd::link_removed(link);
            link.inherit();
        }
        self.close_hellos();
        // The entrance is the parent's. This process gets one of its own when it accepts a client that may need it.
        let sock = self.entrance.take();
        if sock >= 0 {
            let _ = raw::close(sock);
        }
    }
}

/// Closes the connections of clients that wait at a rendezvous which was shut down.
fn dismiss_waiting(sock: i32) {
    let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    while let Ok(fd) = raw::accept4(sock, core::ptr::null_mut(), core::ptr::null_mut(), flags) {
        guard::dismiss(reserved_back(fd));
    }
}
