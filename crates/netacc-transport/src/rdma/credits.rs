//! How much each side may send: the receives of both sides of a queue pair, as numbers.
//!
//! A side has [`FIRST`] receives at first. If the other side keeps using up the receives that it knows of, it gets
//! larger ones if its messages fill the existing ones, and more otherwise. They are given back when little comes: a
//! side names the number that it wants to keep, and the other side uses up the rest with empty messages, since a
//! receive that is posted cannot be taken back.

use crate::rdma::bounds::MOST;
use crate::rdma::line::Line;
use netacc_wire::frame::{ENOUGH, Frame, Kind, larger};

/// Number of receives of a queue pair that has little to do. With fewer, each message of a conversation could be
/// followed by one that only brings credits, for ever: see [`Credits::owes`].
pub(super) const FIRST: u16 = 4;
/// Number of times that the other side has to use up half of them between two looks ([`Credits::tick`]) before there
/// are more.
const SHORT: u32 = 4;
/// Number of messages of which more than half have to fill no more than usual receives to show that large ones are of
/// no use.
const PROOF: u32 = 64;
/// Number of looks for which large receives are not tried again then.
const USELESS: u32 = 16;
/// Number of such times after which those before the last ones count less and less.
const LATELY: u32 = 16;

/// The receives of a queue pair, on both sides.
#[derive(Debug)]
pub(super) struct Credits {
    /// Number of free receives that the other side has announced.
    credits: Line,
    /// Number of receives that the other side has in all.
    peer_receives: u16,
    /// Most receives that the other side may ever have.
    peer_most: u16,
    /// Receives of ours, and how many of them are large.
    receives: u16,
    large: u16,
    /// Receives of ours that the other side will know to be free once it has received all that we have sent, in the
    /// order in which it knows them.
    announced: Line,
    /// Number of our free receives that were not announced to the other side.
    owed: Line,
    /// Number of receives that are kept when they are free again.
    keep: u16,
    /// Whether the receives are to be large then.
    enlarged: bool,
    /// Whether large receives may be tried.
    can_enlarge: bool,
    /// Most receives that we have a use for.
    most: u16,
    /// Size (bytes) of each receive that is not large.
    size: usize,
    /// Since the last look: the messages that came, except those that only bring credits, and their bytes; how many of
    /// them might have been long messages, and how many of those filled no more than a usual receive.
    news: u32,
    bytes_of_all: u64,
    long: u32,
    unfilled: u32,
    /// Number of looks for which no large ones are tried, since they were of no use.
    useless: u32,
    /// Number of times lately, but not before the last look, that the other side had used up half of them, and the
    /// bytes that came then.
    short: u32,
    bytes: u64,
}

/// What a side lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lack {
    Nothing,
    /// Number of receives that are missing.
    More(u16),
    /// Number of larger receives that are missing.
    Larger(u16),
}

impl Credits {
    /// The state with [`FIRST`] receives of `size` bytes.
    pub fn new(size: usize) -> Credits {
        let mut flow = Credits {
            credits: Line::default(),
            peer_receives: 0,
            peer_most: 0,
            receives: FIRST,
            large: 0,
            announced: Line::default(),
            owed: Line::default(),
            keep: FIRST,
            enlarged: false,
            can_enlarge: larger(size) > size,
            most: most_of(size),
            size,
            short: 0,
            news: 0,
            bytes_of_all: 0,
            long: 0,
            unfilled: 0,
            useless: 0,
            bytes: 0,
        };
        flow.announced.push(FIRST, false);
        flow
    }

    /// Takes in with how many receives of how many bytes the other side begins.
    pub fn start(&mut self, receives: u16, size: usize) {
        self.peer_most = most_of(size);
        self.peer_receives = receives.min(self.peer_most);
        self.credits.push(self.peer_receives, false);
    }

    /// Most receives that the other side ever has, and so most messages of ours that may wait to be confirmed.
    pub fn peer_most(&self) -> u16 {
        self.peer_most
    }

    /// Receives of the other side that are free, and all that it has.
    pub fn credits(&self) -> (u16, u16) {
        (self.credits.len(), self.peer_receives)
    }

    /// Whether the next message may be a long one.
    pub fn next_is_large(&self) -> bool {
        self.credits.first()
    }

    /// Whether a message may be sent. The last credit is kept for [`Kind::Credit`]: with both sides out of credits none
    /// could give the other any.
    pub fn can_send(&self) -> bool {
        self.credits.len() >= 2
    }

    /// Whether even a message that only brings credits may be sent.
    pub fn can_announce(&self) -> bool {
        self.credits.len() >= 1
    }

    /// Whether enough receives are free again to be announced by a separate message, if no other was sent before. These
    /// are three or more, since otherwise two sides that send and answer would answer each other's credits with
    /// credits, too; and no more than the other side can use up.
    pub fn owes(&self) -> bool {
        self.owed.len() > self.receives / 2
    }

    /// What the next message is to tell of free receives: how many, and whether those are large. The message after it
    /// tells of others. It tells two at least, if there are two, since otherwise both sides could spend their last
    /// credit on telling the other of one, for ever: if the first is large and the second is not, or the other way
    /// round, all are told as if they were not large.
    pub fn to_say(&self) -> (u8, bool) {
        let (run, all) = (self.owed.run(), self.owed.len());
        let (count, large) = if run >= 2 || run == all { (run, self.owed.first()) } else { (all, false) };
        // There are never more than fit: see MOST.
        (u8::try_from(count).unwrap_or(u8::MAX), large)
    }

    /// To be called when a message goes out: returns what it tells.
    pub fn sent(&mut self) -> (u8, bool) {
        let said = self.to_say();
        self.owed.pop(said.0.into());
        self.announced.push(said.0.into(), said.1);
        self.credits.pop(1);
        said
    }

    /// Counts a message of `len` bytes that came. False: the other side claims more than it can have.
    pub fn came(&mut self, frame: &Frame, len: usize) -> bool {
        let large = self.announced.first();
        self.announced.pop(1);
        if !matches!(frame.kind, Kind::Credit | Kind::Probe) {
            self.news = self.news.saturating_add(1);
            self.bytes_of_all = self.bytes_of_all.saturating_add(len as u64);
            self.long = self.long.saturating_add(large.into());
            let as_others = self.size / 2..=self.size;
            self.unfilled = self.unfilled.saturating_add((large && as_others.contains(&len)).into());
            if self.announced.len() <= self.receives / 2 {
                self.is_short(len);
            }
        }
        let credits: u16 = frame.credits.into();
        if credits > self.peer_most.saturating_sub(self.credits.len()) {
            return false;
        }
        self.credits.push(credits, frame.large);
        self.peer_receives = self.peer_receives.max(self.credits.len());
        true
    }

    /// Notes that more receives are about to be announced to the other side.
    fn is_short(&mut self, len: usize) {
        if self.short >= LATELY {
            self.short /= 2;
            self.bytes /= 2;
        }
        self.short += 1;
        self.bytes += len as u64;
    }

    /// To be called when a message has been dealt with: returns whether its receive, which was `large` or not, is to be
    /// posted again.
    pub fn freed(&mut self, large: bool) -> bool {
        self.large = self.large.saturating_sub(large.into());
        let keeps = self.receives <= self.keep;
        self.receives -= u16::from(!keeps);
        keeps
    }

    /// Whether a receive that is posted again should be large.
    pub fn is_enlarged(&self) -> bool {
        self.enlarged
    }

    /// To be called when a receive has been posted again.
    pub fn reposted(&mut self, large: bool) {
        self.owed.push(1, large);
        self.large += u16::from(large);
    }

    /// What the other side keeps running short of.
    pub fn lacks(&self) -> Lack {
        if self.short < SHORT {
            return Lack::Nothing;
        }
        // A stream fills what it gets, except where a send of the program ends in between.
        let filled = self.bytes >= u64::from(self.short) * self.size as u64 / 2;
        if filled && self.can_enlarge {
            // Another queue pair may have taken the large ones that were meant for this one.
            let there = if self.enlarged { self.large } else { 0 };
            return if there < FIRST { Lack::Larger(FIRST - there) } else { Lack::Nothing };
        }
        match self.receives.min(self.most.saturating_sub(self.receives)) {
            0 => Lack::Nothing,
            more => Lack::More(more),
        }
    }

    /// Counts one more receive, which is posted.
    pub fn grown(&mut self) {
        // There is one change back and forth at most between two looks.
        self.can_enlarge &= !self.enlarged;
        self.enlarged = false;
        self.receives += 1;
        self.owed.push(1, false);
        self.keep = self.receives;
        self.is_not_short();
    }

    /// From now on receives that are free again are to be large, and as few as at first.
    pub fn enlarge(&mut self) {
        self.enlarged = true;
        self.keep = FIRST;
        self.is_not_short();
    }

    /// Notes that the receives that a side lacks cannot be allocated for now.
    pub fn refused(&mut self, what: Lack) {
        self.can_enlarge &= !matches!(what, Lack::Larger(_));
        self.is_not_short();
    }

    fn is_not_short(&mut self) {
        (self.short, self.bytes) = (0, 0);
    }

    /// Done once in a while; returns whether little has come since the last time.
    pub fn tick(&mut self) -> bool {
        self.is_not_short();
        let (long, unfilled) = (core::mem::take(&mut self.long), core::mem::take(&mut self.unfilled));
        // The other side may have no buffers to fill large receives from. It gets them a moment after it has found
        // none.
        self.useless = if unfilled > (long / 2).max(PROOF) { USELESS } else { self.useless.saturating_sub(1) };
        self.can_enlarge = larger(self.size) > self.size && self.useless == 0;
        let quiet = core::mem::take(&mut self.news) < u32::from(self.receives);
        if quiet {
            self.keep = FIRST;
        }
        // Messages that come now and then are not worth large receives.
        let little = core::mem::take(&mut self.bytes_of_all) < u64::from(FIRST) * self.size as u64;
        self.enlarged &= !(quiet || little);
        quiet
    }

    /// Whether there are more receives than are to be kept.
    pub fn has_many(&self) -> bool {
        self.receives > self.keep
    }

    /// Number of large receives that should not be large.
    pub fn too_large(&self) -> u16 {
        if self.enlarged { 0 } else { self.large }
    }

    /// The frame that tells how many are to be kept.
    pub fn asks(&self) -> Frame {
        let kind = Kind::Credit;
        Frame { kind, credits: 0, large: false, conn: self.keep, generation: 0, window: 0, acked: 0, next: 0 }
    }

    /// The other side wants to keep `keep` receives: returns how many empty messages are due.
    pub fn keep_requested(&mut self, keep: u16) -> u16 {
        self.peer_receives = self.peer_receives.min(keep.max(FIRST));
        self.credits.len().saturating_sub(1)
    }
}

/// Most receives of `size` bytes that a side has.
fn most_of(size: usize) -> u16 {
    u16::try_from(ENOUGH / size.max(1)).unwrap_or(MOST).clamp(FIRST, MOST)
}

#[cfg(test)]
mod tests;
