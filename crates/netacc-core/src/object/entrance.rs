//! The entrance of a listener: its socket in the host directory, by which clients in other network namespaces reach it.

use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use netacc_sys::{SharedCell, raw};
use netacc_wire::Entrance as Name;

/// The entrance of a listener in this process. The fields but `fd` are stored before it, under the listener's lock.
#[derive(Debug)]
pub struct Entrance {
    /// The socket (reserved descriptor + 1); 0: there is none.
    fd: AtomicI32,
    id: AtomicU64,
    port: AtomicU32,
    /// The process that made it: the child of a vfork, which has its parent's memory, must not remove it.
    pid: SharedCell<u32>,
}

impl Entrance {
    /// The socket, or -1.
    pub(crate) fn fd(&self) -> i32 {
        self.fd.load(Ordering::Acquire) - 1
    }

    /// Stores the entrance. False: there is one already. Under the listener's lock.
    pub(crate) fn open(&self, fd: i32, name: Name) -> bool {
        if self.fd() >= 0 {
            return false;
        }
        self.id.store(name.id, Ordering::Relaxed);
        self.port.store(name.port.into(), Ordering::Relaxed);
        self.pid.set(raw::getpid());
        // Release: a thread that sees the socket sees its name.
        self.fd.store(fd + 1, Ordering::Release);
        true
    }

    /// The name of the entrance, if this process has made one.
    pub(crate) fn name(&self) -> Option<Name> {
        let there = self.fd() >= 0 && self.pid.get() == raw::getpid();
        let port = u16::try_from(self.port.load(Ordering::Relaxed)).unwrap_or(0);
        there.then(|| Name { id: self.id.load(Ordering::Relaxed), port })
    }

    /// Forgets the entrance. Returns its socket, which the caller closes, or -1.
    pub(crate) fn take(&self) -> i32 {
        self.fd.swap(0, Ordering::AcqRel) - 1
    }
}
