//! The layout of the page, and how the process writes to it.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

use crate::control::Control;
use crate::counter::Counter;
use crate::link::{LinkEntry, NewLink};
use crate::reason::Reason;
use crate::rules::RulesInForce;
use crate::sock::SockEntry;

/// First word of a page that is ready to be read: "NACCSTAT" in memory.
pub const MAGIC: u64 = u64::from_ne_bytes(*b"NACCSTAT");
/// Version of the layout. Counters and reasons added at the end of their tables
/// do not change it.
///
/// Every version begins alike, so that a reader of another one can say whose page it is: magic, version, process,
/// and at bytes 56 and 120 the names of the program and of the library's release.
pub const LAYOUT_VERSION: u32 = 2;
/// Number of entries for links. Further links are counted but not shown one by one.
pub const LINK_ENTRIES: usize = 1024;
/// Number of socket entries. Higher descriptors are not shown.
pub const SOCK_ENTRIES: usize = 65536;
/// Number of slots for counters, used or not.
pub const COUNTER_SLOTS: usize = 192;
/// Number of slots for rules of the configuration file, used or not.
pub const RULE_SLOTS: usize = 64;
/// Number of slots for reasons, used or not.
pub const REASON_SLOTS: usize = 64;
/// Room for the configuration text, in bytes.
pub const CFG_CAPACITY: usize = 8192;
/// Size of the memfd in bytes.
pub const PAGE_SIZE: usize = size_of::<PageOf<[SockEntry; SOCK_ENTRIES]>>();

/// Room in bytes for the program's name.
pub const PROGRAM_LEN: usize = 64;
/// Room in bytes for the library's version.
pub const LIBRARY_LEN: usize = 32;
/// Number of unused words, which fill the header up to 256 bytes.
const HEADER_SPARE: usize = 14;
/// Number of listeners whose RDMA port can be shown. They and the counters fill the first memory page.
const RDMA_PORTS: usize = 32;

// The layout is a contract between versions: a change here is a new LAYOUT_VERSION.
const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<SockEntry>() == 256 && align_of::<SockEntry>() == 64);
    assert!(offset_of!(Head, magic) == 0 && offset_of!(Head, version) == 8);
    assert!(offset_of!(Head, program) == 56 && offset_of!(Head, library) == 120);
    assert!(offset_of!(Head, control) == 156 && size_of::<Control>() == 20);
    assert!(offset_of!(Head, in_force) == 176 && size_of::<RulesInForce>() == 24);
    assert!(offset_of!(Head, counters) == 256);
    assert!(offset_of!(Head, rules) == 256 + 8 * COUNTER_SLOTS && COUNTER_SLOTS + RULE_SLOTS == 256);
    assert!(offset_of!(Head, fallbacks) == 256 + 8 * 256);
    assert!(offset_of!(Head, promotions) == 256 + 8 * (256 + REASON_SLOTS));
    assert!(offset_of!(Head, demotions) == 256 + 8 * (256 + 2 * REASON_SLOTS));
    assert!(offset_of!(Head, cfg) == 4096);
    assert!(size_of::<LinkEntry>() == 128 && align_of::<LinkEntry>() == 64);
    assert!(offset_of!(Head, links) == 4096 + CFG_CAPACITY);
    assert!(offset_of!(PageOf<[SockEntry; SOCK_ENTRIES]>, socks) == 4096 + CFG_CAPACITY + 128 * LINK_ENTRIES);
    assert!(PAGE_SIZE == 4096 + CFG_CAPACITY + 128 * LINK_ENTRIES + 256 * SOCK_ENTRIES);
    assert!(PAGE_SIZE.is_multiple_of(4096));
};

/// The fixed part of the page.
#[derive(Debug)]
#[repr(C)]
#[allow(missing_docs, reason = "the names say what the fields are")]
pub struct Head {
    /// [`MAGIC`], which is stored last, with Release: a page without it is not ready.
    pub magic: AtomicU64,
    pub version: AtomicU32,
    pub pid: AtomicU32,
    pub page_size: AtomicU64,
    /// When the page was made: CLOCK_REALTIME in nanoseconds.
    pub start_ns: AtomicU64,
    pub sock_entries: AtomicU32,
    pub sock_entry_size: AtomicU32,
    /// How many of the counter slots the writer uses.
    pub counters_known: AtomicU32,
    /// How many of the reason slots the writer uses.
    pub reasons_known: AtomicU32,
    /// The number of bytes of `cfg` in use, stored after them with Release.
    pub cfg_len: AtomicU32,
    pub link_entries: AtomicU32,
    pub program: [AtomicU8; PROGRAM_LEN],
    pub library: [AtomicU8; LIBRARY_LEN],
    pub link_entry_size: AtomicU32,
    /// An operator's request to the process, and how far the process is with it.
    pub control: Control,
    /// The rules in force.
    pub in_force: RulesInForce,
    spare2: [AtomicU32; HEADER_SPARE],
    pub counters: [AtomicU64; COUNTER_SLOTS],
    /// How often each rule of the program decided, in the order of the lines `rule` of `cfg`.
    pub rules: [AtomicU64; RULE_SLOTS],
    /// Connections that fell back to TCP, by reason.
    pub fallbacks: [AtomicU64; REASON_SLOTS],
    /// Promotions and upgrades, by the reason that had kept the connection on TCP.
    pub promotions: [AtomicU64; REASON_SLOTS],
    /// Demotions, by reason.
    pub demotions: [AtomicU64; REASON_SLOTS],
    /// A port for RDMA in the low 16 bits and the TCP port that it stands for above them; 0: the cell is free.
    pub rdma_ports: [AtomicU64; RDMA_PORTS],
    pub cfg: [AtomicU8; CFG_CAPACITY],
    pub links: [LinkEntry; LINK_ENTRIES],
}

/// A page whose socket entries are a `T`: an array where the page is made, a slice
/// where it is used.
#[derive(Debug)]
#[repr(C)]
pub struct PageOf<T: ?Sized> {
    pub(crate) head: Head,
    pub(crate) socks: T,
}

/// The statistics page of a process; [`page`](crate::page) returns that of this process.
///
/// All fields are atomics, so threads and other processes may share the page,
/// whatever they write to it.
pub type Page = PageOf<[SockEntry]>;

impl PageOf<[SockEntry; 0]> {
    /// A page without socket entries, all zero.
    pub(crate) const fn empty() -> Self {
        Self {
            head: Head {
                magic: AtomicU64::new(0),
                version: AtomicU32::new(0),
                pid: AtomicU32::new(0),
                page_size: AtomicU64::new(0),
                start_ns: AtomicU64::new(0),
                sock_entries: AtomicU32::new(0),
                sock_entry_size: AtomicU32::new(0),
                counters_known: AtomicU32::new(0),
                reasons_known: AtomicU32::new(0),
                cfg_len: AtomicU32::new(0),
                link_entries: AtomicU32::new(0),
                program: [const { AtomicU8::new(0) }; PROGRAM_LEN],
                library: [const { AtomicU8::new(0) }; LIBRARY_LEN],
                link_entry_size: AtomicU32::new(0),
                control: Control::new(),
                in_force: RulesInForce::new(),
                spare2: [const { AtomicU32::new(0) }; HEADER_SPARE],
                counters: [const { AtomicU64::new(0) }; COUNTER_SLOTS],
                rules: [const { AtomicU64::new(0) }; RULE_SLOTS],
                fallbacks: [const { AtomicU64::new(0) }; REASON_SLOTS],
                promotions: [const { AtomicU64::new(0) }; REASON_SLOTS],
                demotions: [const { AtomicU64::new(0) }; REASON_SLOTS],
                rdma_ports: [const { AtomicU64::new(0) }; RDMA_PORTS],
                cfg: [const { AtomicU8::new(0) }; CFG_CAPACITY],
                links: [const { LinkEntry::new() }; LINK_ENTRIES],
            },
            socks: [],
        }
    }
}

/// Copies `text` into `cells`, cut so that a zero byte always ends it.
fn store_text(cells: &[AtomicU8], text: &[u8]) {
    let room = cells.len().saturating_sub(1);
    let bytes = text.iter().copied().take(room).chain(core::iter::repeat(0));
    for (cell, byte) in cells.iter().zip(bytes) {
        cell.store(byte, Relaxed);
    }
}

/// The whole lines of `text` that fit into `room` bytes.
fn whole_lines(text: &[u8], room: usize) -> &[u8] {
    let Some(head) = text.get(..room) else {
        return text;
    };
    let end = head.iter().rposition(|&b| b == b'\n').map_or(0, |at| at + 1);
    head.get(..end).unwrap_or_default()
}

impl Page {
    /// Adds one to a counter.
    #[inline]
    pub fn count(&self, counter: Counter) {
        self.add(counter, 1);
    }

    /// Adds `by` to a counter.
    #[inline]
    pub fn add(&self, counter: Counter, by: u64) {
        if let Some(cell) = self.head.counters.get(counter as usize) {
            // Relaxed: counters order nothing.
            cell.fetch_add(by, Relaxed);
        }
    }

    /// Subtracts `by` from a gauge.
    #[inline]
    pub fn sub(&self, counter: Counter, by: u64) {
        if let Some(cell) = self.head.counters.get(counter as usize) {
            cell.fetch_sub(by, Relaxed);
        }
    }

    /// Sets a gauge.
    #[inline]
    pub fn set(&self, counter: Counter, value: u64) {
        if let Some(cell) = self.head.counters.get(counter as usize) {
            cell.store(value, Relaxed);
        }
    }

    /// The value of a counter.
    #[must_use]
    pub fn value(&self, counter: Counter) -> u64 {
        let cell = self.head.counters.get(counter as usize);
        cell.map_or(0, |cell| cell.load(Relaxed))
    }

    /// Counts a connection that fell back to TCP, or stayed there, for `reason`.
    #[inline]
    pub fn fallback(&self, reason: Reason) {
        if let Some(cell) = self.head.fallbacks.get(reason as usize) {
            cell.fetch_add(1, Relaxed);
        }
    }

    /// How many connections fell back for `reason`.
    #[must_use]
    pub fn fallbacks(&self, reason: Reason) -> u64 {
        let cell = self.head.fallbacks.get(reason as usize);
        cell.map_or(0, |cell| cell.load(Relaxed))
    }

    /// Counts a listener or a connect about which the rule with this number, counted from 0, of a rule set decided,
    /// unless another set has replaced that one meanwhile.
    pub fn rule_decided(&self, set: u32, rule: usize) {
        if let Some(cell) = self.head.rules.get(rule).filter(|_| self.rules().is_in_force(set)) {
            // Relaxed: counters order nothing.
            cell.fetch_add(1, Relaxed);
        }
    }

    /// Counts a connection that switched to a faster transport, by the reason that had kept it back.
    pub fn promoted(&self, from: Reason) {
        self.count(Counter::Promotions);
        if let Some(cell) = self.head.promotions.get(from as usize) {
            cell.fetch_add(1, Relaxed);
        }
    }

    /// Counts a connection that went back to a kernel socket.
    pub fn demoted(&self, why: Reason) {
        self.count(Counter::Demotions);
        if let Some(cell) = self.head.demotions.get(why as usize) {
            cell.fetch_add(1, Relaxed);
        }
    }

    /// Stores the port at which clients find the listeners at TCP port `tcp` for RDMA; `None` removes it. If no cell is
    /// free, nothing is stored. Two threads must not call this at once.
    pub fn set_rdma_port(&self, tcp: u16, rdma: Option<u16>) {
        let cells = &self.head.rdma_ports;
        let of = |cell: &&AtomicU64| cell.load(Relaxed) >> 16 == u64::from(tcp);
        let free = |cell: &&AtomicU64| cell.load(Relaxed) == 0;
        let known = cells.iter().find(of).filter(|_| tcp != 0);
        let cell = match rdma {
            Some(_) => known.or_else(|| cells.iter().find(free)),
            None => known,
        };
        if let Some(cell) = cell {
            cell.store(rdma.map_or(0, |rdma| u64::from(tcp) << 16 | u64::from(rdma)), Relaxed);
        }
    }

    /// Takes an entry for a link and returns its place; `None` if all entries are taken.
    pub fn open_link(&self, link: &NewLink) -> Option<u32> {
        // Without a mapped page no tool can read an entry.
        if self.socks.is_empty() {
            return None;
        }
        let first = link.id as usize % LINK_ENTRIES;
        let place = |step: usize| (first + step) % LINK_ENTRIES;
        let free = |at: &usize| self.head.links.get(*at).is_some_and(|entry| entry.open(link));
        (0..LINK_ENTRIES).map(place).find(free).and_then(|at| u32::try_from(at).ok())
    }

    /// The entry of a link, by its place.
    #[inline]
    #[must_use]
    pub fn link(&self, place: u32) -> Option<&LinkEntry> {
        self.head.links.get(place as usize)
    }

    /// The number of connection slots in use now, of links with an entry and of the others. Queue pairs are left out,
    /// failed ones too, since their connections have their slots in links of shared memory.
    #[must_use]
    pub fn slots_in_use(&self) -> u64 {
        let of_qp = |link: &LinkEntry| link.is_rdma() || link.is_failed_over();
        let links = self.head.links.iter().filter(|link| link.is_open() && !of_qp(link));
        let entries = links.map(|link| u64::from(link.in_use()));
        entries.fold(self.value(Counter::SlotsInUse), u64::wrapping_add)
    }

    /// Publishes the effective configuration: lines of `KEY\tVALUE\tSOURCE`.
    ///
    /// Lines that do not fit into [`CFG_CAPACITY`] bytes are left out. Two threads must
    /// not call this at once.
    pub fn set_cfg(&self, text: &[u8]) {
        // A reader that comes in between sees no text rather than a mixture.
        self.head.cfg_len.store(0, Release);
        let text = whole_lines(text, CFG_CAPACITY);
        for (cell, byte) in self.head.cfg.iter().zip(text) {
            cell.store(*byte, Relaxed);
        }
        // Release: the length is seen only with the text complete. The cut above
        // keeps it within CFG_CAPACITY.
        self.head.cfg_len.store(u32::try_from(text.len()).unwrap_or(0), Release);
    }

    /// The rules in force, and the answer to the last request to load them anew.
    #[must_use]
    pub fn rules(&self) -> &RulesInForce {
        &self.head.in_force
    }

    /// Replaces the rule set by the one with the number `set`, which `replace` puts in force, and sets the counts of
    /// its rules to 0. `cfg` is the new text for [`set_cfg`](Self::set_cfg). Two threads must not call this at once.
    pub fn replace_rules(&self, set: u32, now_ns: u64, cfg: &[u8], replace: impl FnOnce()) {
        self.rules().begin(set);
        for count in &self.head.rules {
            count.store(0, Relaxed);
        }
        // Decisions of the new set may be counted from here on.
        replace();
        self.set_cfg(cfg);
        self.rules().end(set, now_ns);
    }

    /// The words of an operator's request.
    #[inline]
    #[must_use]
    pub fn control(&self) -> &Control {
        &self.head.control
    }

    /// The entry of a descriptor: `None` before [`init`](crate::init), and for
    /// numbers of [`SOCK_ENTRIES`] and above.
    #[inline]
    #[must_use]
    pub fn sock(&self, fd: i32) -> Option<&SockEntry> {
        self.socks.get(usize::try_from(fd).ok()?)
    }

    /// The process that the page is of, or 0 before [`init`](crate::init). In a child that has the memory of its parent
    /// this is the parent.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.head.pid.load(Relaxed)
    }

    /// Fills the header of a fresh page and declares it ready.
    pub(crate) fn publish(&self, program: &[u8], pid: u32, start_ns: u64) {
        store_text(&self.head.program, program);
        self.publish_inherited(pid, start_ns);
    }

    /// Publishes the page like [`publish`](Self::publish), with the program name already stored.
    pub(crate) fn publish_inherited(&self, pid: u32, start_ns: u64) {
        let head = &self.head;
        head.version.store(LAYOUT_VERSION, Relaxed);
        head.pid.store(pid, Relaxed);
        head.page_size.store(PAGE_SIZE as u64, Relaxed);
        head.start_ns.store(start_ns, Relaxed);
        // The casts are lossless: all sizes are far below 2^32.
        head.sock_entries.store(SOCK_ENTRIES as u32, Relaxed);
        head.sock_entry_size.store(size_of::<SockEntry>() as u32, Relaxed);
        head.link_entries.store(LINK_ENTRIES as u32, Relaxed);
        head.link_entry_size.store(size_of::<LinkEntry>() as u32, Relaxed);
        head.counters_known.store(Counter::ALL.len() as u32, Relaxed);
        head.reasons_known.store(Reason::ALL.len() as u32, Relaxed);
        head.control.publish();
        store_text(&head.library, env!("CARGO_PKG_VERSION").as_bytes());
        // Release: a reader that sees the magic sees the header.
        head.magic.store(MAGIC, Release);
    }

    /// Marks the page as one that no longer belongs to a process. A reader that still has the file open then looks for the
    /// process's new page.
    pub fn retire(&self) {
        self.head.pid.store(0, Relaxed);
    }

    /// Adds the counts of the page `from`.
    pub(crate) fn take_counts(&self, from: &Self) {
        let pairs = self.head.counters.iter().zip(&from.head.counters);
        let reasons = self.head.fallbacks.iter().zip(&from.head.fallbacks);
        let promotions = self.head.promotions.iter().zip(&from.head.promotions);
        let demotions = self.head.demotions.iter().zip(&from.head.demotions);
        let rules = self.head.rules.iter().zip(&from.head.rules);
        for (to, from) in pairs.chain(rules).chain(reasons).chain(promotions).chain(demotions) {
            // Nearly all are 0, and an addition takes ten times as long as the comparison.
            let count = from.load(Relaxed);
            if count != 0 {
                to.fetch_add(count, Relaxed);
            }
        }
    }

    /// Takes the program's name, the configuration and the entries of `fds` from
    /// the page of the process that forked.
    pub(crate) fn inherit(&self, from: &Self, fds: impl IntoIterator<Item = i32>) {
        for (to, from) in self.head.program.iter().zip(&from.head.program) {
            to.store(from.load(Relaxed), Relaxed);
        }
        let len = from.head.cfg_len.load(Acquire);
        // No more than there is, since each page of memory that is touched for the first time costs a page fault.
        for (to, from) in self.head.cfg.iter().zip(&from.head.cfg).take(len as usize) {
            to.store(from.load(Relaxed), Relaxed);
        }
        self.head.cfg_len.store(len, Release);
        self.rules().inherit(from.rules());
        for fd in fds {
            if let (Some(to), Some(from)) = (self.sock(fd), from.sock(fd)) {
                to.inherit(from);
            }
        }
    }
}
