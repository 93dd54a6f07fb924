//! The order of events. The kernel reports descriptors in the order in which they became ready, and programs that use
//! two connections rely on it: bytes that were written first are served first.

use crate::epoll::ready::hinted;
use crate::object::instance::Epoll;
use netacc_transport::shm::ShmEndpoint;

/// Largest number of hints that are sorted together. More hints are sorted in lots of this size.
const LOT: usize = 64;

/// Hints that are about to enter the ready queue, in the order in which the peers gave them.
#[derive(Default)]
pub(crate) struct Arrivals {
    /// The first hint. Usually it is the only one, and nothing has to be sorted.
    first: Option<&'static ShmEndpoint>,
    lot: Option<Lot>,
}

struct Lot {
    len: usize,
    hints: [(u64, Option<&'static ShmEndpoint>); LOT],
}

impl Arrivals {
    /// Adds a hint. This and [`Arrivals::finish`] are called under the instance's lock.
    #[inline]
    pub(crate) fn add(&mut self, e: &Epoll, ep: &'static ShmEndpoint) {
        match (self.first, &mut self.lot) {
            (None, _) => self.first = Some(ep),
            (Some(_), Some(lot)) => lot.add(e, ep),
            (Some(first), none) => {
                let lot = none.insert(Lot { len: 0, hints: [(0, None); LOT] });
                lot.add(e, first);
                lot.add(e, ep);
            }
        }
    }

    /// Queues the hints that were added.
    #[inline]
    pub(crate) fn finish(&mut self, e: &Epoll) {
        match (self.first, &mut self.lot) {
            (_, Some(lot)) => lot.queue(e),
            (Some(first), None) => hinted(e, first),
            (None, None) => {}
        }
    }
}

impl Lot {
    fn add(&mut self, e: &Epoll, ep: &'static ShmEndpoint) {
        if self.len == LOT {
            self.queue(e);
        }
        if let Some(place) = self.hints.get_mut(self.len) {
            *place = (ep.side.arrived(), Some(ep));
            self.len += 1;
        }
    }

    fn queue(&mut self, e: &Epoll) {
        let Some(hints) = self.hints.get_mut(..self.len) else { return };
        hints.sort_unstable_by_key(|&(when, _)| when);
        for ep in hints.iter().filter_map(|&(_, ep)| ep) {
            hinted(e, ep);
        }
        self.len = 0;
    }
}
