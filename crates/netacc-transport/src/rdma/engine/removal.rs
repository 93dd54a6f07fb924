//! The removal of RDMA devices: which of them this engine has dealt with, and which ones librdmacm still has open.

use crate::rdma::engine::status::{self, EngineStatus};
use crate::rdma::engine::sysfs::devices_there;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};
use netacc_sys::reserved_fds;
use netacc_verbs::cm::OpenDevice;
use netacc_verbs::{AsyncEvent, EventChannel};

/// Number of times, about once a second, that removed devices are let go of after a failure.
const RELEASES: u32 = 15;

/// Number of devices that were removed, counted by all engines together.
static REMOVALS: AtomicU32 = AtomicU32::new(0);

/// An event of a device, and the descriptor by which it came.
#[derive(Clone, Copy, Debug)]
pub(super) struct Said {
    pub device_fd: i32,
    pub event: AsyncEvent,
}

/// What an engine knows of devices that are removed.
#[derive(Debug)]
pub(super) struct Removals {
    /// Descriptors of devices that are removed and that librdmacm may still have open.
    removed: Vec<i32>,
    /// Devices that librdmacm had open when it was asked last.
    open: Vec<OpenDevice>,
    /// The devices of the host and the removals as they were then, if that was before a fork.
    open_at: Option<(u64, u32)>,
    /// Number of looks for such descriptors that are still to be made.
    releases: u32,
    /// The host's devices at the last look ([`devices_there`]).
    there: u64,
    /// Removals that this engine knows of.
    removals: u32,
}

impl Default for Removals {
    fn default() -> Removals {
        Removals {
            removed: Vec::new(),
            open: Vec::new(),
            open_at: None,
            releases: 0,
            there: 0,
            removals: REMOVALS.load(Ordering::Relaxed),
        }
    }
}

impl Removals {
    /// A queue pair has failed: its device may be on its way out.
    pub fn suspect(&mut self) {
        self.releases = RELEASES;
    }

    /// Notes that a device was released, with these descriptors of librdmacm on it, and notifies all engines.
    pub fn gone(&mut self, fds: Option<[i32; 2]>) {
        self.removed.extend(fds.into_iter().flatten());
        self.releases = RELEASES;
        // Other engines may have the device too, and nothing on it by which they would hear.
        REMOVALS.fetch_add(1, Ordering::Relaxed);
        status::all().for_each(EngineStatus::ring);
    }

    /// Whether another engine has heard of a removal that this one has not.
    pub fn has_missed_one(&self) -> bool {
        self.removals != REMOVALS.load(Ordering::Relaxed)
    }

    /// Whether there is something to be looked at once in a while.
    pub fn are_suspected(&self) -> bool {
        self.releases > 0 || self.has_missed_one()
    }

    /// Done once in a while, by an engine with a connection manager: whether devices are to be let go of now, after which
    /// [`Removals::rest`] is to be called.
    pub fn look(&mut self) -> bool {
        // librdmacm has all devices open, and the removal of a device that we never used waits for us too. Nobody
        // reports that.
        let there = devices_there();
        let before = core::mem::replace(&mut self.there, there);
        if before != there {
            // The first look only notes what is open.
            self.releases = self.releases.max(if before == 0 { 1 } else { RELEASES });
        }
        let removals = REMOVALS.load(Ordering::Relaxed);
        if core::mem::replace(&mut self.removals, removals) != removals {
            self.releases = RELEASES;
        }
        let due = self.releases > 0;
        self.releases = self.releases.saturating_sub(1);
        due
    }

    /// After a look: once nothing more is suspected, the descriptors of removed devices are not kept.
    pub fn rest(&mut self) {
        if self.releases == 0 {
            self.removed.clear();
        }
    }

    /// Makes librdmacm release removed devices.
    pub fn release(&mut self, events: Option<&EventChannel>) {
        if let Ok(open) = netacc_verbs::cm::release_removed_devices() {
            self.open = open;
            return;
        }
        if status::all().any(|status| status.devices.get() > 0) {
            return;
        }
        // librdmacm does not notice that the host's last device has gone. So its numbers are made something harmless:
        // the kernel then sees the device closed, and the library has numbers that nobody else gets.
        let Some(events) = events else { return };
        for fd in self.removed.drain(..) {
            let _ = reserved_fds::replace(fd, events.fd());
        }
        for device in self.open.drain(..) {
            device.cover(events.fd());
        }
    }

    /// Before a fork: finds out what librdmacm has open, unless nothing has changed since that was asked last.
    pub fn note_open(&mut self) {
        let now = (self.there, self.removals);
        if self.open_at == Some(now) && !self.open.is_empty() {
            return;
        }
        if let Ok(open) = netacc_verbs::cm::release_removed_devices() {
            self.open = open;
            self.open_at = Some(now);
        }
    }

    /// In the child of a fork: closes the parent's descriptors of devices that librdmacm has open.
    pub fn close_open(&self) {
        for device in &self.open {
            device.descriptors().into_iter().flatten().for_each(reserved_fds::close);
        }
    }

    /// In the copy: forgets them, since they are the other process's.
    pub fn forget(&mut self) {
        core::mem::forget(core::mem::take(&mut self.open));
        self.removed.clear();
        self.releases = 0;
    }
}
