//! Tests that the reader finds what the writer stored.

use std::sync::{Mutex, MutexGuard};

use netacc_stats::{Counter, LINK_ENTRIES, LinkKind, NewLink, Reason, SOCK_ENTRIES, SockAddr, State, Transport};
use netacc_stats_reader::{self as reader, Error, Snapshot, Volume};

/// Serialises the tests that replace the page, of which a process has only one.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(|broken| broken.into_inner())
}

fn own() -> u32 {
    std::process::id()
}

#[test]
fn everything_written_is_read() {
    let _turn = turn();
    let page = netacc_stats::init(b"redis-server", own()).map(|fd| (netacc_stats::page(), fd));
    let (page, _fd) = page.unwrap();
    page.count(Counter::ConnectsShm);
    page.add(Counter::SlotsInUse, 5);
    page.sub(Counter::SlotsInUse, 2);
    page.fallback(Reason::PeerPlain);
    page.set_cfg(b"NACC_LOG_LEVEL\t3\tdefault\nNACC_LOG_PATH\t/tmp/a\tb\t\x1b[31m\n");
    let entry = page.sock(9).unwrap();
    entry.open(State::Established, Transport::Shm, Reason::None, 123);
    let local = SockAddr::v4([127, 0, 0, 1], 6379);
    let peer = SockAddr::v6([7; 16], 40000);
    entry.set_addrs(&local, &peer);
    entry.set_peer_pid(77);
    entry.set_link(3);
    entry.received(100);
    entry.received(1);
    entry.sent(5);
    // The last entry lies at the very end of the page.
    let last = page.sock(SOCK_ENTRIES as i32 - 1).unwrap();
    last.open(State::New, Transport::None, Reason::TcpFirst, 124);

    let seen = reader::open(own()).unwrap();
    assert_eq!(seen.pid, own());
    assert_eq!(seen.program, "redis-server");
    assert_eq!(seen.library_version, env!("CARGO_PKG_VERSION"));
    assert!(seen.start_ns > 1_600_000_000_000_000_000);
    assert_eq!(seen.counters.len(), Counter::ALL.len());
    assert_eq!(seen.counter(Counter::ConnectsShm), 1);
    assert_eq!(seen.counter(Counter::SlotsInUse), 3);
    assert_eq!(seen.fallback(Reason::PeerPlain), 1);
    assert_eq!(seen.fallback(Reason::OtherHost), 0);
    assert_eq!(seen.cfg.len(), 2);
    assert_eq!((&*seen.cfg[0].key, &*seen.cfg[0].value), ("NACC_LOG_LEVEL", "3"));
    assert_eq!(seen.cfg[1].source, "b\\t\\u{1b}[31m");
    let fds: Vec<u32> = seen.socks.iter().map(|sock| sock.fd).collect();
    assert_eq!(fds, [9, SOCK_ENTRIES as u32 - 1]);
    let sock = seen.socks[0];
    assert_eq!(sock.state.get(), Some(State::Established));
    assert_eq!(sock.transport.get(), Some(Transport::Shm));
    assert_eq!((sock.local, sock.peer), (local, peer));
    assert_eq!((sock.peer_pid, sock.link, sock.since_ns), (77, 3, 123));
    assert_eq!((sock.msgs_in, sock.bytes_in), (2, 101));
    assert_eq!((sock.msgs_out, sock.bytes_out), (1, 5));
    assert_eq!(seen.socks[1].reason.get(), Some(Reason::TcpFirst));

    entry.close();
    assert_eq!(reader::open(own()).unwrap().socks.len(), 1);
    entry.open(State::New, Transport::None, Reason::None, 125);
    let seen = reader::open(own()).unwrap();
    // The totals keep the volume of the socket before.
    assert_eq!(seen.moved.shm, Volume { msgs_in: 2, bytes_in: 101, msgs_out: 1, bytes_out: 5 });
    assert_eq!(seen.moved.tcp, Volume::default());
    let again = seen.socks[0];
    assert_eq!((again.msgs_in, again.bytes_out, again.peer_pid), (0, 0, 0));
    assert_eq!(again.peer, SockAddr::default());
    let listing = reader::list_processes().unwrap();
    assert!(listing.processes.iter().any(|found| found.pid == own()));
}

#[test]
fn a_connection_that_moves_leaves_its_bytes_where_they_went() {
    let _turn = turn();
    let fd = netacc_stats::init(b"x", own()).unwrap();
    let entry = netacc_stats::page().sock(4).unwrap();
    let seen = || reader::read_fd(&fd).unwrap();
    let volume = |msgs_in, bytes_in, bytes_out| Volume { msgs_in, bytes_in, msgs_out: 1, bytes_out };
    entry.open(State::Established, Transport::Tcp, Reason::TcpFirst, 1);
    entry.received(10);
    entry.sent(1);
    entry.set_transport(Transport::Shm);
    assert_eq!((seen().moved.tcp, seen().moved.shm), (volume(1, 10, 1), Volume::default()));
    entry.received(100);
    entry.sent(1000);
    assert_eq!((seen().moved.tcp, seen().moved.shm), (volume(1, 10, 1), volume(1, 100, 1000)));
    // The connection goes back to TCP and is closed: nothing is lost, and the socket itself shows all bytes.
    entry.set_transport(Transport::Tcp);
    entry.received(7);
    assert_eq!(seen().socks[0].bytes_in, 117);
    entry.close();
    assert_eq!((seen().moved.tcp, seen().moved.shm), (volume(2, 17, 1), volume(1, 100, 1000)));
    // The descriptor is used again.
    entry.open(State::Established, Transport::Shm, Reason::None, 2);
    entry.received(1);
    assert_eq!((seen().moved.tcp, seen().moved.shm), (volume(2, 17, 1), volume(2, 101, 1000)));
}

#[test]
fn ports_for_rdma_come_and_go() {
    let _turn = turn();
    let fd = netacc_stats::init(b"x", own()).unwrap();
    let page = netacc_stats::page();
    for tcp in 1..=40 {
        page.set_rdma_port(tcp, Some(tcp + 20_000));
    }
    let seen = || reader::read_fd(&fd).unwrap();
    assert_eq!((seen().rdma_ports.len(), seen().rdma_port(32), seen().rdma_port(33)), (32, Some(20_032), None));
    page.set_rdma_port(7, None);
    page.set_rdma_port(50, None);
    page.set_rdma_port(8, Some(9));
    page.set_rdma_port(33, Some(1));
    assert_eq!([7, 8, 33, 50].map(|tcp| seen().rdma_port(tcp)), [None, Some(9), Some(1), None]);
}

#[test]
fn links_have_entries_while_there_is_room() {
    let _turn = turn();
    let fd = netacc_stats::init(b"x", own()).unwrap();
    let page = netacc_stats::page();
    let link = |id| NewLink {
        id,
        kind: LinkKind::Shm,
        server: false,
        peer_pid: id + 1,
        now_ns: 5,
        capacity: 511,
        address: 4096,
    };
    let places: Vec<u32> = (1..=LINK_ENTRIES as u32).map(|id| page.open_link(&link(id)).unwrap()).collect();
    assert_eq!(page.open_link(&link(5000)), None);
    let entry = page.link(places[6]).unwrap();
    entry.taken();
    entry.taken();
    assert!(!entry.left());
    page.count(Counter::SlotsInUse);
    let seen = reader::read_fd(&fd).unwrap();
    assert_eq!(seen.links.len(), LINK_ENTRIES);
    let found = seen.links[6];
    assert_eq!((found.id, found.peer_pid, found.in_use, found.ever, found.idle_ns), (7, 8, 1, 2, 5));
    assert_eq!(seen.counter(Counter::SlotsInUse), 2, "with that of the link without an entry");
    assert!(entry.left());
    entry.idle_since(9);
    // Only the link that has the entry frees it.
    entry.close(8);
    assert_eq!(reader::read_fd(&fd).unwrap().links[6].idle_ns, 9);
    entry.close(7);
    assert_eq!(page.open_link(&link(5000)), Some(places[6]));
}

#[test]
fn queue_pairs_tell_what_links_have_not() {
    let _turn = turn();
    let fd = netacc_stats::init(b"x", own()).unwrap();
    let page = netacc_stats::page();
    let new =
        NewLink { id: 3, kind: LinkKind::Rdma, server: false, peer_pid: 0, now_ns: 5, capacity: 4, address: 0x1234 };
    let place = page.open_link(&new).unwrap();
    let entry = page.link(place).unwrap();
    let peer = SockAddr::v4([10, 0, 0, 2], 26379);
    // The name is longer than its field, so it is cut.
    entry.lead_to("a-device-with-a-long-name", &peer);
    entry.set_credits(3, 4);
    entry.carried_by(63);
    entry.posted(2);
    entry.completed(1);
    entry.received();
    entry.taken();
    entry.expires_at(77);
    assert_eq!(entry.id(), 3);
    let seen = reader::read_fd(&fd).unwrap();
    assert_eq!(seen.links[0].expires_ns, 77);
    let qp = seen.links[0].qp.unwrap();
    assert_eq!((qp.thread, seen.links[0].server), (63, false));
    assert_eq!((qp.number, qp.device.to_string().as_str(), qp.peer), (0x1234, "a-device-with-a-", peer));
    assert_eq!((qp.credits, qp.receives, qp.posted, qp.completed, qp.received), (3, 4, 2, 1, 1));
    // The connection of a queue pair has its slot in a link, and is counted there.
    assert_eq!((seen.counter(Counter::SlotsInUse), page.slots_in_use()), (0, 0));
    // A queue pair that has failed keeps its connections, which are still counted in the link.
    entry.set_kind(LinkKind::Tcp);
    let seen = reader::read_fd(&fd).unwrap();
    assert_eq!((seen.counter(Counter::SlotsInUse), page.slots_in_use()), (0, 0));
    // The next link or queue pair in this entry finds no value of this one.
    entry.close(3);
    assert_eq!(entry.id(), 0);
    page.open_link(&NewLink { kind: LinkKind::Shm, ..new }).unwrap();
    assert!(reader::read_fd(&fd).unwrap().links[0].qp.is_none());
    entry.close(3);
    page.open_link(&new).unwrap();
    let qp = reader::read_fd(&fd).unwrap().links[0].qp.unwrap();
    assert_eq!((qp.device.to_string().as_str(), qp.peer, qp.posted), ("", SockAddr::default(), 0));
}

#[test]
fn descriptors_outside_the_table_have_no_entry() {
    let _turn = turn();
    let _fd = netacc_stats::init(b"x", own()).unwrap();
    let page = netacc_stats::page();
    assert!(page.sock(-1).is_none());
    assert!(page.sock(i32::MAX).is_none());
    assert!(page.sock(SOCK_ENTRIES as i32).is_none());
}

#[test]
fn long_texts_are_cut_where_they_can_be() {
    let _turn = turn();
    let fd = netacc_stats::init(&[b'p'; 500], own()).unwrap();
    let line = b"KEY\tVALUE\tSOURCE\n";
    let text: Vec<u8> = line.iter().copied().cycle().take(line.len() * 1000).collect();
    netacc_stats::page().set_cfg(&text);
    let seen = reader::read_fd(&fd).unwrap();
    assert_eq!(seen.program, "p".repeat(63));
    assert_eq!(seen.cfg.len(), netacc_stats::CFG_CAPACITY / line.len());
    assert!(seen.cfg.iter().all(|line| line.source == "SOURCE"));
    netacc_stats::page().set_cfg(&[b'x'; 10_000]);
    assert!(reader::read_fd(&fd).unwrap().cfg.is_empty());
}

#[test]
fn a_forked_child_counts_apart() {
    let _turn = turn();
    let parents = netacc_stats::init(b"postgres", own()).unwrap();
    let page = netacc_stats::page();
    page.set_cfg(b"K\tV\tfile\n");
    page.count(Counter::Forks);
    for fd in [4, 5] {
        let entry = page.sock(fd).unwrap();
        entry.open(State::Established, Transport::Tcp, Reason::Fork, 9);
        entry.set_addrs(&SockAddr::v4([10, 0, 0, 1], 1), &SockAddr::v4([10, 0, 0, 2], 2));
        entry.received(10);
    }
    // This is what a child does; the mapping behind `page` changes.
    let child = netacc_stats::reinit_after_fork(4_000_000_001, [5, -1, i32::MAX]).unwrap();
    page.count(Counter::Sleeps);
    page.sock(5).unwrap().sent(7);

    let old = reader::read_fd(&parents).unwrap();
    assert_eq!((old.pid, old.counter(Counter::Forks), old.counter(Counter::Sleeps)), (own(), 1, 0));
    assert_eq!(old.socks.len(), 2);
    assert_eq!(old.socks[1].bytes_out, 0);

    let new = reader::read_fd(&child).unwrap();
    assert_eq!((new.pid, &*new.program), (4_000_000_001, "postgres"));
    assert_eq!((new.counter(Counter::Forks), new.counter(Counter::Sleeps)), (0, 1));
    assert_eq!(new.cfg, old.cfg);
    assert_eq!(new.socks.len(), 1);
    let sock: reader::Sock = new.socks[0];
    assert_eq!((sock.fd, sock.bytes_in, sock.bytes_out), (5, 0, 7));
    assert_eq!(sock.peer, SockAddr::v4([10, 0, 0, 2], 2));
    assert_eq!(sock.reason.get(), Some(Reason::Fork));

    // Only the page of another process can be found now, as just after a fork.
    drop(parents);
    assert!(matches!(reader::open(own()), Err(Error::Inherited(4_000_000_001))));
}

#[test]
fn untouched_memory_costs_nothing() {
    let _turn = turn();
    let fd = netacc_stats::init(b"x", own()).unwrap();
    netacc_stats::page().sock(60_000).unwrap().open(State::New, Transport::None, Reason::None, 1);
    reader::read_fd(&fd).unwrap();
    let blocks = rustix::fs::fstat(&fd).unwrap().st_blocks;
    assert!(blocks * 512 <= 5 * 4096, "{blocks} blocks of 512 bytes are in use");
}

#[test]
fn nobody_can_shorten_the_page() {
    let _turn = turn();
    let fd = netacc_stats::init(b"x", own()).unwrap();
    assert_eq!(rustix::fs::ftruncate(&fd, 0), Err(rustix::io::Errno::PERM));
}

#[test]
fn errors_say_what_is_the_matter() {
    let _turn = turn();
    let error = |pid| -> Error { reader::open(pid).map(|seen: Snapshot| seen.pid).unwrap_err() };
    assert!(matches!(error(u32::MAX), Error::NoProcess));
    let mut plain = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    // Between fork and exec the child still has this process's descriptors.
    let found = loop {
        match error(plain.id()) {
            Error::Inherited(_) => std::thread::yield_now(),
            other => break other,
        }
    };
    assert!(matches!(found, Error::NotAccelerated));
    plain.kill().unwrap();
    while !matches!(error(plain.id()), Error::Exited) {
        std::thread::yield_now();
    }
    plain.wait().unwrap();
    assert!(matches!(error(plain.id()), Error::NoProcess));
}

#[test]
fn addresses_are_never_mixed() {
    let _turn = turn();
    let fd = netacc_stats::init(b"x", own()).unwrap();
    let entry = netacc_stats::page().sock(3).unwrap();
    entry.open(State::Established, Transport::Tcp, Reason::None, 1);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut n = 0u8;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                n = n.wrapping_add(1);
                let addr = SockAddr::v6([n; 16], u16::from(n));
                entry.set_addrs(&addr, &addr);
            }
        });
        for _ in 0..2000 {
            let sock = reader::read_fd(&fd).unwrap().socks[0];
            assert_eq!(sock.local, sock.peer);
            assert!(sock.local.ip.iter().all(|b| u16::from(*b) == sock.local.port));
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}
