//! One side of one slot: its link and number, the generation and the state of its connection, and the words of the slot
//! in shared memory. All other parts of an endpoint are used together with it.

use crate::num;
use crate::shm::Link;
use crate::shm::machine::{Machine, Place};
use crate::shm::numbers::Users;
use crate::shm::segment::{Segment, Slot, WIPED};
use crate::shm::side::Side;
use crate::shm::side_machines::{Life, LifeEvent};
use crate::shm::side_state::{SideState, StateWord};
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering};
use netacc_ring::Area;
use netacc_sys::SharedCell;
use netacc_sys::errno::Errno;

/// The side of a slot that an endpoint is, and the state of the connection there.
#[derive(Debug)]
pub struct SlotSide {
    link: AtomicPtr<Link>,
    index: AtomicU32,
    pub(super) state: StateWord,
    /// The error (errno) that the next call reports; 0: none.
    pub(super) error: AtomicI32,
    /// The generation of the connection that is open here, or was open last.
    pub(super) generation: AtomicU32,
    /// Number + 1 of the RDMA engine that carries the connection, if the other program is on another host; 0: it is on
    /// this host. Stored when the connection begins, so that a wait touches no further cache line.
    pub(super) remote: AtomicU32,
    /// When the connection began ([`time::coarse`](netacc_sys::time::coarse)).
    pub(super) began: SharedCell<u64>,
    /// The threads that are using a number of the program's; see [`super::numbers`].
    pub(super) users: Users,
}

impl SlotSide {
    /// Sets the endpoint's link and slot, which never change. Several threads may do so at once in fresh memory: they
    /// store the same values.
    pub(crate) fn attach(&self, link: &'static Link, index: usize) {
        self.index.store(num::small(index), Ordering::Relaxed);
        // Release: a thread that sees the link sees the index.
        self.link.store(core::ptr::from_ref(link).cast_mut(), Ordering::Release);
    }

    #[inline]
    pub(crate) fn is_attached(&self) -> bool {
        !self.link.load(Ordering::Acquire).is_null()
    }

    /// The link this endpoint belongs to.
    #[inline]
    #[allow(unsafe_code)]
    pub fn link(&self) -> &'static Link {
        // SAFETY: `attach` stores the address before the endpoint is handed out, and links are never freed.
        unsafe { &*self.link.load(Ordering::Relaxed) }
    }

    /// The name of this side in log lines.
    pub(super) fn place(&self) -> Place {
        Place { link: self.link().id(), slot: self.index.load(Ordering::Relaxed) }
    }

    /// Applies an event to one of the state machines of this side. Returns the previous state.
    #[cold]
    pub(super) fn on<M: Machine>(&self, event: M::Event) -> SideState {
        self.state.on::<M>(self.place(), event)
    }

    /// The slot number.
    pub fn slot_index(&self) -> usize {
        self.index.load(Ordering::Relaxed) as usize
    }

    #[inline]
    pub(super) fn view(&self) -> Option<View> {
        let link = self.link();
        let seg = link.segment()?;
        let index = self.index.load(Ordering::Relaxed) as usize;
        Some(View { slot: seg.slot(index)?, seg, link, me: link.side(), index })
    }

    /// Whether a connection is open here.
    #[inline]
    pub fn is_live(&self) -> bool {
        self.state.look().is_live()
    }

    /// Whether descriptors that the peer passes for connection `generation` are kept: it is open here, or is about to
    /// begin (server), or its slot waits for the end of the server's processes (client; see
    /// [`super::Liveness::servers_gone`]).
    pub(super) fn expects(&self, generation: u32) -> bool {
        let Some(v) = self.view().filter(|_| generation != 0) else { return false };
        let expected = if self.is_live() {
            self.generation.load(Ordering::Relaxed) == generation
        } else {
            let open = &v.slot.open;
            open.generation.load(Ordering::Relaxed) == generation
                && open.server_done.load(Ordering::Acquire) & !WIPED != generation
                && (v.me == Side::Server || v.link.slots.is_closing(v.index))
        };
        if expected {
            // This is noted for an open connection, too, since another thread may be about to close it.
            v.link.passed.store(1, Ordering::Relaxed);
        }
        expected
    }

    /// Whether the windows of this slot are mapped, or could be mapped now: without them no connection can begin.
    pub fn has_windows(&self) -> bool {
        self.view().is_some_and(|v| v.seg.reach(v.index).is_ok())
    }

    /// Marks the connection as reset. The first thread to notice leaves the error for the next call that asks for it.
    pub(super) fn die(&self, e: Errno) {
        let before = self.on::<Life>(LifeEvent::Reset);
        if !before.is_dead() {
            // A connect that waited for room is answered by a reset before it is established.
            let e = if before.is_pending() && e == Errno::CONNRESET { Errno::CONNREFUSED } else { e };
            self.error.store(e.0, Ordering::Release);
        }
    }

    /// Whether a reset has been found, or caused, by a call here.
    pub fn is_dead(&self) -> bool {
        self.state.look().is_dead()
    }

    /// Time (ticks) of the peer's last event for us, by which events of several connections are ordered. The peer can
    /// store any value.
    #[inline]
    pub fn arrived(&self) -> u64 {
        self.view().map_or(0, |v| line!(v, producer, v.me.other()).when.load(Ordering::Relaxed))
    }

    /// Whether our stream was ended.
    pub fn ended(&self) -> bool {
        self.state.look().has_shut()
    }
}

/// The parts of an endpoint that an operation needs, looked up once.
pub(super) struct View {
    pub(super) slot: &'static Slot,
    pub(super) seg: Segment,
    pub(super) link: &'static Link,
    pub(super) me: Side,
    pub(super) index: usize,
}

impl View {
    /// The name of this side in log lines.
    pub(super) fn place(&self) -> Place {
        Place { link: self.link.id(), slot: num::small(self.index) }
    }

    pub(super) fn tx_area(&self) -> Option<Area> {
        self.seg.area(self.index, self.me)
    }

    pub(super) fn rx_area(&self) -> Option<Area> {
        self.seg.area(self.index, self.me.other())
    }
}
