//! What an engine's thread sleeps on, and what the completion channels report: see [`progress`](super::progress).

use crate::rdma::engine::status::EngineStatus;
use crate::rdma::{Armed, Device};
use core::ops::Range;

/// What the engine thread sleeps on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SleepOn {
    /// The thread does not sleep.
    Awake,
    /// The thread sleeps on everything.
    All,
    /// The program does the work: it does not sleep on what the program's threads see by themselves, and not for long.
    Brief,
    /// A thread of the program sleeps on the completion channels, and has done so for a while: it sleeps on everything
    /// else.
    Others,
}

/// A thread of the program that sleeps on the completion channels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Poller {
    /// The number of devices whose channels it has.
    pub channels: usize,
    /// The address of the set that it sleeps on: no two threads that sleep have the same.
    pub set: usize,
    /// Whether it waits for no bytes, and gives way to a thread that does.
    pub gives_way: bool,
}

/// What an engine's thread sleeps on, and what the completion channels report.
#[derive(Debug)]
pub(super) struct Sleep {
    /// What the thread sleeps on.
    pub on: SleepOn,
    /// The completions that the queues will report to the channels, once.
    pub armed: Armed,
    /// Set while a thread of the program sleeps on the completion channels.
    pub poller: Option<Poller>,
    /// Set while threads that wait for bytes take the token: others then leave it to them.
    pub claimed: bool,
    /// Set once completions were found that the thread had not been told of.
    pub doubted: bool,
    /// The turns of the program's threads ([`EngineStatus::progress_count`]) that the thread knows of.
    progress_seen: u32,
}

impl Default for Sleep {
    fn default() -> Sleep {
        Sleep { on: SleepOn::Awake, armed: Armed::No, poller: None, claimed: false, doubted: false, progress_seen: 0 }
    }
}

impl Sleep {
    /// Arms the completion queues, so that they report to their channels all that a thread that sleeps there has to
    /// hear of. True if they were armed for less before: then completions may have come of which the channels say
    /// nothing.
    pub fn arm(&mut self, devices: &[Device]) -> bool {
        let needs = devices.iter().map(Device::needs).max().unwrap_or(Armed::No);
        let more = self.armed < needs;
        if more {
            devices.iter().for_each(|d| d.arm(needs));
            self.armed = needs;
        }
        more
    }

    /// Takes the events of the first `channels` devices.
    pub fn take_events(&mut self, devices: &[Device], channels: usize) {
        for device in devices.iter().take(channels) {
            if device.take_events() {
                self.armed = Armed::No;
            }
        }
    }

    /// Devices, of `all`, on whose channels the thread sleeps: all, or those that are new since a thread of the program
    /// took the poller token.
    pub fn channels(&self, sleep: SleepOn, all: usize) -> Range<usize> {
        match sleep {
            SleepOn::All | SleepOn::Awake => 0..all,
            SleepOn::Brief | SleepOn::Others => self.poller.map_or(all, |poller| poller.channels)..all,
        }
    }

    /// What the engine thread is to sleep on, when there is nothing to do.
    pub fn next(&mut self, status: &EngineStatus) -> SleepOn {
        let count = status.progress_count.get();
        let driven = core::mem::replace(&mut self.progress_seen, count) != count;
        match self.poller {
            _ if driven => SleepOn::Brief,
            Some(_) => SleepOn::Others,
            None => {
                self.claimed = false;
                SleepOn::All
            }
        }
    }

    /// In the copy: nothing is armed, and no thread of the program's is there.
    pub fn forget(&mut self) {
        (self.armed, self.poller) = (Armed::No, None);
    }
}
