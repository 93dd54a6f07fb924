//! What a registration with an epoll instance listens to.

use crate::machine::{Edge, allows};

/// Where the events of a registration come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Source {
    /// Nothing yet, or nothing any more: EPOLLONESHOT had disabled it when its connection became a kernel socket.
    Nothing = 0,
    /// The kernel's set, which has the program's own event and reports it without us.
    Kernel = 1,
    /// The kernel's set, in which a cookie stands for the program's value: a candidate, or a value that looks like a
    /// cookie.
    Translated = 2,
    /// The kernel's set, in which a cookie stands for the program's value of a descriptor that the library does not serve. Only
    /// the program's own calls remove that entry.
    Foreign = 3,
    /// A connection's peer, by the ready set of a subscription.
    ReadySet = 4,
    /// A look at the connection in every round, since there is no ready set for it.
    Rounds = 5,
    /// A look at the connection in every round, and its liveness socket, which ends a sleep.
    Liveness = 6,
    /// The kernel's listener, the rendezvous, and the connect queues of the links by subscriptions.
    Listener = 7,
    /// All that [`Source::Listener`] has, and a look at the connect queues in every round: a queue reports to one instance,
    /// and others watch the listener as well. A thread that sleeps is registered with each queue.
    Queues = 8,
    /// A nested instance, which is in the kernel's set and is looked at in every round.
    Nested = 9,
}

const ALL: [Source; 10] = [
    Source::Nothing,
    Source::Kernel,
    Source::Translated,
    Source::Foreign,
    Source::ReadySet,
    Source::Rounds,
    Source::Liveness,
    Source::Listener,
    Source::Queues,
    Source::Nested,
];

/// Allowed transitions of a registration. It is recycled when it listens to nothing.
const SOURCE: &[Edge<Source>] = &[
    (None, Some(Source::Nothing), "epoll_ctl(2)"),
    (Some(Source::Nothing), None, "is removed"),
    (Some(Source::Nothing), Some(Source::Kernel), "the kernel serves the socket"),
    (Some(Source::Kernel), Some(Source::Nothing), "leaves the kernel's set"),
    (Some(Source::Nothing), Some(Source::Translated), "the kernel serves a candidate, or a value like a cookie"),
    (Some(Source::Kernel), Some(Source::Translated), "becomes a candidate, or gets a value like a cookie"),
    (Some(Source::Translated), Some(Source::Kernel), "epoll_ctl(2) gives an ordinary value"),
    (Some(Source::Translated), Some(Source::Nothing), "leaves the kernel's set"),
    (Some(Source::Nothing), Some(Source::Foreign), "another descriptor with a value like a cookie"),
    (Some(Source::Foreign), Some(Source::Nothing), "the instance is closed"),
    (Some(Source::Nothing), Some(Source::ReadySet), "is accelerated"),
    (Some(Source::Nothing), Some(Source::Rounds), "is accelerated, without a ready set"),
    (Some(Source::Rounds), Some(Source::Liveness), "the link is a parent's"),
    (Some(Source::ReadySet), Some(Source::Rounds), "another endpoint, without a ready set"),
    (Some(Source::Rounds), Some(Source::ReadySet), "another endpoint"),
    (Some(Source::Liveness), Some(Source::ReadySet), "another endpoint"),
    (Some(Source::Liveness), Some(Source::Rounds), "another endpoint, or the child of a fork enters it anew"),
    (Some(Source::ReadySet), Some(Source::Nothing), "becomes a kernel socket, or is removed"),
    (Some(Source::Rounds), Some(Source::Nothing), "becomes a kernel socket, or is removed"),
    (Some(Source::Liveness), Some(Source::Nothing), "becomes a kernel socket, or is removed"),
    (Some(Source::Nothing), Some(Source::Listener), "listen(2)"),
    (Some(Source::Listener), Some(Source::Queues), "another instance watches it, or there is no subscription"),
    (Some(Source::Queues), Some(Source::Listener), "is entered in a set of our own"),
    (Some(Source::Listener), Some(Source::Nothing), "is the kernel's alone, or is removed"),
    (Some(Source::Queues), Some(Source::Nothing), "is the kernel's alone, or is removed"),
    (Some(Source::Nothing), Some(Source::Nested), "a nested instance"),
    (Some(Source::Nested), Some(Source::Nothing), "is removed"),
];

/// What an instance counts a registration as, 0 or 1 each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counted {
    /// The kernel cannot serve it alone.
    pub(super) ours: u32,
    /// It is looked at in every round.
    pub(super) polled: u32,
    /// Its liveness socket ends a sleep.
    pub(super) with_liveness: u32,
    /// A sleeping thread is registered with its connect queues.
    pub(super) listened: u32,
}

impl Source {
    /// Decodes a word that holds a source's number.
    #[inline]
    pub(super) fn decode(word: u32) -> Source {
        ALL.get(word as usize).copied().unwrap_or(Source::Nothing)
    }

    /// Whether the kernel's set has an entry under the registration's descriptor, which is ours to remove.
    pub(crate) fn is_in_kernels_set(self) -> bool {
        matches!(self, Source::Kernel | Source::Translated | Source::Listener | Source::Queues | Source::Nested)
    }

    /// Whether the registration is looked at in every round. Nested instances are, too, by their own count.
    #[inline]
    pub(crate) fn is_polled(self) -> bool {
        matches!(self, Source::Rounds | Source::Liveness | Source::Queues)
    }

    pub(super) fn counted(self) -> Counted {
        Counted {
            ours: (!matches!(self, Source::Nothing | Source::Kernel)).into(),
            polled: self.is_polled().into(),
            with_liveness: (self == Source::Liveness).into(),
            listened: (self == Source::Queues).into(),
        }
    }

    /// Whether a registration may change to this source from `before`.
    pub(super) fn may_follow(self, before: Source) -> bool {
        allows(SOURCE, &Some(before), &Some(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::tests::assert_shown;

    #[test]
    fn the_document_shows_the_table() {
        assert_shown("epoll.md", SOURCE);
    }

    #[test]
    fn a_word_is_one_source() {
        for (number, source) in (0..).zip(ALL) {
            assert_eq!(source as u32, number);
            assert_eq!(Source::decode(number), source);
        }
    }

    #[test]
    fn what_is_hinted_is_looked_at_and_what_is_looked_at_is_ours() {
        for source in ALL {
            let c = source.counted();
            assert!(c.with_liveness + c.listened <= c.polled && c.polled <= c.ours, "{source:?}: {c:?}");
        }
    }

    #[test]
    fn every_source_can_be_left() {
        for source in ALL {
            assert!(Source::Nothing.may_follow(source), "{source:?}");
        }
        assert!(!Source::Listener.may_follow(Source::ReadySet) && !Source::ReadySet.may_follow(Source::Kernel));
    }
}
