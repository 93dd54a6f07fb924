//! A link, which joins a client process and a server process, however many connections they have.

use crate::shm::blocks::Blocks;
use crate::shm::control_socket::ControlSocket;
use crate::shm::endpoint::ShmEndpoint;
use crate::shm::guard::dismiss_reserved;
use crate::shm::last_look::LastLook;
use crate::shm::link_wakers::{IdleWakers, TokenPair, WAKERS, WakerPair, Wakers};
use crate::shm::mapping::Mapped;
use crate::shm::named_waker::Sender;
use crate::shm::peer_listener::PeerListener;
use crate::shm::peer_process::PeerProcess;
use crate::shm::queue::ConnectQueue;
use crate::shm::segment::{READY_SETS, Segment};
use crate::shm::server_state::ServerState;
use crate::shm::side::Side;
use crate::shm::slots::Slots;
use crate::shm::stats::StatsPlace;
use crate::shm::users::Trust;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use netacc_ring::SLOTS;
use netacc_stats::{Counter, page};
use netacc_sys::errno::{Errno, Result};
use netacc_sys::mem::Zeroed;
use netacc_sys::slab::{Pooled, Slab};
use netacc_sys::{AtomicRef, Lock, lock_rank, reserved_fds};

/// Value of [`Link::lost`]: the peer has ended and left no connection open.
pub(crate) const ENDED: u32 = 1;
/// Value of [`Link::lost`]: the peer has died with connections open, or broken the protocol. The link is counted as
/// lost.
pub(crate) const LOST: u32 = 2;

/// One side of a link. Objects are recycled, never freed; `refs` counts the users that may access the segment: the
/// owner (pool or listener), each open endpoint, and each epoll instance that watches the link.
///
/// The fields that [`Link::inherit`] writes lie together, so that the child of a fork copies one page for each of its
/// parent's links.
#[derive(Debug)]
#[repr(C, align(4096))]
pub struct Link {
    next_free: AtomicRef<Link>,
    refs: AtomicU32,
    pub(crate) lock: Lock<{ lock_rank::LEAF }>,
    /// The control socket.
    pub control: ControlSocket,
    pub(super) seg: AtomicPtr<u8>,
    /// The addresses of the segment's large windows.
    blocks: AtomicPtr<Blocks>,
    /// The other side, if it is in this process as well and uses the same mapping ([`Link::pair`]). Under the lock of
    /// [`super::remote`].
    pub(super) mate: AtomicRef<Link>,
    /// Inode number of the segment's memfd ([`Mapped::file`]).
    file: AtomicU64,
    server: AtomicU32,
    /// Set when the peer is gone: [`ENDED`] or [`LOST`].
    pub(crate) lost: AtomicU32,
    /// The process at the other end.
    pub peer: PeerProcess,
    id: AtomicU32,
    /// The link's entry on the stats page.
    pub(super) stats: StatsPlace,
    /// Set in the child of a fork: the link is the parent's, and only its segment is ours to use.
    pub inherited: AtomicU32,
    /// The socket from which the peer's wakers are rung that are sockets.
    pub(super) sender: Sender,
    /// Our thread wakers that no thread uses; under `lock`.
    pub(super) idle_wakers: IdleWakers,
    /// Our ready sets in use; under `lock`.
    pub(super) ready_sets: AtomicU64,
    /// The object that this link belongs to, set by that owner.
    pub owner: AtomicUsize,
    /// The next link in the owner's list.
    pub next: AtomicRef<Link>,
    /// Time ([`netacc_sys::cpu::ticks`]) at which the owner last asked the kernel whether the peer lives (client side,
    /// under the owner's lock).
    pub checked: AtomicU64,
    /// When a call that does not wait has last read the control socket.
    pub(super) last_look: LastLook,
    /// What this side knows of the connect queue.
    pub queue: ConnectQueue,
    /// Number of references of threads that sleep on the listener ([`crate::WaitSet::hold`]).
    pub(super) asleep: AtomicU32,
    /// The listener at the other end (client side).
    pub listener: PeerListener,
    /// Number + 1 of the RDMA engine of this process that has the server's side, if the server is on another host; 0:
    /// it is on this host (client side).
    pub remote: AtomicU32,
    /// Set when the peer has passed descriptors for connections: some may belong to a connection that is not open when
    /// the link ends.
    pub(super) passed: AtomicU32,
    /// 1: the link is in the list of all links that the process ever had, in which `next_listed` is the next one; see
    /// [`super::registry`].
    pub(super) listed: AtomicU32,
    pub(super) next_listed: AtomicRef<Link>,
    /// Endpoints with a smaller index may have been used ([`Link::endpoint`]). The number stays when the link's memory
    /// is used again.
    used: AtomicUsize,
    /// The wakers of ready sets, which every link has. They lie apart from those of threads, so that a link with one
    /// connection touches few pages.
    ready_set_wakers: [WakerPair; READY_SETS],
    /// The endpoints of all slots. The first ones lie on one page with all of the above; the client's side uses one
    /// page more, for `slots`.
    eps: [ShmEndpoint; SLOTS],
    /// Slot allocation (client side).
    pub slots: Slots,
    thread_wakers: [WakerPair; WAKERS - READY_SETS],
    /// They come last, since links between processes that trust each other touch none of them.
    waker_tokens: [TokenPair; WAKERS],
}

#[allow(unsafe_code)]
mod zeroed {
    // SAFETY: all fields are atomics, locks and structs of them, for which zero means "unused".
    unsafe impl super::Zeroed for super::Link {}
}

impl Pooled for Link {
    fn next_free(&self) -> &AtomicRef<Link> {
        &self.next_free
    }
}

static LINKS: Slab<Link> = Slab::new();
static NEXT_ID: AtomicU32 = AtomicU32::new(1);

/// A number for people to read, which no other link or queue pair of this process has.
pub(crate) fn next_id() -> u32 {
    NEXT_ID.fetch_add(1, Ordering::Relaxed)
}

impl Link {
    /// Makes a link from a mapped segment and a connected control socket (a reserved descriptor). `ENOMEM`: there is no
    /// memory for it, and the socket is closed.
    pub fn new(side: Side, mapped: Mapped, control: i32, trust: Trust, peer_pid: u32) -> Result<&'static Link> {
        let link = LINKS.alloc().ok_or(Errno::NOMEM).inspect_err(|_| dismiss_reserved(control))?;
        link.blocks.store(core::ptr::from_ref(mapped.seg.blocks).cast_mut(), Ordering::Relaxed);
        link.seg.store(mapped.seg.as_ptr(), Ordering::Relaxed);
        link.file.store(mapped.file, Ordering::Relaxed);
        link.control.begin(control);
        link.server.store((side == Side::Server).into(), Ordering::Relaxed);
        link.lost.store(0, Ordering::Relaxed);
        link.asleep.store(0, Ordering::Relaxed);
        link.peer.begin(control, peer_pid, trust);
        link.id.store(next_id(), Ordering::Relaxed);
        link.idle_wakers.begin();
        // Number 0 means "no ready set" in shared memory.
        link.ready_sets.store(1, Ordering::Relaxed);
        link.checked.store(0, Ordering::Relaxed);
        link.queue.begin();
        link.listener.begin();
        link.passed.store(0, Ordering::Relaxed);
        link.inherited.store(0, Ordering::Relaxed);
        link.remote.store(0, Ordering::Relaxed);
        link.next.set(None);
        link.mate.set(None);
        if side == Side::Client {
            link.slots.reset();
        }
        link.endpoints().for_each(ShmEndpoint::reset);
        // Release: a thread that finds a user ([`Link::hold_if_used`]) sees the fields above.
        link.refs.store(1, Ordering::Release);
        link.list();
        link.publish_trust();
        if trust.is_given() {
            // The peer may fork at a moment at which the program has used up all numbers, and passes a descriptor then.
            reserved_fds::hold_spare();
        }
        page().count(Counter::LinksOpened);
        link.stats.open(link);
        Ok(link)
    }

    /// The side that we are.
    #[inline]
    pub fn side(&self) -> Side {
        if self.server.load(Ordering::Relaxed) != 0 { Side::Server } else { Side::Client }
    }

    /// Whether `other` is the other side of this link, in the same process. Only what the kernel says counts here: no
    /// peer can pass for another one.
    pub fn is_other_side_of(&self, other: &Link) -> bool {
        let (file, seg) = (self.file.load(Ordering::Relaxed), self.seg.load(Ordering::Relaxed));
        let same_file = file != 0 && file == other.file.load(Ordering::Relaxed);
        let same_mapping = !seg.is_null() && seg == other.seg.load(Ordering::Relaxed);
        (same_file || same_mapping) && self.side() != other.side()
    }

    /// A number for people to read, unique in this process.
    pub fn id(&self) -> u32 {
        self.id.load(Ordering::Relaxed)
    }

    /// The peer's process id as the kernel or the peer told it; for people to read only.
    pub fn peer_pid(&self) -> u32 {
        match self.segment() {
            Some(s) if self.side() == Side::Client => {
                let told = s.header().server_pid.load(Ordering::Relaxed);
                if told != 0 { told } else { self.peer.pid() }
            }
            _ => self.peer.pid(),
        }
    }

    /// The mapped segment. The caller holds a reference to the link, or believes nothing of what it reads there before it has
    /// compared the connection's generation.
    #[inline]
    #[allow(unsafe_code)]
    pub fn segment(&self) -> Option<Segment> {
        // SAFETY: `new` has stored both for one segment. `put` does not run while the caller has its reference; the address
        // of a caller that only looks, and has none, stays that of readable and writable memory.
        unsafe { Segment::from_ptrs(self.seg.load(Ordering::Relaxed), self.blocks.load(Ordering::Relaxed)) }
    }

    /// The endpoint of a slot.
    #[inline]
    pub fn endpoint(&'static self, slot: usize) -> Option<&'static ShmEndpoint> {
        let ep = self.eps.get(slot)?;
        if !ep.side.is_attached() {
            self.attach(ep, slot);
        }
        Some(ep)
    }

    /// Attaches an endpoint at its first use, and not when the link is made: that would touch all pages of the array,
    /// which would be most of the cost of a first connect.
    #[cold]
    fn attach(&'static self, ep: &ShmEndpoint, slot: usize) {
        // The count comes first, so that every endpoint in use is counted. SeqCst: a thread that ends the link marks it
        // and then loads the count; a thread that uses the endpoint checks for that mark after this.
        self.used.fetch_max(slot + 1, Ordering::SeqCst);
        ep.side.attach(self, slot);
    }

    /// All endpoints that have ever been used.
    pub fn endpoints(&'static self) -> impl Iterator<Item = &'static ShmEndpoint> {
        self.eps.iter().take(self.used.load(Ordering::SeqCst)).filter(|ep| ep.side.is_attached())
    }

    /// Whether the peer is gone (or broke the protocol).
    #[inline]
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire) != 0
    }

    /// Whether the listener at the other end takes new connections.
    pub fn accepting(&self) -> bool {
        let open = self.segment().is_some_and(|s| matches!(s.server(), ServerState::Pending | ServerState::Open));
        open && !self.is_lost() && self.inherited.load(Ordering::Relaxed) == 0
    }

    /// Whether the listener lives on in other processes only.
    pub fn is_withdrawn(&self) -> bool {
        self.segment().is_some_and(|s| matches!(s.server(), ServerState::Withdrawn | ServerState::HandedOn))
    }

    /// Client: whether the link ended before the server had taken it up, as when the server refuses it.
    pub fn was_refused(&self) -> bool {
        let pending = |s: Segment| s.server() == ServerState::Pending;
        self.is_lost() && self.segment().is_some_and(pending)
    }

    /// Server: whether no connection is open here, and none waits to be taken. Each connection has a reference to the
    /// link, and so has each epoll instance that watches it, which also has a ready set, and each thread that sleeps on
    /// the listener.
    pub fn is_idle(&self) -> bool {
        // The bit of ready set 0, which no instance has, stands for the listener's own reference.
        let explained = || self.ready_sets.load(Ordering::Acquire).count_ones() + self.asleep.load(Ordering::Acquire);
        // A user that comes is counted in `refs` before it is explained, and one that goes is no longer explained before it
        // is no longer counted. So what explains users is loaded before and after the count, and the smaller number is
        // valid: with Acquire this thread sees the count of a user that it sees explained. (A user that goes and another
        // one that comes between these loads would be missed; the listener's lock excludes that for its sleepers.)
        let before = explained();
        let users = self.refs.load(Ordering::Acquire);
        users <= before.min(explained()) && self.segment().is_none_or(|s| s.queued() == 0)
    }

    /// Server: ends a link on which nothing is open. The client and all threads that wait for the link here are
    /// notified at once.
    pub fn dismiss(&'static self) {
        self.lose();
        let _ = netacc_sys::raw::shutdown(self.control.fd(), libc::SHUT_RDWR);
    }

    /// Whether the server has not taken the link up yet, and is this process itself.
    pub fn waits_for_ourselves(&self) -> bool {
        let pending = |s: Segment| s.server() == ServerState::Pending;
        self.segment().is_some_and(pending) && self.peer.pid() == netacc_sys::raw::getpid()
    }

    /// Counts one more user.
    pub fn hold(&self) {
        self.refs.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts one more user, for a thread that holds nothing that keeps the link; false if the link has no user.
    pub fn hold_if_used(&self) -> bool {
        self.refs.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |n| (n != 0).then(|| n + 1)).is_ok()
    }

    /// Counts one user less; the last one unmaps and recycles.
    pub fn put(&'static self) {
        // AcqRel: everything that other users did with the segment comes before the unmapping.
        if self.refs.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        // This comes first: afterwards the other side hands over no more wakers.
        let shared = self.part();
        self.close_descriptors();
        self.peer.close();
        if self.passed.load(Ordering::Relaxed) != 0 {
            self.endpoints().for_each(ShmEndpoint::drop_passed);
        }
        self.slots.close_ports();
        let seg = self.segment();
        self.seg.store(core::ptr::null_mut(), Ordering::Relaxed);
        if let Some(seg) = seg.filter(|_| !shared) {
            #[allow(unsafe_code)]
            // SAFETY: the last reference is gone, so nothing here believes what it reads in the segment, and `part` has shown
            // that no other side uses this mapping.
            unsafe {
                seg.unmap();
            }
        }
        // The child of a fork does not count the end of its parent's links, which it has not opened.
        if self.lost.load(Ordering::Relaxed) != LOST && !self.is_inherited() {
            page().count(Counter::LinksClosed);
        }
        self.stats.close(self.id());
        LINKS.release(self);
    }

    /// Closes the control socket and all wakers: called for the last user, and in the child of a fork, which must not
    /// keep the parent's link alive.
    pub fn close_descriptors(&self) {
        self.control.close(self.peer.is_trusted());
        self.wakers().close();
        self.sender.close();
        self.idle_wakers.forget();
    }

    /// The wakers of both sides.
    #[inline]
    pub fn wakers(&self) -> Wakers<'_> {
        let (of_ready_sets, of_threads) = (&self.ready_set_wakers, &self.thread_wakers);
        Wakers { of_ready_sets, of_threads, tokens: &self.waker_tokens }
    }

    /// Calls `f` for the control socket and all wakers.
    pub fn descriptors(&self, f: impl FnMut(i32)) {
        [self.control.fd(), self.sender.fd()]
            .into_iter()
            .chain(self.wakers().descriptors())
            .filter(|fd| *fd >= 0)
            .for_each(f);
    }

    /// Whether this process has the link by a fork: the control socket and our wakers are the parent's.
    #[inline]
    pub fn is_inherited(&self) -> bool {
        self.inherited.load(Ordering::Relaxed) != 0
    }

    /// In the child of a fork: closes the control socket, since the peer would otherwise not notice the parent's end,
    /// and the wakers that only the parent may use. The peer's wakers stay open, since every sharer may ring them.
    pub fn inherit(&self) {
        if self.inherited.swap(1, Ordering::Relaxed) != 0 {
            return;
        }
        self.stats.forget();
        self.control.leave_to_parent();
        self.wakers().leave_to_parent();
        self.idle_wakers.forget();
    }

    /// In the child of a fork: drops what was passed for connections that are closed.
    pub fn drop_passed_for_closed(&'static self) {
        if self.passed.load(Ordering::Relaxed) != 0 {
            self.endpoints().filter(|ep| !ep.side.is_live()).for_each(ShmEndpoint::drop_passed);
        }
    }

    /// Ends the trust in the peer, which runs as another user from now on: its wakers are no longer written.
    pub(super) fn distrust(&self) {
        self.peer.distrust();
        self.publish_trust();
    }
}
