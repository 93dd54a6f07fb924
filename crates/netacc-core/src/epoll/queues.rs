//! Sleeping at listeners that are registered in several instances.
//!
//! A link's connect queue reports to one instance by its subscription, in which perhaps no thread waits: a program
//! whose threads have an instance each may let only one of them wait. So a thread that sleeps in any of the instances
//! registers with the queues themselves, as a thread in poll(2) does.

use crate::epoll::ready::is_wanted;
use crate::object::instance::Epoll;
use crate::object::listener::Listener;
use crate::object::source::Source;
use alloc::vec::Vec;
use netacc_transport::WaitSet;

/// The listeners with whose connect queues a sleeping thread is registered.
#[derive(Debug, Default)]
pub(super) struct Queues(Vec<&'static Listener>);

impl Queues {
    /// Registers the calling thread, if it is about to sleep (`sleeps`).
    #[inline]
    pub(super) fn arm(e: &'static Epoll, set: &mut WaitSet, sleeps: bool) -> Queues {
        if !sleeps || e.listened.get() == 0 {
            return Queues::default();
        }
        let mut found: Vec<&'static Listener> = Vec::new();
        {
            let _g = e.lock.lock();
            for reg in e.registered() {
                if reg.source() == Source::Queues
                    && let Some(l) = reg.sock.get().and_then(|s| s.listener())
                    && !found.iter().any(|x| core::ptr::eq(*x, l))
                {
                    found.push(l);
                }
            }
        }
        for l in &found {
            l.arm(set);
        }
        Queues(found)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a connect that has to be reported came before the registration.
    pub(super) fn ready(&self, e: &'static Epoll) -> bool {
        if self.is_empty() {
            return false;
        }
        let _g = e.lock.lock();
        e.registered().any(|reg| reg.source() == Source::Queues && is_wanted(e, reg))
    }

    /// Undoes [`Queues::arm`].
    pub(super) fn disarm(self, set: &WaitSet) {
        for l in self.0 {
            l.disarm(set);
            // The control socket of a dead client would end every further sleep.
            l.sweep();
        }
    }
}
