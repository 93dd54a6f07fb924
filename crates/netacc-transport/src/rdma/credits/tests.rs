use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;

const CREDITS: Frame =
    Frame { kind: Kind::Credit, credits: 0, large: false, conn: 0, generation: 0, window: 0, acked: 0, next: 0 };
const DATA: Frame = Frame { kind: Kind::Data, ..CREDITS };
const SIZE: usize = 16 * 1024;

/// Two sides, the receives that they have posted and whether those are large, and what is under way to each of them.
struct Pair {
    sides: [Credits; 2],
    posted: [VecDeque<bool>; 2],
    under_way: [VecDeque<(Frame, usize)>; 2],
    size: usize,
    sent: u32,
    /// Number of large buffers that are left.
    left: u16,
}

impl Pair {
    fn new(size: usize) -> Pair {
        let mut sides = [Credits::new(size), Credits::new(size)];
        sides.iter_mut().for_each(|s| s.start(FIRST, size));
        let posted = [(); 2].map(|()| VecDeque::from([false; FIRST as usize]));
        Pair { sides, posted, under_way: Default::default(), size, sent: 0, left: 100 }
    }

    fn send(&mut self, from: usize, frame: Frame, len: usize) {
        self.sent += 1;
        let large = self.sides[from].next_is_large();
        assert!(len <= if large { larger(self.size) } else { self.size });
        let (credits, large_ones) = self.sides[from].sent();
        self.under_way[1 - from].push_back((Frame { credits, large: large_ones, ..frame }, len));
        // What kills an iWARP connection: a message that nothing is posted for, or nothing that is large enough.
        let posted = self.posted[1 - from].get(self.under_way[1 - from].len() - 1).copied();
        assert!(posted.is_some_and(|posted| posted || !large));
    }

    /// A message that is filled, or not.
    fn data(&mut self, from: usize, full: bool) -> bool {
        let may = self.sides[from].can_send();
        let large = self.sides[from].next_is_large();
        let size = if large { larger(self.size) } else { self.size };
        if may {
            self.send(from, DATA, if full { size } else { self.size / 4 });
        }
        may
    }

    fn deliver(&mut self, to: usize) -> bool {
        let Some((frame, len)) = self.under_way[to].pop_front() else { return false };
        let large = self.posted[to].pop_front().unwrap();
        let side = &mut self.sides[to];
        assert!(side.came(&frame, len));
        if side.freed(large) {
            let was = large;
            let large = side.is_enlarged() && (was || self.left > 0);
            self.left = self.left.saturating_add(was.into()) - u16::from(large);
            side.reposted(large);
            self.posted[to].push_back(large);
        }
        assert_eq!(usize::from(side.large), self.posted[to].iter().filter(|large| **large).count());
        if frame.kind == Kind::Credit && frame.conn != 0 {
            for _ in 0..self.sides[to].keep_requested(frame.conn) {
                self.send(to, CREDITS, 0);
            }
        }
        self.tell(to);
        true
    }

    fn tell(&mut self, at: usize) {
        while self.sides[at].owes() && self.sides[at].can_announce() {
            self.send(at, CREDITS, 0);
        }
    }

    fn grow(&mut self, at: usize) {
        match self.sides[at].lacks() {
            Lack::Nothing => {}
            Lack::Larger(_) => self.sides[at].enlarge(),
            Lack::More(more) => {
                for _ in 0..more {
                    self.sides[at].grown();
                    self.posted[at].push_back(false);
                }
            }
        }
        self.tell(at);
    }

    fn tick(&mut self, at: usize) {
        let side = &mut self.sides[at];
        if side.tick() && (side.has_many() || side.too_large() > 0) && side.can_send() {
            let frame = self.sides[at].asks();
            self.send(at, frame, 0);
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

    /// One side has much to say.
    fn stream(&mut self, rounds: u32, full: bool) {
        for _ in 0..rounds {
            while self.data(0, full) {}
            self.settle();
            self.grow(1);
            self.settle();
        }
    }

    fn has(&self, at: usize) -> (u16, u16) {
        (self.sides[at].receives, self.sides[at].large)
    }
}

#[test]
fn many_messages_make_receives_grow_in_number_and_silence_gives_them_back() {
    let mut p = Pair::new(SIZE);
    p.stream(200, false);
    assert_eq!((p.has(1), p.has(0)), ((MOST, 0), (FIRST, 0)));
    assert_eq!(p.sides[0].credits().1, MOST);
    // A look that has seen the stream, and one that has seen nothing.
    for _ in 0..2 {
        p.tick(1);
        p.settle();
    }
    assert_eq!((p.has(1), p.sides[0].credits()), ((FIRST, 0), (FIRST, FIRST)));
    assert!(p.data(0, false) && p.data(0, false));
}

#[test]
fn a_stream_makes_receives_grow_in_size_and_silence_gives_them_back() {
    let mut p = Pair::new(SIZE);
    p.stream(20, true);
    assert_eq!((p.has(1), p.has(0)), ((FIRST, FIRST), (FIRST, 0)));
    assert!(p.sides[0].next_is_large());
    // A look that has seen the stream, and those that have seen nothing: the one that is kept for credits takes one more.
    for _ in 0..3 {
        p.tick(1);
        p.settle();
    }
    assert_eq!((p.has(1), p.sides[0].credits()), ((FIRST, 0), (FIRST, FIRST)));
    let sent = p.sent;
    p.tick(1);
    assert_eq!(p.sent, sent, "there is nothing to ask for");
}

#[test]
fn what_another_has_taken_is_asked_for_again() {
    let mut p = Pair::new(SIZE);
    for (left, large, lack) in [(1, 1, Lack::Larger(FIRST - 1)), (FIRST, FIRST, Lack::Nothing)] {
        p.left = left;
        p.stream(20, true);
        for _ in 0..20 {
            while p.data(0, true) {}
            p.settle();
        }
        assert_eq!((p.has(1), p.sides[1].lacks()), ((FIRST, large), lack));
    }
}

#[test]
fn large_and_others_in_turn_do_not_leave_both_sides_with_one_credit() {
    let mut p = Pair::new(SIZE);
    for side in [0, 1] {
        p.sides[side].enlarge();
    }
    for large in [true, false, true, false].repeat(2) {
        for to in [0, 1] {
            p.left = large.into();
            assert!(p.data(1 - to, true));
            p.deliver(to);
        }
    }
    p.left = 0;
    for _ in 0..100 {
        while p.data(0, true) | p.data(1, true) {}
        p.settle();
    }
    assert!(p.data(0, true) && p.data(1, true), "{:?}", p.sides);
}

#[test]
fn large_receives_that_the_other_side_cannot_fill_become_many_others() {
    let mut p = Pair::new(SIZE);
    p.stream(20, true);
    assert_eq!(p.has(1), (FIRST, FIRST));
    p.tick(1);
    for _ in 0..USELESS {
        for _ in 0..200 {
            while p.sides[0].can_send() {
                p.send(0, DATA, SIZE);
            }
            p.settle();
            p.grow(1);
            p.settle();
        }
        p.tick(1);
    }
    assert_eq!(p.has(1), (MOST, 0));
    for _ in 0..2 {
        p.tick(1);
        p.stream(20, true);
    }
    assert_eq!(p.has(1), (FIRST, FIRST), "they are tried again");
}

#[test]
fn large_receives_are_given_back_where_only_a_little_comes_now_and_then() {
    let mut p = Pair::new(SIZE);
    p.stream(20, true);
    p.tick(1);
    p.settle();
    assert_eq!(p.has(1), (FIRST, FIRST));
    for _ in 0..3 {
        for _ in 0..2 * FIRST {
            assert!(p.data(0, false));
            p.settle();
        }
        p.tick(1);
        p.settle();
    }
    assert_eq!(p.has(1), (FIRST, 0));
}

#[test]
fn few_large_receives_become_many_for_many_messages_and_the_other_way_round() {
    let mut p = Pair::new(SIZE);
    for _ in 0..3 {
        p.stream(20, true);
        assert_eq!(p.has(1), (FIRST, FIRST));
        p.tick(1);
        p.stream(200, false);
        assert_eq!(p.has(1), (MOST, 0));
        p.tick(1);
    }
}

#[test]
fn what_is_refused_is_not_asked_for_again_before_the_next_look() {
    let mut p = Pair::new(SIZE);
    let short = |p: &mut Pair| {
        for _ in 0..20 {
            while p.data(0, true) {}
            p.settle();
        }
        p.sides[1].lacks()
    };
    assert_eq!(short(&mut p), Lack::Larger(FIRST));
    p.sides[1].refused(Lack::Larger(FIRST));
    assert_eq!(p.sides[1].lacks(), Lack::Nothing);
    assert_eq!(short(&mut p), Lack::More(FIRST));
    p.tick(1);
    assert_eq!(short(&mut p), Lack::Larger(FIRST));
}

#[test]
fn who_gives_receives_back_keeps_a_credit_to_tell_of_others() {
    let mut p = Pair::new(SIZE);
    for (from, to) in [(0, 1), (1, 0)] {
        for _ in 0..20 {
            while p.data(from, true) {}
            p.settle();
            p.grow(to);
            p.settle();
        }
    }
    assert_eq!((p.has(0), p.has(1)), ((FIRST, FIRST), (FIRST, FIRST)));
    p.tick(0);
    p.tick(1);
    // Nothing has arrived when both look again.
    while p.data(0, true) || p.data(1, true) {}
    p.tick(0);
    p.tick(1);
    p.settle();
    assert!(p.data(0, true) && p.data(1, true), "{:?}", p.sides);
}

#[test]
fn requests_and_answers_need_no_more_than_the_first() {
    let mut p = Pair::new(SIZE);
    // Credits that came by themselves once must not come with every message from then on.
    while p.data(0, false) {}
    p.settle();
    p.tick(0);
    p.tick(1);
    p.sent = 0;
    for _ in 0..1000 {
        for side in [0, 1] {
            assert!(p.data(side, true));
            p.settle();
        }
    }
    assert_eq!(p.sides.each_ref().map(Credits::lacks), [Lack::Nothing; 2]);
    assert!(p.sent <= 2002, "{} messages", p.sent);
}

#[test]
fn large_messages_have_fewer_receives() {
    for (size, most) in [(1024, MOST), (16 * 1024, MOST), (32 * 1024, 8), (64 * 1024, FIRST), (16 << 20, FIRST)] {
        let mut p = Pair::new(size);
        p.stream(200, false);
        assert_eq!(p.has(1), (most, 0), "{size}");
        p.tick(1);
        p.stream(200, true);
        let large = if larger(size) > size { FIRST } else { 0 };
        assert_eq!(p.has(1), (FIRST, large), "{size}");
    }
}

#[test]
fn more_than_there_can_be_is_a_lie() {
    let mut flow = Credits::new(SIZE);
    flow.start(FIRST, SIZE);
    for (credits, large, true_one) in [(12, true, true), (1, false, false), (127, true, false)] {
        assert_eq!(flow.came(&Frame { credits, large, ..DATA }, 16), true_one);
    }
}

proptest! {
    // What leaves both sides without a credit takes several messages that cross each other, after others.
    #![proptest_config(ProptestConfig::with_cases(100_000))]
    /// Nothing is sent that nothing is posted for (`send` asserts it), and both can always send again.
    #[test]
    fn nobody_overruns_and_nobody_starves(
        left in prop_oneof![0..6u16, Just(100)],
        steps in proptest::collection::vec((0..8u8, 0..2usize, any::<bool>()), 0..60)
    ) {
        let mut p = Pair::new(SIZE);
        p.left = left;
        for (what, side, full) in steps {
            match what {
                0 => drop(p.data(side, full)),
                1 => while p.data(side, full) {},
                2 => drop(p.deliver(side)),
                3 => while p.deliver(side) {},
                4 => p.settle(),
                5 => p.stream(4, full),
                6 => p.grow(side),
                _ => p.tick(side),
            }
        }
        p.settle();
        for side in [0, 1] {
            prop_assert!(p.data(side, true), "{:?}", p.sides);
            p.settle();
        }
    }
}
