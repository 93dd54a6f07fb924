//! What the child of a fork has in its memory of its parent's segments.
//!
//! A fork copies all mappings, and a segment has the bytes of all connections of two processes. A child needs those of the
//! connections that it goes on with. What it has closed it must not read or change any more, since it may be about to become
//! another user, or to confine itself, as servers with privilege separation do. So the windows of a connection leave the
//! memory of a child that closes it, and the whole segment does with the last one.
//!
//! The addresses stay: private memory takes the place of what was shared, so that a thread which looks there by an old
//! address finds memory ([`super::mapping`]).

use crate::shm::{Link, registry};
use core::sync::atomic::{Ordering, fence};
use netacc_ring::SLOTS;

/// The slots of a link with an open connection. If both sides of the link are in the parent, the other one is that of its
/// RDMA engine, which does nothing in a child.
fn open_slots(link: &'static Link) -> impl Iterator<Item = usize> {
    link.endpoints().filter(|ep| ep.side.is_live()).map(|ep| ep.side.slot_index())
}

/// To be called when the connection of a slot has ended in this process, before the link is put. In the child of a fork it
/// takes the connection's windows out of the memory, and with the last one all of the segment.
#[inline]
pub(super) fn connection_ended(link: &'static Link, slot: usize) {
    if link.is_inherited() {
        ended_in_child(link, slot);
    }
}

#[cold]
fn ended_in_child(link: &'static Link, slot: usize) {
    // SeqCst: of two threads that end the last two connections one sees that none is left.
    fence(Ordering::SeqCst);
    if open_slots(link).next().is_none() {
        forget_segment(link);
    } else if let Some(seg) = link.segment() {
        seg.forget_windows(slot);
    }
}

/// Takes all of a link's segment out of the memory, and closes the wakers that the peer has lent for its connections.
fn forget_segment(link: &'static Link) {
    if let Some(seg) = link.segment() {
        seg.forget();
    }
    link.close_descriptors();
}

/// Takes everything of the parent's segments out of the memory that no open connection needs. Called in the child of a fork
/// before it gives up rights.
pub fn forget_unneeded() {
    registry::each_used(|link| {
        if !link.is_inherited() {
            return;
        }
        if open_slots(link).next().is_none() {
            forget_segment(link);
        } else if let Some(seg) = link.segment() {
            let is_open = |slot| open_slots(link).any(|open| open == slot);
            (0..SLOTS).filter(|slot| !is_open(*slot)).for_each(|slot| seg.forget_windows(slot));
        }
    });
}
