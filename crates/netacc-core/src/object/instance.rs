//! Epoll instances and the descriptors that are registered with them.

use crate::object::name::Name;
use crate::object::reference::Ref;
use crate::object::socket::Socket;
use crate::object::subscription::Subscription;
use crate::wait::spin::Spin;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use netacc_sys::Lock;
use netacc_sys::mem::Zeroed;
use netacc_sys::slab::Pooled;

/// Guards every list of registrations and subscriptions.
pub(crate) static STRUCTURE: Lock = Lock::new();

netacc_sys::flags! { RegFlag:
    /// [`Registration::queue`]: in the ready queue.
    pub(crate) const QUEUED;
    /// EPOLLONESHOT has fired.
    pub(crate) const DISABLED;
    /// Removed while queued: released when it comes out of the queue.
    pub(crate) const GONE;
    /// To be reported at the next look whatever the marks say: it was just added or changed.
    pub(crate) const FRESH;
    /// [`Registration::flags`]: the application's own event is in the kernel's set.
    pub(crate) const KERNEL;
    /// Hints come by a subscription.
    pub(crate) const SUBSCRIBED;
    /// No subscription could be had: looked at in every round.
    pub(crate) const POLLED;
    /// The connection's peer liveness socket is in the kernel's set.
    pub(crate) const PEER_LIVENESS_WATCHED;
    /// The connection's liveness socket is in the kernel's set: hints come by it.
    pub(crate) const LIVENESS_WATCHED;
    /// The kernel socket with a promoted connection's first bytes is in the kernel's set.
    pub(crate) const OLD_SUBFLOW_WATCHED;
    /// The kernel socket that a connection moves to is in the kernel's set.
    pub(crate) const ON_KERNEL;
    /// The application's own event is in its own set, though ours is another one.
    pub(crate) const PROGRAMS;
    /// A listener that other instances hear as well: counted in [`Epoll::listened`].
    pub(crate) const LISTENED;
    /// What came to the connection's liveness socket is in the kernel's set.
    pub(crate) const ACCEPTED;
}

/// One descriptor registered with one epoll instance.
#[derive(Debug)]
#[repr(align(64))]
pub struct Registration {
    pub(crate) next_free: AtomicPtr<Registration>,
    pub(crate) name: Name,
    pub(crate) epoll: AtomicPtr<Epoll>,
    pub(crate) sock: AtomicPtr<Socket>,
    /// A nested epoll instance instead of a socket.
    pub(crate) child: AtomicPtr<Epoll>,
    pub(crate) fd: AtomicI32,
    pub(crate) events: AtomicU32,
    pub(crate) data: AtomicU64,
    pub(crate) flags: AtomicU32,
    /// Bits that concern the ready queue. Written under the instance's lock only, so without locked instructions.
    pub(crate) queue: AtomicU32,
    /// The next registration of the same socket.
    pub(crate) next_sock: AtomicPtr<Registration>,
    /// The next registration with the same instance.
    pub(crate) next_all: AtomicPtr<Registration>,
    /// The registration before this one, so that it leaves the list without a walk; null for the first.
    pub(crate) prev_all: AtomicPtr<Registration>,
    pub(crate) next_ready: AtomicPtr<Registration>,
    /// Another number of the same socket with the same instance, which hears by the same subscription. Under the instance's
    /// lock.
    pub(crate) alias: AtomicPtr<Registration>,
    /// What was known at the last report, for edges: `EdgeSeq`, or the news of a nested
    /// instance.
    pub(crate) seen: [AtomicU64; 2],
}

impl Registration {
    /// Bits of `queue`. Under the instance's lock, as for [`Registration::set_queue_bits`] and [`Registration::unmark`].
    pub(crate) fn queue(&self) -> u32 {
        self.queue.load(Ordering::Relaxed)
    }

    /// Sets bits of `queue` and returns what it was.
    pub(crate) fn set_queue_bits(&self, bits: u32) -> u32 {
        let old = self.queue();
        self.queue.store(old | bits, Ordering::Relaxed);
        old
    }

    /// Clears bits of `queue` and returns what it was.
    pub(crate) fn unmark(&self, bits: u32) -> u32 {
        let old = self.queue();
        self.queue.store(old & !bits, Ordering::Relaxed);
        old
    }
}

/// An epoll instance.
#[derive(Debug)]
#[repr(align(64))]
pub struct Epoll {
    pub(crate) next_free: AtomicPtr<Epoll>,
    pub(crate) name: Name,
    pub(crate) generation: AtomicU32,
    pub(crate) refs: AtomicU32,
    pub(crate) lock: Lock,
    pub(crate) fd: AtomicI32,
    /// Number of registrations that need us; 0: every call passes through. Written under `STRUCTURE`.
    pub(crate) ours: AtomicU32,
    pub(crate) registrations: AtomicPtr<Registration>,
    pub(crate) ready_head: AtomicPtr<Registration>,
    pub(crate) ready_tail: AtomicPtr<Registration>,
    pub(crate) ready_len: AtomicU32,
    pub(crate) watches: AtomicPtr<Subscription>,
    pub(crate) active: AtomicPtr<Subscription>,
    /// Number of registrations with POLLED, and of nested instances.
    pub(crate) polled: AtomicU32,
    /// How many of them are woken by a liveness socket.
    pub(crate) based: AtomicU32,
    /// How many of them are listeners: a sleep is registered with each.
    pub(crate) listened: AtomicU32,
    pub(crate) nested: AtomicU32,
    /// Set once it was registered in another instance: what it hears is counted for that one.
    pub(crate) inner: AtomicU32,
    pub(crate) sleepers: AtomicU32,
    /// A [`crate::epoll::kernel_set::Usage`].
    pub(crate) usage: AtomicU32,
    /// The kernel's set of what is ours (descriptor + 1), if that is not the application's.
    pub(crate) own: AtomicI32,
    /// Set while threads of the parent may sleep in it that slept there at the fork.
    pub(crate) others: AtomicU32,
    /// Waker for changes by other threads (descriptor + 1).
    pub(crate) kick: AtomicI32,
    pub(crate) last_kernel: AtomicU64,
    /// When its turn began (ticks), and its place among the process's loops; see `epoll::fairness`.
    pub(crate) slice_start: AtomicU64,
    pub(crate) loop_index: AtomicU32,
    /// Set when accelerated connections filled the application's array while the kernel's set was due to be looked at.
    pub(crate) kernel_first: AtomicU32,
    pub(crate) peer_cpu: AtomicU32,
    pub(crate) spin: Spin,
    /// Foreign events taken from the kernel while only looking whether there are any.
    pub(crate) stash: [AtomicU64; 3 * STASH],
    pub(crate) stash_len: AtomicU32,
    /// Set when one of the stashed events is of a connection that may be promoted.
    pub(crate) stash_queueable: AtomicU32,
    /// Set when foreign descriptors were found ready when the kernel's set was last only looked at.
    pub(crate) foreign: AtomicU32,
    /// Set when a foreign descriptor is registered by edges or one-shot: what is taken from the kernel while only
    /// looking must be kept, since the kernel will not say it again.
    pub(crate) edges: AtomicU32,
    /// Set when a look found connections that must go elsewhere.
    pub(crate) switch_due: AtomicU32,
    /// When ([`netacc_sys::time::now`]) a look may find bytes that a peer holds back until then; 0: none are known of.
    pub(crate) held_until: AtomicU64,
    /// Counts what would make the kernel wake an instance around this one: an edge there.
    pub(crate) news: AtomicU32,
}

/// Number of events that can be stashed.
pub(crate) const STASH: usize = 8;

#[allow(unsafe_code)]
mod zeroed {
    // SAFETY: only atomics and locks; zero is a fresh object.
    unsafe impl super::Zeroed for super::Epoll {}
    // SAFETY: only atomics; zero is a fresh object.
    unsafe impl super::Zeroed for super::Registration {}
}

impl Pooled for Epoll {
    fn next_free(&self) -> &AtomicPtr<Epoll> {
        &self.next_free
    }
}

impl Pooled for Registration {
    fn next_free(&self) -> &AtomicPtr<Registration> {
        &self.next_free
    }
}

impl Epoll {
    /// The kernel's descriptor of the instance.
    pub fn fd(&self) -> i32 {
        self.fd.load(Ordering::Relaxed)
    }

    /// Whether nothing of ours is or ever was in it, so that every call passes through. A kernel's set that once held
    /// descriptors of ours may do so still.
    pub fn is_plain(&self) -> bool {
        self.kick.load(Ordering::Acquire) == 0
            && self.ours.load(Ordering::Acquire) == 0
            && self.stash_len.load(Ordering::Relaxed) == 0
    }

    /// Its current generation.
    pub fn generation(&self) -> u16 {
        self.generation.load(Ordering::Relaxed) as u16
    }

    /// Counts one more descriptor that refers to it.
    pub fn add_ref(&self) {
        self.refs.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts `by` more registrations that need us. Under `STRUCTURE`, so a locked instruction is not needed.
    pub(crate) fn add_ours(&self, by: i32) {
        // Release: a thread that sees that the instance needs us sees the registration.
        self.ours.store(self.ours.load(Ordering::Relaxed).wrapping_add_signed(by), Ordering::Release);
    }

    /// Whether it is registered in another instance.
    #[inline]
    pub(crate) fn is_inner(&self) -> bool {
        self.inner.load(Ordering::Relaxed) != 0
    }

    /// Notes that the kernel would wake the instances around this one. Under the instance's lock.
    pub(crate) fn notify_outer(&self) {
        self.news.store(self.news.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }
}

impl Ref<Epoll> {
    /// Whether the object is still the one that was looked up.
    pub fn valid(&self) -> bool {
        self.obj.generation() == self.generation
    }
}
