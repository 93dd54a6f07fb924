//! The state that all queue pairs on one device share.

use crate::num;
use crate::rdma::bounds::COMPLETIONS;
use crate::rdma::pool::{Pool, Sizes};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};
use netacc_verbs::{AsyncEvent, CmId, CompChannel, Context, Cq, Error, Pd, Result, Transport};

extern crate alloc;

/// Number of queue pairs per completion queue: the first queue is small, since making a large one is half the cost of a
/// first connection on some devices, and each further one holds twice as many, so that there are few to look at.
const QPS_PER_CQ: core::ops::RangeInclusive<usize> = 8..=128;

/// An RDMA device, opened.
#[derive(Debug)]
pub struct Device {
    /// `None`: the device is gone, and nothing of it is held.
    open: Option<Open>,
    cqs: Vec<(Cq, usize)>,
    comp_vector: u32,
    nth: usize,
    /// Number of sends of its queue pairs that are to have a completion and have none yet.
    awaited: Awaited,
    /// Buffers for receives, and for messages that are too long to go inline.
    pub pool: Pool,
}

/// A number that a device shares with its queue pairs. Relaxed: it is used under the lock of the engine that has them
/// all.
pub(super) type Awaited = Arc<AtomicU32>;

/// What the completion channel of a device is to report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Armed {
    /// The channel reports nothing.
    No,
    /// Messages that the other side has marked: the last of those that it has posted together, and some before it. A
    /// failure is reported as well (`ibv_req_notify_cq(3)`); soft RoCE does not always do that, and is looked at each
    /// second.
    Solicited,
    /// The channel reports every message.
    All,
}

#[derive(Debug)]
struct Open {
    pd: Pd,
    comp_channel: CompChannel,
    context: Context,
}

impl Device {
    /// Opens the device that `id` is on, for the `nth` of those in this process that have it, each with a completion
    /// vector of its own as far as there are enough. To be kept as long as the process lives, or until
    /// [`Device::let_go`].
    pub fn open(id: &CmId, sizes: Sizes, comp_vector: u32, nth: usize) -> Result<Device> {
        let context = id.context()?;
        let pd = Pd::alloc(&context)?;
        let channel = CompChannel::create(&context)?;
        channel.set_nonblocking(true)?;
        context.set_async_nonblocking(true)?;
        let pool = Pool::new(&pd, sizes);
        let comp_vector = vector(comp_vector, nth, context.num_comp_vectors());
        context.raise_descriptors();
        let open = Some(Open { pd, comp_channel: channel, context });
        Ok(Device { open, cqs: Vec::new(), comp_vector, nth, awaited: Awaited::default(), pool })
    }

    /// Lets everything go that is held of the device, which is removed: otherwise the removal would wait for the end of
    /// the process. Its queue pairs are gone already. Its place among the devices stays. Returns the descriptors that
    /// librdmacm has on it: see [`release_removed_devices`](netacc_verbs::cm::release_removed_devices).
    pub fn let_go(&mut self) -> Option<[i32; 2]> {
        self.cqs.clear();
        self.pool = self.pool.without_device();
        let open = self.open.take()?;
        open.context.lower_descriptors();
        Some([open.context.cmd_fd(), open.context.async_fd()])
    }

    /// Stops keeping other devices open on behalf of this one that are removed. False: this one is removed itself.
    pub fn forget_others(&self) -> bool {
        self.open.as_ref().is_none_or(|open| open.context.forget_removed_devices())
    }

    /// Whether messages may have immediate data: iWARP has none.
    pub(super) fn has_immediate(&self) -> bool {
        self.open.as_ref().is_some_and(|open| open.context.transport() == Transport::Ib)
    }

    /// Whether `id` is on this device.
    pub fn has(&self, id: &CmId) -> bool {
        self.open.as_ref().is_some_and(|open| id.is_on(&open.context))
    }

    /// The device's protection domain.
    pub fn pd(&self) -> Result<&Pd> {
        self.open.as_ref().map(|open| &open.pd).ok_or(Error::NoDevice)
    }

    /// A descriptor that is readable when an armed queue has something; -1 for a device that is gone.
    pub fn fd(&self) -> i32 {
        self.open.as_ref().map_or(-1, |open| open.comp_channel.fd())
    }

    /// A descriptor that is readable when the device has something to report unasked; -1 for a device that is gone.
    pub fn says_fd(&self) -> i32 {
        self.open.as_ref().map_or(-1, |open| open.context.async_fd())
    }

    /// The event that it reports, after [`Device::says_fd`] was readable.
    pub fn says(&self) -> Option<AsyncEvent> {
        self.open.as_ref()?.context.get_async_event().ok()?
    }

    /// What its channel has to report, if a thread that sleeps on it is to miss nothing.
    pub fn needs(&self) -> Armed {
        // Sends are not marked, and iWARP has no marks that are known to work.
        let marked = self.has_immediate() && self.awaited.load(Ordering::Relaxed) == 0;
        if self.cqs.is_empty() || marked { Armed::Solicited } else { Armed::All }
    }

    /// Arms the channel to report `what`, once for each queue. Earlier completions have no event.
    pub fn arm(&self, what: Armed) {
        for cq in self.cqs() {
            let _ = cq.req_notify(what == Armed::Solicited);
        }
    }

    /// The counter by which its queue pairs tell how many sends are to complete.
    pub(super) fn awaited(&self) -> Awaited {
        self.awaited.clone()
    }

    /// Takes the events of the channel: a queue that had one is not armed any more. Returns whether there was any.
    pub fn take_events(&self) -> bool {
        let Some(open) = &self.open else { return false };
        // Each queue that was armed has one event at most, so that the kernel need not be asked whether there are more.
        // An event more would only wake a thread for nothing.
        let events = self.cqs.iter().take_while(|_| matches!(open.comp_channel.get_cq_event(), Ok(Some(_)))).count();
        events > 0
    }

    /// The device's completion queues.
    pub fn cqs(&self) -> impl Iterator<Item = &Cq> {
        self.cqs.iter().map(|(cq, _)| cq)
    }

    /// Finds a completion queue with room for one more queue pair; returns it and its number.
    pub fn cq_for_one_more(&mut self) -> Result<(Cq, usize)> {
        if let Some((at, (cq, used))) = self.cqs.iter_mut().enumerate().find(|(at, (_, used))| *used < room_of(*at)) {
            *used += 1;
            return Ok((cq.clone(), at));
        }
        // A queue that overflows is lost with all queue pairs that use it: every send and receive may complete at once.
        let at = self.cqs.len();
        let entries = room_of(at) * COMPLETIONS;
        let open = self.open.as_ref().ok_or(Error::NoDevice)?;
        let attr = open.context.query_device()?;
        let entries = entries.min(usize::try_from(attr.max_cqe).unwrap_or(entries));
        let cq = Cq::create(
            &open.context,
            num::small(entries),
            self.cookie_of(at),
            Some(&open.comp_channel),
            self.comp_vector,
        )?;
        cq.req_notify(false)?;
        self.cqs.push((cq.clone(), 1));
        Ok((cq, at))
    }

    /// The name that the device uses for queue `at` in its events: no other queue of this process has it.
    pub fn cookie_of(&self, at: usize) -> u64 {
        (self.nth as u64) << 32 | at as u64
    }

    /// Counts one queue pair less on queue `at`.
    pub fn cq_has_one_less(&mut self, at: usize) {
        if let Some((_, used)) = self.cqs.get_mut(at) {
            *used = used.saturating_sub(1);
        }
    }

    /// The descriptors that it has open.
    pub fn descriptors(&self) -> impl Iterator<Item = i32> {
        let open = self.open.as_ref();
        open.map(|o| [o.comp_channel.fd(), o.context.cmd_fd(), o.context.async_fd()]).into_iter().flatten()
    }

    /// The device's name, for display.
    pub fn name(&self) -> &str {
        self.open.as_ref().map_or("", |open| open.context.name())
    }
}

/// The completion vector of the `nth` user of a device, if the first has `wanted`, or the last of the `there` vectors.
fn vector(wanted: u32, nth: usize, there: u32) -> u32 {
    let there = there.max(1);
    (wanted.min(there - 1) + num::small(nth % there as usize)) % there
}

/// Number of queue pairs that completion queue `at` is for.
fn room_of(at: usize) -> usize {
    // Five doublings are enough; more would shift the number away.
    (QPS_PER_CQ.start() << at.min(5)).min(*QPS_PER_CQ.end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_its_vector_as_far_as_there_are_so_many() {
        let of = |wanted, there| [0, 1, 2, 3].map(|nth| vector(wanted, nth, there));
        assert_eq!(of(0, 8), [0, 1, 2, 3]);
        assert_eq!(of(6, 8), [6, 7, 0, 1]);
        assert_eq!(of(1, 2), [1, 0, 1, 0]);
        assert_eq!((of(1023, 2), of(5, 0)), ([1, 0, 1, 0], [0; 4]));
    }

    #[test]
    fn completion_queues_grow_and_stay_bounded() {
        let rooms: Vec<usize> = (0..7).map(room_of).collect();
        assert_eq!(rooms, [8, 16, 32, 64, 128, 128, 128]);
        assert_eq!([room_of(63), room_of(64), room_of(usize::MAX)], [128; 3]);
    }
}
