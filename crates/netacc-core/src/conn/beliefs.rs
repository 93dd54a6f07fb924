//! Small lock-free tables of facts about addresses that are believed for a limited time.
//!
//! An entry holds the whole address, since with a hash alone one address could pass for another one. The hash only says
//! where an entry lies; an entry takes the place of an earlier one with the same hash.

use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

/// One entry, protected by a sequence lock: a reader loads `seq` before and after, and a writer makes it odd while it
/// writes.
#[derive(Debug)]
struct Cell {
    seq: AtomicU32,
    /// IP version (4 or 6) in the upper half, port in the lower; 0: the entry is empty.
    family_port: AtomicU32,
    ip: [AtomicU64; 2],
    /// Time at which the fact was noted.
    since: AtomicU64,
}

/// An address as a cell holds it.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Key {
    family_port: u32,
    ip: [u64; 2],
}

impl Key {
    fn of(at: SocketAddr) -> Key {
        let (domain, ip) = match at.ip() {
            IpAddr::V4(a) => (4u32, u128::from(u32::from(a))),
            IpAddr::V6(a) => (6, u128::from(a)),
        };
        Key { family_port: domain << 16 | u32::from(at.port()), ip: [(ip >> 64) as u64, ip as u64] }
    }

    /// The address; an IPv6 one without the parts that a cell does not hold.
    fn address(self) -> SocketAddr {
        let [high, low] = self.ip;
        let ip = match self.family_port >> 16 {
            4 => IpAddr::from((low as u32).to_be_bytes()),
            _ => IpAddr::from((u128::from(high) << 64 | u128::from(low)).to_be_bytes()),
        };
        SocketAddr::new(ip, self.family_port as u16)
    }

    /// FNV-1a hash of the address and port.
    fn hash(self) -> u64 {
        let [high, low] = self.ip;
        let bytes = [high, low, self.family_port.into()].into_iter().flat_map(u64::to_le_bytes);
        bytes.fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3))
    }
}

impl Cell {
    const fn new() -> Cell {
        Cell {
            seq: AtomicU32::new(0),
            family_port: AtomicU32::new(0),
            ip: [const { AtomicU64::new(0) }; 2],
            since: AtomicU64::new(0),
        }
    }

    /// The address and the time at which the fact was noted; `None` if the entry is empty or another thread is writing
    /// it.
    fn read(&self) -> Option<(Key, u64)> {
        // Acquire, and the fence: the words that are read in between come from one write.
        let turn = self.seq.load(Ordering::Acquire);
        let key = Key {
            family_port: self.family_port.load(Ordering::Relaxed),
            ip: self.ip.each_ref().map(|word| word.load(Ordering::Relaxed)),
        };
        let since = self.since.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        let whole = turn & 1 == 0 && self.seq.load(Ordering::Relaxed) == turn;
        (whole && key.family_port != 0).then_some((key, since))
    }

    /// Stores an entry. If two threads write it at once, one of them does nothing.
    fn write(&self, key: Key, since: u64) {
        let turn = self.seq.load(Ordering::Relaxed) & !1;
        if self.seq.compare_exchange(turn, turn | 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return;
        }
        // Release: a reader that sees one of the words sees that the entry is being changed.
        fence(Ordering::Release);
        self.family_port.store(key.family_port, Ordering::Relaxed);
        for (word, value) in self.ip.iter().zip(key.ip) {
            word.store(value, Ordering::Relaxed);
        }
        self.since.store(since, Ordering::Relaxed);
        self.seq.store((turn | 1).wrapping_add(1), Ordering::Release);
    }
}

const NOBODY: Key = Key { family_port: 0, ip: [0; 2] };

/// Whether any table has had an entry. Without one, the tables of a process that has just begun need not be read: each lies
/// on a page of its own, which costs a page fault.
static ANY: AtomicBool = AtomicBool::new(false);

/// A table of `N` entries.
#[derive(Debug)]
pub struct Beliefs<const N: usize>([Cell; N]);

impl<const N: usize> Default for Beliefs<N> {
    fn default() -> Beliefs<N> {
        Beliefs::new()
    }
}

impl<const N: usize> Beliefs<N> {
    /// An empty table.
    pub const fn new() -> Beliefs<N> {
        Beliefs([const { Cell::new() }; N])
    }

    fn cell(&self, key: Key) -> Option<&Cell> {
        self.0.get((key.hash() % N as u64) as usize)
    }

    /// The addresses of which the table's fact was noted and not forgotten.
    pub fn all(&self) -> impl Iterator<Item = SocketAddr> {
        self.0.iter().filter_map(Cell::read).map(|(key, _)| key.address())
    }

    /// Notes at the time `now` (ns) that the table's fact is true of `at`.
    pub fn note(&self, at: SocketAddr, now: u64) {
        let key = Key::of(at);
        // Relaxed, here and in `holds`: a thread that does not see the flag yet does not know the fact yet either.
        ANY.store(true, Ordering::Relaxed);
        if let Some(cell) = self.cell(key) {
            cell.write(key, now);
        }
    }

    /// Whether the fact was noted of `at` less than `limit` ns before `now`.
    pub fn holds(&self, at: SocketAddr, now: u64, limit: u64) -> bool {
        if !ANY.load(Ordering::Relaxed) {
            return false;
        }
        let key = Key::of(at);
        let found = self.cell(key).and_then(Cell::read);
        found.is_some_and(|(of, since)| of == key && now.saturating_sub(since) < limit)
    }

    /// The number (usually a time) with which `at` was noted.
    pub fn noted(&self, at: SocketAddr) -> Option<u64> {
        let key = Key::of(at);
        self.cell(key).and_then(Cell::read).filter(|(of, _)| *of == key).map(|(_, since)| since)
    }

    /// Removes the entry of `at`.
    pub fn forget(&self, at: SocketAddr) {
        let key = Key::of(at);
        if let Some(cell) = self.cell(key)
            && cell.read().is_some_and(|(of, _)| of == key)
        {
            cell.write(NOBODY, 0);
        }
    }

    /// Removes all entries.
    pub fn clear(&self) {
        for cell in self.0.iter().filter(|c| c.family_port.load(Ordering::Relaxed) != 0) {
            cell.write(NOBODY, 0);
        }
    }

    /// Called in the child of a fork: drops the entries that a thread of the parent, which does not exist here, was
    /// just changing.
    pub fn after_fork(&self) {
        if !ANY.load(Ordering::Relaxed) {
            return;
        }
        for cell in self.0.iter().filter(|c| c.seq.load(Ordering::Relaxed) & 1 != 0) {
            cell.family_port.store(0, Ordering::Relaxed);
            cell.seq.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn an_address_is_believed_for_a_while() {
        let table = Beliefs::<4>::new();
        assert!(!table.holds(at("0.0.0.0:0"), 0, u64::MAX));
        table.note(at("192.0.2.1:80"), 1000);
        assert!(table.holds(at("192.0.2.1:80"), 1999, 1000));
        assert!(!table.holds(at("192.0.2.1:80"), 2000, 1000));
        // However long ago it was: 2^40 microseconds are less than two weeks.
        assert!(!table.holds(at("192.0.2.1:80"), 1000 + (1 << 40) * 1000, 1000));
        table.forget(at("192.0.2.1:80"));
        assert!(!table.holds(at("192.0.2.1:80"), 1000, 1000));
    }

    #[test]
    fn no_address_passes_for_another_one() {
        let table = Beliefs::<1>::new();
        let addresses = ["10.77.0.1:0", "24.55.160.161:0", "10.77.0.1:1", "[::10.77.0.1]:0", "[::1:0:0]:0", "[::1]:0"];
        for noted in addresses {
            table.note(at(noted), 5);
            for other in addresses {
                assert_eq!(table.holds(at(other), 6, 10), other == noted, "{noted} noted, {other} asked for");
                table.forget(at(if other == noted { "10.0.0.1:9" } else { other }));
            }
        }
        table.clear();
        assert!(addresses.iter().all(|a| !table.holds(at(a), 6, 10)));
    }

    #[test]
    fn a_reader_never_sees_half_of_an_entry() {
        let table = Beliefs::<1>::new();
        let [a, b] = ["[1:1::1:1]:1", "[2:2::2:2]:2"].map(at);
        let mixed = ["[1:1::2:2]:1", "[2:2::1:1]:2", "[1:1::2:2]:2", "[2:2::1:1]:1", "[1:1::1:1]:2"].map(at);
        std::thread::scope(|s| {
            let writer = s.spawn(|| {
                for _ in 0..50_000 {
                    table.note(a, 1);
                    table.note(b, 2);
                }
            });
            while !writer.is_finished() {
                assert!(mixed.iter().all(|m| !table.holds(*m, 3, 10)));
                // What was noted at 2 is no belief of `a`.
                assert!(!table.holds(a, 2, 1) && !table.holds(b, 3, 1));
            }
        });
    }

    #[test]
    fn an_entry_that_was_being_changed_at_a_fork_is_free() {
        let table = Beliefs::<1>::new();
        table.note(at("10.0.0.1:1"), 1);
        table.0[0].seq.fetch_add(1, Ordering::Relaxed);
        assert!(!table.holds(at("10.0.0.1:1"), 1, 10));
        table.note(at("10.0.0.1:1"), 1);
        assert!(!table.holds(at("10.0.0.1:1"), 1, 10));
        table.after_fork();
        assert!(!table.holds(at("10.0.0.1:1"), 1, 10));
        table.note(at("10.0.0.1:1"), 1);
        assert!(table.holds(at("10.0.0.1:1"), 1, 10));
    }
}
