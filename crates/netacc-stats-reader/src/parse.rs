//! Decodes bytes into a [`Snapshot`]. Any bytes are accepted; nothing in them is trusted.

use core::mem::offset_of;

use crate::error::Error;
use crate::source::Source;
use crate::{CfgLine, Control, DeviceName, Known, Link, Moved, QueuePair, Snapshot, Sock, Volume};
use netacc_stats::layout::{Head, LIBRARY_LEN, PROGRAM_LEN, link, rule_of, rules, sock as at};
use netacc_stats::{
    CFG_CAPACITY, COUNTER_SLOTS, Counter, LAYOUT_VERSION, LINK_ENTRIES, LinkEntry, LinkKind, MAGIC, PAGE_SIZE,
    REASON_SLOTS, RULE_SLOTS, Reason, SOCK_ENTRIES, SockAddr, SockEntry, State, Transport,
};

const ENTRY: usize = size_of::<SockEntry>();
const LINK: usize = size_of::<LinkEntry>();
/// The number of bytes with which every version of the page begins alike (see [`LAYOUT_VERSION`]).
const INTRO: usize = 256;
const SOCKS_AT: u64 = size_of::<Head>() as u64;
/// The number of socket entries that one read copies.
const BATCH: usize = 512;
/// How often an entry that changes while it is read is read again.
const RETRIES: usize = 8;
/// How often the fixed part is read until no rules are replaced meanwhile.
const ATTEMPTS: usize = 40;

fn bytes<const N: usize>(from: &[u8], at: usize) -> [u8; N] {
    let piece = from.get(at..).and_then(|rest| rest.first_chunk::<N>());
    piece.copied().unwrap_or([0; N])
}

fn u16_at(from: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes(bytes(from, at))
}

fn u32_at(from: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes(from, at))
}

fn u64_at(from: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes(from, at))
}

/// Text that can be shown on a terminal, whatever bytes the process stored.
pub(super) fn text(raw: &[u8]) -> String {
    clean(&String::from_utf8_lossy(raw))
}

/// A foreign text (a name of a file, a driver or a host, what a peer says) with everything escaped that could move the
/// cursor, forge a line or change the direction of what follows.
#[must_use]
pub fn clean(text: &str) -> String {
    let plain = |c: char| {
        !c.is_control() && !matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.chars().map(|c| if plain(c) { c.to_string() } else { c.escape_default().to_string() }).collect()
}

/// The text at `at`, up to its first zero.
fn text_at<const N: usize>(from: &[u8], at: usize) -> String {
    let raw: [u8; N] = bytes(from, at);
    text(raw.split(|&b| b == 0).next().unwrap_or_default())
}

/// The words from `at` on: `known` of them, but at most `slots`.
fn words(from: &[u8], at: usize, known: u32, slots: usize) -> Vec<u64> {
    let used = usize::try_from(known).map_or(slots, |known| known.min(slots));
    (0..used).map(|slot| u64_at(from, at + slot * 8)).collect()
}

/// Copies and checks a whole page.
pub(super) fn snapshot(source: &impl Source) -> Result<Snapshot, Error> {
    let len = source.len().map_err(Error::Io)?;
    let mut head = vec![0; size_of::<Head>()];
    // The words that identify the layout are read first, since a page of another
    // layout may have another length.
    let said = usize::try_from(len).unwrap_or(usize::MAX).min(INTRO);
    let intro = head.get_mut(..said).unwrap_or_default();
    source.read(0, intro).map_err(|_| Error::Truncated(len))?;
    if said < offset_of!(Head, page_size) {
        return Err(Error::Truncated(len));
    }
    match u64_at(intro, offset_of!(Head, magic)) {
        MAGIC => {}
        0 => return Err(Error::Starting),
        _ => return Err(Error::Corrupt("it does not begin as one")),
    }
    match u32_at(intro, offset_of!(Head, version)) {
        LAYOUT_VERSION => {}
        0 => return Err(Error::Corrupt("unknown layout")),
        found => {
            return Err(Error::Layout { found, library: text_at::<LIBRARY_LEN>(intro, offset_of!(Head, library)) });
        }
    }
    if len < PAGE_SIZE as u64 {
        return Err(Error::Truncated(len));
    }
    let shortened = |_| Error::Truncated(source.len().unwrap_or(0));
    read_head(source, &mut head).map_err(shortened)?;
    if u64_at(&head, offset_of!(Head, page_size)) != PAGE_SIZE as u64
        || u32_at(&head, offset_of!(Head, sock_entries)) as usize != SOCK_ENTRIES
        || u32_at(&head, offset_of!(Head, sock_entry_size)) as usize != ENTRY
        || u32_at(&head, offset_of!(Head, link_entries)) as usize != LINK_ENTRIES
        || u32_at(&head, offset_of!(Head, link_entry_size)) as usize != LINK
    {
        return Err(Error::Corrupt("its sizes are not those of its layout"));
    }
    let reasons_known = u32_at(&head, offset_of!(Head, reasons_known));
    let by_reason = |at| words(&head, at, reasons_known, REASON_SLOTS);
    let links = links(&head);
    let mut counters =
        words(&head, offset_of!(Head, counters), u32_at(&head, offset_of!(Head, counters_known)), COUNTER_SLOTS);
    // The counter has only the slots of links without an entry; those of the entries are added.
    if let Some(slots) = counters.get_mut(Counter::SlotsInUse as usize) {
        let shm = links.iter().filter(|link| link.qp.is_none());
        *slots = shm.fold(*slots, |sum, link| sum.wrapping_add(u64::from(link.in_use)));
    }
    let mut page = Snapshot {
        pid: u32_at(&head, offset_of!(Head, pid)),
        program: text_at::<PROGRAM_LEN>(&head, offset_of!(Head, program)),
        library_version: text_at::<LIBRARY_LEN>(&head, offset_of!(Head, library)),
        start_ns: u64_at(&head, offset_of!(Head, start_ns)),
        counters,
        fallbacks: by_reason(offset_of!(Head, fallbacks)),
        promotions: by_reason(offset_of!(Head, promotions)),
        demotions: by_reason(offset_of!(Head, demotions)),
        rules: words(&head, offset_of!(Head, rules), u32::MAX, RULE_SLOTS),
        control: Control::parse(head.get(offset_of!(Head, control)..).unwrap_or_default()),
        cfg: cfg(&head),
        links,
        rdma_ports: rdma_ports(&head),
        socks: Vec::new(),
        moved: Moved::default(),
    };
    socks(source, &mut page).map_err(shortened)?;
    Ok(page)
}

/// Reads the fixed part of a page, again if the process was replacing its rules meanwhile: their texts and counts
/// belong together.
fn read_head(source: &impl Source, head: &mut [u8]) -> std::io::Result<()> {
    const AT: usize = offset_of!(Head, in_force) + rules::VERSION;
    for _ in 0..ATTEMPTS {
        source.read(0, head)?;
        let version = u32_at(head, AT);
        let mut now = [0; 4];
        source.read(AT as u64, &mut now)?;
        if version.is_multiple_of(2) && version == u32::from_ne_bytes(now) {
            break;
        }
        // A process that is stopped while it does that is shown as it is.
        std::thread::sleep(std::time::Duration::from_micros(50));
    }
    Ok(())
}

fn rdma_ports(head: &[u8]) -> Vec<(u16, u16)> {
    let area = head.get(offset_of!(Head, rdma_ports)..offset_of!(Head, cfg)).unwrap_or_default();
    let cells = area.chunks_exact(8).map(|cell| u64_at(cell, 0)).filter(|cell| *cell != 0);
    // A cell has two ports of 16 bits each.
    cells.map(|cell| ((cell >> 16) as u16, cell as u16)).collect()
}

/// The links in use, in the order of their numbers.
fn links(head: &[u8]) -> Vec<Link> {
    let area = head.get(offset_of!(Head, links)..).unwrap_or_default();
    let entries = area.chunks_exact(LINK).take(LINK_ENTRIES);
    let mut found: Vec<Link> = entries
        .filter(|entry| !matches!(u32_at(entry, link::ID), 0 | LinkEntry::TAKEN))
        .map(|entry| {
            let conns = u64_at(entry, link::CONNS);
            let kind = Known::new(u32_at(entry, link::KIND), LinkKind::from_u32);
            Link {
                id: u32_at(entry, link::ID),
                kind,
                server: u32_at(entry, link::SERVER) & 1 != 0,
                peer_pid: u32_at(entry, link::PEER_PID),
                opened_ns: u64_at(entry, link::OPENED),
                idle_ns: u64_at(entry, link::IDLE),
                expires_ns: u64_at(entry, link::EXPIRES),
                in_use: conns as u32,
                ever: (conns >> 32) as u32,
                capacity: u32_at(entry, link::CAPACITY),
                address: u64_at(entry, link::ADDRESS),
                qp: matches!(kind.get(), Some(LinkKind::Rdma | LinkKind::Tcp)).then(|| queue_pair(entry)),
            }
        })
        .collect();
    found.sort_by_key(|link| link.id);
    found
}

fn address(entry: &[u8], cell: usize) -> SockAddr {
    SockAddr {
        family: u16_at(entry, cell),
        port: u16_at(entry, cell + at::ADDR_PORT),
        ip: bytes(entry, cell + at::ADDR_IP),
    }
}

fn queue_pair(entry: &[u8]) -> QueuePair {
    let credits = u32_at(entry, link::CREDITS);
    QueuePair {
        // A queue pair's number has 24 bits.
        number: u64_at(entry, link::ADDRESS) as u32,
        thread: (u32_at(entry, link::SERVER) >> netacc_stats::layout::THREAD) as u16,
        device: DeviceName(bytes(entry, link::DEVICE)),
        peer: address(entry, link::PEER),
        credits: credits as u16,
        receives: (credits >> 16) as u16,
        posted: u64_at(entry, link::POSTED),
        completed: u64_at(entry, link::COMPLETED),
        received: u64_at(entry, link::RECEIVED),
    }
}

fn cfg(head: &[u8]) -> Vec<CfgLine> {
    let claimed = u32_at(head, offset_of!(Head, cfg_len)) as usize;
    let area = head.get(offset_of!(Head, cfg)..).unwrap_or_default();
    let used = area.get(..claimed.min(CFG_CAPACITY)).unwrap_or_default();
    let lines = used.split(|&b| b == b'\n').filter(|line| !line.is_empty());
    lines
        .map(|line| {
            let mut fields = line.splitn(3, |&b| b == b'\t').map(text);
            let mut next = || fields.next().unwrap_or_default();
            CfgLine { key: next(), value: next(), source: next() }
        })
        .collect()
}

/// Reads every entry in use, in the order of the descriptors, and sums up the volumes of all entries.
fn socks(source: &impl Source, page: &mut Snapshot) -> std::io::Result<()> {
    let end = SOCKS_AT + (SOCK_ENTRIES * ENTRY) as u64;
    let mut batch = vec![0; BATCH * ENTRY];
    let mut next = SOCKS_AT;
    while let Some(data) = source.next_data(next, end) {
        // Whole entries are read, even if a stretch of data begins or ends within one.
        let mut index = (data.start.max(SOCKS_AT) - SOCKS_AT) / ENTRY as u64;
        let stop = (data.end.min(end) - SOCKS_AT).div_ceil(ENTRY as u64);
        while index < stop {
            let many = usize::try_from(stop - index).unwrap_or(BATCH).min(BATCH);
            let piece = batch.get_mut(..many * ENTRY).unwrap_or_default();
            source.read(SOCKS_AT + index * ENTRY as u64, piece)?;
            for (entry, fd) in piece.chunks_exact(ENTRY).zip(index..) {
                if entry.iter().all(|byte| *byte == 0) {
                    continue;
                }
                let (seen, moved) = sock(source, fd, entry, page.control.rules_version)?;
                page.moved = page.moved.plus(moved);
                if seen.state != Known::Is(State::Closed) {
                    page.socks.push(seen);
                }
            }
            index += many as u64;
        }
        next = data.end.max(SOCKS_AT + stop * ENTRY as u64);
    }
    Ok(())
}

/// Decodes one entry, and the volume that its descriptor has moved since the process began. The entry is read again if
/// it changes meanwhile.
///
/// A process may be stopped in the middle of a change, so after [`RETRIES`] reads
/// the addresses are returned as unknown.
fn sock(source: &impl Source, fd: u64, first: &[u8], rules_version: u32) -> std::io::Result<(Sock, Moved)> {
    let offset = SOCKS_AT + fd * ENTRY as u64;
    let mut entry: [u8; ENTRY] = bytes(first, 0);
    let mut steady = false;
    for _ in 0..RETRIES {
        let seq = u32_at(&entry, at::ADDR_SEQ);
        let mut now = [0; 4];
        source.read(offset + at::ADDR_SEQ as u64, &mut now)?;
        steady = seq.is_multiple_of(2) && seq == u32::from_ne_bytes(now);
        if steady {
            break;
        }
        std::thread::yield_now();
        source.read(offset, &mut entry)?;
    }
    let addr = |at: usize| if steady { address(&entry, at) } else { SockAddr::default() };
    let seen = Sock {
        fd: u32::try_from(fd).unwrap_or(u32::MAX),
        state: Known::new(u32_at(&entry, at::STATE), State::from_u32),
        transport: Known::new(u32_at(&entry, at::TRANSPORT), Transport::from_u32),
        reason: Known::new(u32_at(&entry, at::REASON), Reason::from_u32),
        local: addr(at::LOCAL),
        peer: addr(at::PEER),
        peer_pid: u32_at(&entry, at::PEER_PID),
        rule: rule_of(u32_at(&entry, at::RULE), rules_version),
        link: u64_at(&entry, at::LINK),
        since_ns: u64_at(&entry, at::SINCE),
        msgs_in: u64_at(&entry, at::MSGS_IN),
        bytes_in: u64_at(&entry, at::BYTES_IN),
        msgs_out: u64_at(&entry, at::MSGS_OUT),
        bytes_out: u64_at(&entry, at::BYTES_OUT),
    };
    let past = |at: usize| Volume {
        msgs_in: u64_at(&entry, at),
        bytes_in: u64_at(&entry, at + 8),
        msgs_out: u64_at(&entry, at + 16),
        bytes_out: u64_at(&entry, at + 24),
    };
    let mut moved = Moved { tcp: past(at::PAST_TCP), shm: past(at::PAST_SHM), rdma: past(at::PAST_RDMA) };
    let last = match seen.transport.get() {
        Some(Transport::Shm) => &mut moved.shm,
        Some(Transport::Rdma) => &mut moved.rdma,
        Some(Transport::Tcp | Transport::None) | None => &mut moved.tcp,
    };
    *last = last.plus(seen.volume());
    Ok((seen, moved))
}
