//! Epoll instances and the descriptors that are registered with them.

use crate::object::name::Name;
use crate::object::reference::Ref;
use crate::object::socket::Socket;
use crate::object::source::Source;
use crate::object::subscription::Subscription;
use crate::wait::spin::Spin;
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use netacc_sys::mem::Zeroed;
use netacc_sys::slab::Pooled;
use netacc_sys::{AtomicRef, Lock, Locked, SharedCell, lock_rank};
use netacc_transport::rdma::engine::progress::ProgressScope;

/// Guards every list of registrations and subscriptions.
pub(crate) static STRUCTURE: Lock<{ lock_rank::STRUCTURE }> = Lock::new();

netacc_sys::flags! { RegFlag:
    /// Bit of [`Registration::queue`]: the registration is in the ready queue.
    pub(crate) const QUEUED;
    /// Bit of [`Registration::queue`]: EPOLLONESHOT has fired.
    pub(crate) const DISABLED;
    /// Bit of [`Registration::queue`]: the registration was removed while queued, and is released when it is taken out
    /// of the queue.
    pub(crate) const GONE;
    /// Bit of [`Registration::queue`]: the registration was just added or changed, so it is reported at the next look
    /// whatever the edge counters say.
    pub(crate) const FRESH;
    /// Bit of [`Registration::flags`]: the connection's peer liveness socket is in the kernel's set.
    pub(crate) const PEER_LIVENESS_WATCHED;
    /// Bit of [`Registration::flags`]: the connection's old subflow is in the kernel's set.
    pub(crate) const OLD_SUBFLOW_WATCHED;
    /// Bit of [`Registration::flags`]: the kernel socket that the connection is switching to is in the kernel's set.
    pub(crate) const ON_KERNEL;
    /// Bit of [`Registration::flags`]: the application's own event is in its own set, though ours is another one.
    pub(crate) const PROGRAMS;
    /// Bit of [`Registration::flags`]: the socket that was accepted at the connection's liveness socket is in the
    /// kernel's set.
    pub(crate) const ACCEPTED;
}

/// One descriptor registered with one epoll instance.
#[derive(Debug)]
#[repr(align(64))]
pub struct Registration {
    pub(crate) next_free: AtomicRef<Registration>,
    pub(crate) name: Name,
    pub(crate) epoll: AtomicRef<Epoll>,
    pub(crate) sock: AtomicRef<Socket>,
    /// The nested epoll instance, if it is one instead of a socket.
    pub(crate) child: AtomicRef<Epoll>,
    pub(crate) fd: SharedCell<i32>,
    pub(crate) events: SharedCell<u32>,
    pub(crate) data: SharedCell<u64>,
    /// The number of its [`Source`]. Written under `STRUCTURE`.
    source: SharedCell<u32>,
    /// Which further sockets of its connection are in the kernel's set.
    pub(crate) flags: AtomicU32,
    /// Bits that concern the ready queue. Written under the instance's lock only, so without locked instructions.
    pub(crate) queue: SharedCell<u32>,
    /// The next registration of the same socket.
    pub(crate) next_sock: AtomicRef<Registration>,
    /// The next registration with the same instance.
    pub(crate) next_all: AtomicRef<Registration>,
    /// The registration before this one, so that it leaves the list without a walk; null for the first.
    pub(crate) prev_all: AtomicRef<Registration>,
    pub(crate) next_ready: AtomicRef<Registration>,
    /// A registration of the same socket with the same instance under another number, which shares the subscription.
    /// Under the instance's lock.
    pub(crate) alias: AtomicRef<Registration>,
    /// State at the last report, for edge-triggered events: `EdgeSeq`, or the `news` of a nested instance.
    pub(crate) seen: [SharedCell<u64>; 2],
}

impl Registration {
    /// Where its events come from. A thread without `STRUCTURE` may see the previous source still.
    #[inline]
    pub(crate) fn source(&self) -> Source {
        Source::decode(self.source.get())
    }

    /// Changes where its events come from, and what the instance counts it as. Under `STRUCTURE`.
    pub(crate) fn set_source(&self, e: &Epoll, to: Source) {
        let from = self.source();
        debug_assert!(to.may_follow(from), "epoll {}: {from:?} does not become {to:?}", e.fd());
        self.source.set(to as u32);
        let (was, is) = (from.counted(), to.counted());
        e.add_ours(is.ours as i32 - was.ours as i32);
        // Only written under `STRUCTURE`, so no locked instruction is needed. Relaxed: a thread that is about to sleep
        // is woken by the caller.
        for (cell, was, is) in [
            (&e.polled, was.polled, is.polled),
            (&e.with_liveness, was.with_liveness, is.with_liveness),
            (&e.listened, was.listened, is.listened),
        ] {
            cell.add(is.wrapping_sub(was));
        }
        netacc_log::log!(Trace, "epoll {}: fd {}: {from:?} becomes {to:?}", e.fd(), self.fd.get());
    }

    /// Begins with a registration that listens to nothing.
    pub(crate) fn begin(&self) {
        self.source.set(Source::Nothing as u32);
        self.flags.store(0, Ordering::Relaxed);
        self.queue.set(0);
        self.sock.set(None);
        self.child.set(None);
        self.alias.set(None);
    }

    /// The bits of `queue`. This and the two functions that change them are called under the instance's lock.
    pub(crate) fn queue(&self) -> u32 {
        self.queue.get()
    }

    /// Sets bits of `queue` and returns its previous value.
    pub(crate) fn set_queue_bits(&self, bits: u32) -> u32 {
        let old = self.queue();
        self.queue.set(old | bits);
        old
    }

    /// Clears bits of `queue` and returns its previous value.
    pub(crate) fn unmark(&self, bits: u32) -> u32 {
        let old = self.queue();
        self.queue.set(old & !bits);
        old
    }
}

/// The registrations of a socket, each of which may be removed when it is returned. Under `STRUCTURE`.
pub(crate) fn registered(s: &Socket) -> impl Iterator<Item = &'static Registration> + use<> {
    s.registrations.list(|reg| &reg.next_sock)
}

/// An epoll instance.
#[derive(Debug)]
#[repr(align(64))]
pub struct Epoll {
    pub(crate) next_free: AtomicRef<Epoll>,
    pub(crate) name: Name,
    pub(crate) generation: AtomicU32,
    pub(crate) refs: AtomicU32,
    pub(crate) lock: Lock<{ lock_rank::INSTANCE }>,
    pub(crate) fd: SharedCell<i32>,
    /// Number of registrations that the kernel cannot serve alone; 0: every call passes through. Written under
    /// `STRUCTURE`.
    pub(crate) ours: AtomicU32,
    pub(crate) registrations: AtomicRef<Registration>,
    pub(crate) ready_head: AtomicRef<Registration>,
    pub(crate) ready_tail: AtomicRef<Registration>,
    pub(crate) ready_len: SharedCell<u32>,
    pub(crate) watches: AtomicRef<Subscription>,
    pub(crate) active: AtomicRef<Subscription>,
    /// Number of registrations that are looked at in every round, apart from nested instances.
    pub(crate) polled: SharedCell<u32>,
    /// Number of registrations that are woken by a liveness socket.
    pub(crate) with_liveness: SharedCell<u32>,
    /// Number of registrations of listeners whose queues a sleeping thread registers with.
    pub(crate) listened: SharedCell<u32>,
    /// Number of instances that are registered in it. Written under `STRUCTURE`.
    pub(crate) nested: SharedCell<u32>,
    /// Number of connections over RDMA that report by its subscriptions. Written under `STRUCTURE`.
    pub(crate) remote: SharedCell<u32>,
    /// Set once the instance was registered in another one: its events are counted in `news` for that one.
    pub(crate) inner: SharedCell<bool>,
    pub(crate) sleepers: AtomicU32,
    /// Encoded [`crate::epoll::kernel_set::Usage`].
    pub(crate) usage: AtomicU32,
    /// The kernel's epoll set for our own descriptors (descriptor + 1), if that is not the application's.
    pub(crate) own: AtomicI32,
    /// Set while threads of the parent that slept in the kernel's set at the fork may still do so.
    pub(crate) others: AtomicU32,
    /// Eventfd that wakes threads asleep in the instance for changes by other threads (descriptor + 1).
    pub(crate) kick: AtomicI32,
    pub(crate) last_kernel: SharedCell<u64>,
    /// Start of its time slice (ticks) with its index among the process's event loops; see `epoll::fairness`.
    pub(crate) slice_start: SharedCell<u64>,
    pub(crate) loop_index: SharedCell<u32>,
    /// Set when accelerated connections filled the application's array although the kernel's set was due.
    pub(crate) kernel_first: SharedCell<bool>,
    pub(crate) peer_cpu: SharedCell<u32>,
    pub(crate) spin: Spin,
    /// Foreign events that were taken from the kernel while only checking whether there are any.
    pub(crate) stash: Locked<{ lock_rank::LEAF }, Stash>,
    /// Number of stashed events. Written under the lock of `stash`, and read without it to learn whether there are any.
    pub(crate) stash_len: SharedCell<u32>,
    /// Set when the last check of the kernel's set, which took no events, found foreign descriptors ready.
    pub(crate) foreign: SharedCell<bool>,
    /// Set when a foreign descriptor is registered edge-triggered or one-shot: an event that is taken from the kernel
    /// during a check must be stashed, since the kernel will not report it again.
    pub(crate) edges: SharedCell<bool>,
    /// Set when a look found connections that have to switch their path.
    pub(crate) switch_due: SharedCell<bool>,
    /// Time ([`netacc_sys::time::now`]) until which a peer holds bytes back (cork), after which a look may find them;
    /// 0: no bytes are known to be held back.
    pub(crate) held_until: SharedCell<u64>,
    /// Counter of events for which the kernel would wake an instance that this one is registered in.
    pub(crate) news: SharedCell<u32>,
}

/// Number of events that can be stashed.
pub(crate) const STASH: usize = 8;

/// The events that are stashed; there are [`Epoll::stash_len`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stash {
    pub(crate) events: [Stashed; STASH],
    /// Whether one of them belongs to a candidate.
    pub(crate) queueable: bool,
}

/// A stashed event.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stashed {
    pub(crate) events: u32,
    /// The application's value.
    pub(crate) data: u64,
    /// The registration's value in the kernel's set.
    pub(crate) in_kernel: u64,
}

#[allow(unsafe_code)]
mod zeroed {
    // SAFETY: the type consists of atomics, locks and the plain values of a lock, for which zero is valid and a fresh object.
    unsafe impl super::Zeroed for super::Epoll {}
    // SAFETY: the type consists of atomics, for which zero is valid and a fresh object.
    unsafe impl super::Zeroed for super::Registration {}
}

impl Pooled for Epoll {
    fn next_free(&self) -> &AtomicRef<Epoll> {
        &self.next_free
    }
}

impl Pooled for Registration {
    fn next_free(&self) -> &AtomicRef<Registration> {
        &self.next_free
    }
}

impl Epoll {
    /// Its registrations, each of which may be removed when it is returned. Under `STRUCTURE` or its lock.
    pub(crate) fn registered(&self) -> impl Iterator<Item = &'static Registration> + use<> {
        self.registrations.list(|reg| &reg.next_all)
    }

    /// The kernel's descriptor of the instance.
    pub fn fd(&self) -> i32 {
        self.fd.get()
    }

    /// Whether no accelerated descriptor is or ever was registered, so that every call passes through. A kernel's set
    /// that once held descriptors of ours may still do so.
    pub fn is_plain(&self) -> bool {
        self.kick.load(Ordering::Acquire) == 0 && self.ours.load(Ordering::Acquire) == 0 && self.stash_len.get() == 0
    }

    /// The object's current generation.
    pub fn generation(&self) -> u16 {
        self.generation.load(Ordering::Relaxed) as u16
    }

    /// Counts one more descriptor that refers to the instance.
    pub fn add_ref(&self) {
        self.refs.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds `by` to the number of registrations that the kernel cannot serve alone. Under `STRUCTURE`, so no locked
    /// instruction is needed.
    pub(crate) fn add_ours(&self, by: i32) {
        // Release: a thread that sees the new number sees the registration.
        self.ours.store(self.ours.load(Ordering::Relaxed).wrapping_add_signed(by), Ordering::Release);
    }

    /// Whose progress a thread makes that sleeps in the instance. A thread whose instance has listeners alone, as one that
    /// hands connections to others, gives way to those.
    pub(crate) fn scope(&self) -> ProgressScope {
        // These are hints, with which a thread takes the poller token that another one should have, or leaves it.
        if [&self.remote, &self.polled, &self.nested].iter().any(|count| count.get() != 0) {
            ProgressScope::All
        } else {
            ProgressScope::Bystander
        }
    }

    /// Whether the instance is registered in another one.
    #[inline]
    pub(crate) fn is_inner(&self) -> bool {
        self.inner.get()
    }

    /// Notes that the kernel would wake the instances in which this one is registered. Under the instance's lock.
    pub(crate) fn notify_outer(&self) {
        self.news.add(1);
    }
}

impl Ref<Epoll> {
    /// Whether the object still is the instance that was looked up.
    pub fn valid(&self) -> bool {
        self.obj.generation() == self.generation
    }
}
