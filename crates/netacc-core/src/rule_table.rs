//! The rules in force, which every listen and connect searches without a lock while a thread may be replacing them.
//!
//! The table has room for two rule sets: the one in force, and the one that comes next or was there before. A set is
//! never changed while it is in force, so a reader of it is disturbed only if the rules are replaced twice during its
//! search; it then searches again. Nothing is allocated, and no memory has to outlive a reader.

use core::iter::Take;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use netacc_conf::{Matcher, Rules};

/// A rule as [`Matcher::to_words`] gives it.
#[derive(Debug)]
struct Cell([AtomicU64; Matcher::WORDS]);

impl Cell {
    const fn new() -> Self {
        Cell([const { AtomicU64::new(0) }; Matcher::WORDS])
    }
}

#[derive(Debug)]
struct Set {
    count: AtomicU32,
    cells: [Cell; Rules::MAX],
}

/// The rules of a process.
#[derive(Debug)]
pub struct RuleTable {
    /// Number of the set in force. Its parity tells which of `sets` it is.
    current: AtomicU32,
    /// Number of the set that was written last, or is being written: `current` or one more.
    begun: AtomicU32,
    sets: [Set; 2],
}

impl Set {
    const fn new() -> Self {
        Set { count: AtomicU32::new(0), cells: [const { Cell::new() }; Rules::MAX] }
    }
}

/// The rules of one set in the order in which they are tried. While the set is being overwritten they may be any.
#[derive(Clone, Debug)]
pub struct Matchers<'a>(Take<core::slice::Iter<'a, Cell>>);

impl Iterator for Matchers<'_> {
    type Item = Matcher;

    fn next(&mut self) -> Option<Matcher> {
        let Cell(words) = self.0.next()?;
        Some(Matcher::from_words(words.each_ref().map(|word| word.load(Ordering::Relaxed))))
    }
}

impl Default for RuleTable {
    fn default() -> Self {
        Self::new()
    }
}

impl RuleTable {
    /// A table whose set, with the number 0, has no rule.
    pub const fn new() -> Self {
        RuleTable { current: AtomicU32::new(0), begun: AtomicU32::new(0), sets: [const { Set::new() }; 2] }
    }

    fn set(&self, number: u32) -> &Set {
        let [even, odd] = &self.sets;
        if number.is_multiple_of(2) { even } else { odd }
    }

    /// Number of the set in force.
    pub fn number(&self) -> u32 {
        self.current.load(Ordering::Relaxed)
    }

    /// Puts these rules in force, as the set with this number, which is one more than [`RuleTable::number`]. One thread
    /// at a time may do that.
    pub fn replace(&self, number: u32, rules: impl Iterator<Item = Matcher>) {
        let set = self.set(number);
        self.begun.store(number, Ordering::Relaxed);
        // Keeps the stores to the set behind that one; pairs with the fence in `search`.
        fence(Ordering::Release);
        let mut count = 0;
        for (Cell(words), rule) in set.cells.iter().zip(rules) {
            for (word, value) in words.iter().zip(rule.to_words()) {
                word.store(value, Ordering::Relaxed);
            }
            count += 1;
        }
        set.count.store(count, Ordering::Relaxed);
        // Release: a reader that sees the number sees the set.
        self.current.store(number, Ordering::Release);
    }

    /// What `look` finds in the rules in force, and the number of their set. `look` may be called again.
    pub fn search<T>(&self, look: impl Fn(Matchers<'_>) -> T) -> (T, u32) {
        loop {
            // Acquire pairs with the release in `replace`.
            let number = self.current.load(Ordering::Acquire);
            let set = self.set(number);
            let count = set.count.load(Ordering::Relaxed) as usize;
            let found = look(Matchers(set.cells.iter().take(count)));
            // If a word was of a later set in this place, the load below sees that this set was begun.
            fence(Ordering::Acquire);
            if self.begun.load(Ordering::Relaxed).wrapping_sub(number) < 2 {
                return (found, number);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netacc_conf::{Call, Config, Transports, choose};
    use std::sync::atomic::AtomicBool;
    use std::thread;

    fn rules(lines: &str) -> Rules {
        Config::of_file("f", format!("[rules]\n{lines}").as_bytes()).unwrap().rules
    }

    fn connect(port: u16) -> Call {
        Call::Connect((std::net::Ipv4Addr::LOCALHOST, port).into())
    }

    #[test]
    fn a_set_replaces_the_one_before_it_as_a_whole() {
        let table = RuleTable::new();
        let decided = |port| table.search(|rules| choose(rules, connect(port), Transports::ALL));
        assert_eq!((decided(80).0.rule, decided(80).1), (None, 0));
        table.replace(1, rules("use=shm connect=90\nuse=tcp connect=80\n").matchers());
        assert_eq!((decided(80).0.rule, decided(90).0.rule, decided(80).1), (Some(1), Some(0), 1));
        table.replace(2, rules("use=tcp connect=90\n").matchers());
        assert_eq!((decided(80).0.rule, decided(90).0.transports, decided(80).1), (None, Transports::TCP, 2));
        table.replace(3, rules("").matchers());
        assert_eq!((decided(90).0.rule, table.number()), (None, 3));
    }

    #[test]
    fn no_more_rules_are_kept_than_fit() {
        let table = RuleTable::new();
        let one = rules("use=tcp connect=80\n").matchers().next().unwrap();
        table.replace(1, core::iter::repeat_n(one, Rules::MAX + 9));
        assert_eq!(table.search(|rules| rules.count()).0, Rules::MAX);
    }

    /// Set N has N % 8 + 1 rules, and all of them say the same. A reader that mixed two sets would find another number
    /// of rules, or rules that differ.
    #[test]
    fn a_reader_never_sees_parts_of_two_sets() {
        let table = RuleTable::new();
        let sets: Vec<Vec<Matcher>> = (0..8)
            .map(|n| rules(&format!("use=shm connect=10.0.0.{n}:{n}\n").repeat(n + 1)).matchers().collect())
            .collect();
        let of = |number: u32| sets.get(number as usize % 8).unwrap();
        table.replace(1, of(1).iter().copied());
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let readers: Vec<_> = (0..3)
                .map(|_| {
                    scope.spawn(|| {
                        let mut seen = 0u32;
                        while !stop.load(Ordering::Relaxed) || seen == 0 {
                            let (found, number) = table.search(|rules| {
                                thread::yield_now();
                                rules.collect::<Vec<_>>()
                            });
                            assert_eq!(&found, of(number), "set {number}");
                            seen += 1;
                        }
                    })
                })
                .collect();
            for number in 2..20_000 {
                table.replace(number, of(number).iter().copied());
            }
            stop.store(true, Ordering::Relaxed);
            readers.into_iter().for_each(|reader| reader.join().unwrap());
        });
    }
}
