//! Who may send how much: the receives of both sides of a queue pair, as numbers.
//!
//! A side has [`FIRST`] receives at first. It posts more while the other side keeps using up what it knows of, and gives
//! them back when little comes: it names the number that it wants to keep, and the other side uses up the rest with empty
//! messages, since a receive that is posted cannot be taken back.

use netacc_wire::frame::{Frame, Kind};

/// Receives of a queue pair that has little to do. With fewer, each message of a conversation could be followed by one
/// that only brings credits, for ever: see [`Flow::owes`].
pub(super) const FIRST: u16 = 4;
/// The most that a side may have.
pub(super) const MOST: u16 = 16;
/// Bytes that all receives of a queue pair are to hold at most, where that is more than [`FIRST`].
const ENOUGH: usize = 256 * 1024;
/// So often between two looks ([`Flow::tick`]) the other side has to use up half of them before there are more.
const SHORT: u32 = 4;

/// The receives of a queue pair, on both sides.
#[derive(Debug)]
pub(super) struct Flow {
    /// Receives of the other side that are free, as far as it has said.
    credits: u16,
    /// How many it has in all.
    peer_receives: u16,
    /// How many it may ever have.
    peer_most: u16,
    /// Receives of ours.
    receives: u16,
    /// Those of them that the other side knows to be free, once it has heard all that we have sent.
    told: u16,
    /// Those that are free again, which it has not been told.
    owed: u16,
    /// So many are kept when they are free again.
    keep: u16,
    /// We have no use for more.
    most: u16,
    /// Since the last look: how often the other side had used up half of them, and what came but for credits.
    short: u32,
    news: u32,
}

impl Flow {
    /// With [`FIRST`] receives of `size` bytes.
    pub fn new(size: usize) -> Flow {
        let most = most_of(size);
        let (credits, peer_receives, peer_most) = (0, 0, 0);
        let (receives, told, keep) = (FIRST, FIRST, FIRST);
        Flow { credits, peer_receives, peer_most, receives, told, owed: 0, keep, most, short: 0, news: 0 }
    }

    /// The other side has said with how many of how many bytes it begins.
    pub fn meet(&mut self, receives: u16, size: usize) {
        self.peer_most = most_of(size);
        self.credits = receives.min(self.peer_most);
        self.peer_receives = self.credits;
    }

    /// The other side never has more: so many messages of ours may wait to be confirmed.
    pub fn peer_most(&self) -> u16 {
        self.peer_most
    }

    /// Receives of the other side that are free, and all that it has.
    pub fn credits(&self) -> (u16, u16) {
        (self.credits, self.peer_receives)
    }

    /// Whether a message may be sent. The last credit is kept for [`Kind::Credit`]: with both sides out of credits none
    /// could give the other any.
    pub fn can_send(&self) -> bool {
        self.credits >= 2
    }

    /// Whether even a message that only brings credits may be sent.
    pub fn can_tell(&self) -> bool {
        self.credits >= 1
    }

    /// Whether so many receives are free again that they are told by a message of their own, if no other has gone out
    /// before. Three or more: two sides that send and answer would answer each other's credits, too, with credits. And no
    /// more than the other side can use up.
    pub fn owes(&self) -> bool {
        self.owed > self.receives / 2
    }

    /// What the next message is to say of free receives.
    pub fn to_say(&self) -> u8 {
        // More than that there never are: see MOST.
        u8::try_from(self.owed).unwrap_or(u8::MAX)
    }

    /// A message goes out, and says that.
    pub fn sent(&mut self) -> u8 {
        let told = self.to_say();
        self.owed -= u16::from(told);
        self.told += u16::from(told);
        self.credits = self.credits.saturating_sub(1);
        told
    }

    /// A message came. False: the other side says that it has more than it can have.
    pub fn came(&mut self, frame: &Frame) -> bool {
        self.told = self.told.saturating_sub(1);
        if !matches!(frame.kind, Kind::Credit | Kind::Probe) {
            self.news = self.news.saturating_add(1);
            // Then it is about to be told of more.
            self.short = self.short.saturating_add(u32::from(self.told <= self.receives / 2));
        }
        let Some(credits) = self.credits.checked_add(frame.credits.into()).filter(|c| *c <= self.peer_most) else {
            return false;
        };
        self.credits = credits;
        self.peer_receives = self.peer_receives.max(credits);
        true
    }

    /// What came has been dealt with: whether its receive is to be posted again.
    pub fn freed(&mut self) -> bool {
        if self.receives > self.keep {
            self.receives -= 1;
            return false;
        }
        self.owed += 1;
        true
    }

    /// How many more receives there should be.
    pub fn wanted(&self) -> u16 {
        if self.short < SHORT { 0 } else { self.receives.min(self.most.saturating_sub(self.receives)) }
    }

    /// There is one more, posted.
    pub fn grown(&mut self) {
        self.receives += 1;
        self.owed += 1;
        self.keep = self.receives;
        self.short = 0;
    }

    /// No more are to be had for now.
    pub fn refused(&mut self) {
        self.short = 0;
    }

    /// Once in a while. Whether little has come since the last time.
    pub fn tick(&mut self) -> bool {
        self.short = 0;
        let quiet = core::mem::take(&mut self.news) < u32::from(self.receives);
        if quiet {
            self.keep = FIRST;
        }
        quiet
    }

    /// Whether there are more receives than are to be kept.
    pub fn has_many(&self) -> bool {
        self.receives > self.keep
    }

    /// Says how many are to be kept.
    pub fn asks(&self) -> Frame {
        Frame { kind: Kind::Credit, credits: 0, conn: self.keep, epoch: 0, window: 0, heard: 0, next: 0 }
    }

    /// The other side wants to keep so many: how many empty messages are due.
    pub fn asked(&mut self, keep: u16) -> u16 {
        self.peer_receives = self.peer_receives.min(keep.max(FIRST));
        self.credits.saturating_sub(1)
    }
}

/// As many receives of `size` bytes a side has at most.
fn most_of(size: usize) -> u16 {
    u16::try_from(ENOUGH / size.max(1)).unwrap_or(MOST).clamp(FIRST, MOST)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CREDITS: Frame = Frame { kind: Kind::Credit, credits: 0, conn: 0, epoch: 0, window: 0, heard: 0, next: 0 };

    /// Two sides, and what is under way to each of them.
    struct Pair {
        sides: [Flow; 2],
        under_way: [Vec<Frame>; 2],
        sent: u32,
    }

    impl Pair {
        fn new(size: usize) -> Pair {
            let mut sides = [Flow::new(size), Flow::new(size)];
            sides.iter_mut().for_each(|s| s.meet(FIRST, size));
            Pair { sides, under_way: [Vec::new(), Vec::new()], sent: 0 }
        }

        fn send(&mut self, from: usize, frame: Frame) {
            self.sent += 1;
            let credits = self.sides[from].sent();
            self.under_way[1 - from].push(Frame { credits, ..frame });
            // What kills an iWARP connection: a message that nothing is posted for.
            assert!(self.under_way[1 - from].len() <= usize::from(self.sides[1 - from].receives));
        }

        fn data(&mut self, from: usize) -> bool {
            let may = self.sides[from].can_send();
            if may {
                self.send(from, Frame { kind: Kind::Data, ..CREDITS });
            }
            may
        }

        fn deliver(&mut self, to: usize) -> bool {
            if self.under_way[to].is_empty() {
                return false;
            }
            let frame = self.under_way[to].remove(0);
            assert!(self.sides[to].came(&frame));
            self.sides[to].freed();
            if frame.kind == Kind::Credit && frame.conn != 0 {
                for _ in 0..self.sides[to].asked(frame.conn) {
                    self.send(to, CREDITS);
                }
            }
            if self.sides[to].owes() && self.sides[to].can_tell() {
                self.send(to, CREDITS);
            }
            true
        }

        fn grow(&mut self, at: usize) {
            for _ in 0..self.sides[at].wanted() {
                self.sides[at].grown();
            }
            if self.sides[at].owes() && self.sides[at].can_tell() {
                self.send(at, CREDITS);
            }
        }

        fn tick(&mut self, at: usize) {
            let side = &mut self.sides[at];
            if side.tick() && side.has_many() && side.can_tell() {
                let frame = self.sides[at].asks();
                self.send(at, frame);
            }
        }

        /// Everything arrives; this ends, or the two would talk for ever.
        fn settle(&mut self) {
            let mut steps = 0;
            while self.deliver(0) | self.deliver(1) {
                steps += 1;
                assert!(steps < 200, "credits answer credits");
            }
        }
    }

    #[test]
    fn a_stream_makes_receives_grow_and_silence_gives_them_back() {
        let mut p = Pair::new(16 * 1024);
        for _ in 0..200 {
            while p.data(0) {}
            p.settle();
            p.grow(1);
            p.settle();
        }
        assert_eq!((p.sides[1].receives, p.sides[0].receives), (MOST, FIRST));
        assert_eq!(p.sides[0].credits().1, MOST);
        // A look that has seen the stream, and one that has seen nothing.
        for _ in 0..2 {
            p.tick(1);
            p.settle();
        }
        assert_eq!((p.sides[1].receives, p.sides[0].credits()), (FIRST, (FIRST, FIRST)));
        assert!(p.data(0) && p.data(0));
    }

    #[test]
    fn requests_and_answers_need_no_more_than_the_first() {
        let mut p = Pair::new(16 * 1024);
        // Credits that came by themselves once must not come with every message from then on.
        while p.data(0) {}
        p.settle();
        p.tick(0);
        p.tick(1);
        p.sent = 0;
        for _ in 0..1000 {
            for side in [0, 1] {
                assert!(p.data(side));
                p.settle();
            }
        }
        assert_eq!(p.sides.each_ref().map(Flow::wanted), [0, 0]);
        assert!(p.sent <= 2002, "{} messages", p.sent);
    }

    #[test]
    fn large_messages_have_fewer_receives() {
        for (size, most) in [(1024, MOST), (16 * 1024, MOST), (32 * 1024, 8), (64 * 1024, FIRST), (16 << 20, FIRST)] {
            let mut p = Pair::new(size);
            for _ in 0..200 {
                while p.data(0) {}
                p.settle();
                p.grow(1);
                p.settle();
            }
            assert_eq!(p.sides[1].receives, most, "{size}");
        }
    }

    proptest! {
        /// Nothing is sent that nothing is posted for (`send` asserts it), and both can always send again.
        #[test]
        fn nobody_overruns_and_nobody_starves(steps in proptest::collection::vec((0..5u8, 0..2usize), 0..400)) {
            let mut p = Pair::new(16 * 1024);
            for (what, side) in steps {
                match what {
                    0 | 1 => drop(p.data(side)),
                    2 => drop(p.deliver(side)),
                    3 => p.grow(side),
                    _ => p.tick(side),
                }
            }
            p.settle();
            for side in [0, 1] {
                prop_assert!(p.data(side), "{:?}", p.sides);
                p.settle();
            }
        }
    }
}
