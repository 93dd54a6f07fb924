//! Control sockets that nobody reads during a fork.

use crate::shm::Link;

/// List of links whose control sockets no other thread reads until [`Unread::go_on`]. It needs no allocation, since the
/// thread may call _Fork(3) in a signal handler that has interrupted an allocation.
#[derive(Debug, Default)]
pub struct Unread {
    first: Option<&'static Link>,
}

impl Unread {
    /// Adds the link if its reader stops within `budget` ns, and processes the waiting messages: the reading thread may
    /// have lost its processor in between, and a child cannot continue the reading. The link may end meanwhile; the
    /// lock stays valid for every use of the object.
    pub fn stop(&mut self, link: &'static Link, budget: u64) {
        if self.has(link) {
            return;
        }
        if let Some(reader) = link.control.reader.lock_within(budget) {
            link.control.next_unread.set(self.first);
            self.first = Some(link);
            core::mem::forget(reader);
            self.take_in(link);
        }
    }

    /// Processes the waiting messages of the link's control socket, if it is in this list.
    pub(super) fn take_in(&self, link: &'static Link) {
        if self.has(link) && link.hold_if_used() {
            // An end is found again by the thread that reads next, see `go_on`.
            let _ = link.read_all();
            link.put();
        }
    }

    fn has(&self, link: &'static Link) -> bool {
        self.iter().any(|l| core::ptr::eq(l, link))
    }

    fn iter(&self) -> impl Iterator<Item = &'static Link> {
        core::iter::successors(self.first, |l| l.control.next_unread.get())
    }

    /// Lets the sockets be read again, first by this thread, since other threads that found a socket busy have
    /// returned.
    pub fn go_on(self) {
        // The iterator goes to the next link while the lock is held, since another forking thread may use the word after that.
        for link in self.iter() {
            drop(link.control.reader.regain());
            if link.hold_if_used() {
                link.service_if_readable();
                link.put();
            }
        }
    }
}
