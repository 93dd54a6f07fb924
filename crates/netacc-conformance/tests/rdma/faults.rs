//! Queue pairs whose devices have faults: every byte arrives, nothing hangs, and the connection goes on where it should.
//!
//! Each test chooses its faults and runs [`exchange`] with them, in a process and a world of its own.

use crate::remote::connect_two;
use crate::rest::{self, queue_pairs};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use netacc_conformance::chance::{self, Chance};
use netacc_conformance::ends::*;
use netacc_conformance::world::{self, DEVICES};
use netacc_fabric::device::Page;
use netacc_sys::{Errno, raw, time};
use netacc_transport::{Endpoint, Shut};
use std::thread;

/// What the faults of a test lead to.
#[derive(Clone, Copy, Debug)]
enum Expect {
    /// The queue pairs carry all of it.
    Rdma,
    /// All queue pairs fail, and the connections go on by their companions.
    Failover,
}

/// A test's faults, and what is sent meanwhile.
#[derive(Clone, Debug)]
struct Plan {
    /// Faults that are there before the first message: `DEVICE.WORD=VALUE`, with a space between two.
    first: String,
    /// Faults that come when connections are in use.
    later: String,
    connections: usize,
    /// Number of bytes that each side writes on each connection, three times.
    bytes: usize,
    /// Whether only the client writes, so that what comes back are credits.
    one_way: bool,
    expect: Expect,
}

const PLAN: Plan = Plan {
    first: String::new(),
    later: String::new(),
    connections: 1,
    bytes: 300_000,
    one_way: false,
    expect: Expect::Rdma,
};

impl Plan {
    /// Runs [`exchange`] in a process of its own.
    fn run(&self) {
        eprintln!("{self:?}");
        let numbers = [self.connections, self.bytes, self.one_way.into()].map(|n| n.to_string());
        let [connections, bytes, one_way] = &numbers;
        let expect = format!("{:?}", self.expect);
        let settings = [
            ("NACC_SOR_CONN_PER_QP", "4"),
            ("T_FIRST", &self.first),
            ("T_LATER", &self.later),
            ("T_CONNECTIONS", connections),
            ("T_BYTES", bytes),
            ("T_ONE_WAY", one_way),
            ("T_EXPECT", &expect),
        ];
        world::run("faults::exchange", &settings);
    }
}

fn setting(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is set by the test that chooses the faults"))
}

fn number(name: &str) -> usize {
    setting(name).parse().unwrap()
}

fn word<'a>(page: &'a Page, name: &str) -> &'a AtomicU64 {
    match name {
        "late_acks" => &page.late_acks,
        "late_messages" => &page.late_messages,
        "fail_after" => &page.fail_after,
        "fail_receive_after" => &page.fail_receive_after,
        "lost_completions" => &page.lost_completions,
        "late_established" => &page.late_established,
        "silent" => &page.silent,
        "late_completions" => &page.late_completions,
        "mixed_completions" => &page.mixed_completions,
        "doubled_events" => &page.doubled_events,
        "endless_retries" => &page.endless_retries,
        other => panic!("{other} is no fault"),
    }
}

/// Has the devices behave as `faults` says.
fn apply(faults: &str) {
    for fault in faults.split_whitespace() {
        let (place, value) = fault.split_once('=').unwrap();
        let (device, name) = place.split_once('.').unwrap();
        word(world::page(device), name).store(value.parse().unwrap(), Ordering::Relaxed);
    }
}

/// Sends what is `from` this byte of the pattern on `to` that one.
fn send(e: &'static dyn Endpoint, from: usize, to: usize, mut chance: Chance) {
    let mut sent = from;
    while sent < to {
        let piece = [1, 90, 1000, 4096, 16_000, 70_000][chance.below(6) as usize].min(to - sent);
        match write(e, &pattern(sent, piece)) {
            Ok(n) => sent += n,
            Err(Errno::AGAIN) => wait(e, WRITE, || {}),
            Err(error) => panic!("after {sent} bytes: {error}"),
        }
    }
}

/// Receives that, and counts in `arrived`.
fn receive(e: &'static dyn Endpoint, from: usize, to: usize, arrived: &AtomicUsize) {
    let mut got = from;
    while got < to {
        match get(e, (to - got).min(50_000), false) {
            Ok(m) if m.is_empty() => panic!("the end after {got} bytes"),
            Ok(m) => {
                assert!(m == pattern(got, m.len()), "garbled after {got} bytes");
                got += m.len();
                arrived.fetch_add(m.len(), Ordering::Relaxed);
            }
            Err(Errno::AGAIN) => wait(e, READ, || {}),
            Err(error) => panic!("after {got} bytes: {error}"),
        }
    }
}

/// Moves the bytes `from` .. `to` of each stream, and calls `meanwhile` when half of them have arrived.
fn transfer(pairs: &[Pair], one_way: bool, from: usize, to: usize, meanwhile: impl FnOnce()) {
    let arrived = AtomicUsize::new(0);
    let streams: Vec<_> = pairs.iter().flat_map(|p| [(p.a.ep, p.b.ep), (p.b.ep, p.a.ep)]).collect();
    let streams: Vec<_> = streams.into_iter().step_by(if one_way { 2 } else { 1 }).collect();
    let half = streams.len() * (to - from) / 2;
    thread::scope(|scope| {
        for (i, (source, sink)) in streams.into_iter().enumerate() {
            let arrived = &arrived;
            let chance = Chance::of(&format!("stream {i} from {from}"));
            scope.spawn(move || send(source, from, to, chance));
            scope.spawn(move || receive(sink, from, to, arrived));
        }
        let limit = time::now() + rest::LIMIT;
        while arrived.load(Ordering::Relaxed) < half {
            assert!(time::now() < limit, "{} of {half} bytes have arrived", arrived.load(Ordering::Relaxed));
            raw::sched_yield();
        }
        meanwhile();
    });
}

/// Connections on which both sides write, over devices with the faults that the environment names.
#[test]
#[ignore = "the other tests of this module run it, in a world of its own"]
fn exchange() {
    let (count, bytes, one_way) = (number("T_CONNECTIONS"), number("T_BYTES"), number("T_ONE_WAY") != 0);
    for (i, device) in DEVICES.into_iter().enumerate() {
        world::page(device).seed.store(chance::seed().wrapping_add(i as u64), Ordering::Relaxed);
    }
    apply(&setting("T_FIRST"));
    let pairs: Vec<_> = (0..count).map(|_| connect_two().pair(0, false)).collect();
    let before = queue_pairs();
    transfer(&pairs, one_way, 0, bytes, || {});
    transfer(&pairs, one_way, bytes, 2 * bytes, || apply(&setting("T_LATER")));
    match setting("T_EXPECT").as_str() {
        "Rdma" => assert_eq!((queue_pairs(), before != 0), (before, true), "queue pairs"),
        _ => {
            let limit = time::now() + rest::LIMIT;
            while queue_pairs() != 0 {
                assert!(time::now() < limit, "{} ends of queue pairs have not failed", queue_pairs());
                raw::sched_yield();
            }
        }
    }
    transfer(&pairs, one_way, 2 * bytes, 3 * bytes, || {});
    for p in &pairs {
        for (from, to) in [(&p.a, &p.b), (&p.b, &p.a)] {
            from.shutdown(Shut::Write);
            wait(to.ep, READ, || {});
            assert_eq!(read(&**to, 9), Ok(0));
        }
    }
    for device in DEVICES {
        let missed = world::page(device).without_receive.load(Ordering::Relaxed);
        assert_eq!(missed, 0, "messages came to {device} that no receive was posted for");
    }
}

/// At the first messages, of which each means something else, and later; at either side.
fn fails(word: &str, opening: &str) {
    let mut chance = Chance::of(word);
    for device in DEVICES {
        // Where the message fails that opens the connection, the test's connection is the next one.
        let first = if device == opening { 2 } else { 1 };
        let moments = (first..6).chain([6 + chance.below(15), 21 + chance.below(20)]);
        for moment in moments {
            let first = format!("{device}.{word}={moment}");
            // Long messages: more bytes than the last moment takes.
            Plan { first, bytes: 2_000_000, expect: Expect::Failover, ..PLAN }.run();
        }
    }
}

#[test]
fn a_queue_pair_fails_as_it_sends() {
    fails("fail_after", "near");
}

/// Its device has acknowledged the message to the other one, and the program never gets it.
#[test]
fn a_queue_pair_fails_as_it_receives() {
    fails("fail_receive_after", "far");
}

#[test]
fn queue_pairs_of_several_connections_fail() {
    let mut chance = Chance::of("several");
    for device in DEVICES {
        for word in ["fail_after", "fail_receive_after"] {
            let first = format!("{device}.{word}={}", 20 + chance.below(60));
            Plan { first, connections: 4, bytes: 1_000_000, expect: Expect::Failover, ..PLAN }.run();
        }
    }
}

/// The end of the other side's queue pair is known before the last messages and completions have come.
#[test]
fn the_end_overtakes_messages_and_completions() {
    let mut chance = Chance::of("the end");
    for (device, other) in [("near", "far"), ("far", "near")] {
        for fault in ["late_messages=4", "late_completions=20"] {
            let first = format!("{device}.fail_after={} {other}.{fault}", 5 + chance.below(30));
            Plan { first, bytes: 1_000_000, expect: Expect::Failover, ..PLAN }.run();
        }
    }
}

#[test]
fn completions_come_late() {
    for fault in ["late_acks=10", "late_completions=10"] {
        Plan { first: format!("near.{fault} far.{fault}"), connections: 2, ..PLAN }.run();
    }
}

/// Sends and receives, and queue pairs, complete in any order; each queue's own completions stay in theirs.
#[test]
fn completions_are_mixed() {
    let faults = |device| format!("{device}.mixed_completions=1 {device}.late_completions=3 {device}.doubled_events=2");
    let first = format!("{} {}", faults("near"), faults("far"));
    Plan { first, connections: 9, ..PLAN }.run();
}

#[test]
fn completions_are_mixed_as_a_queue_pair_fails() {
    let mut chance = Chance::of("mixed failure");
    for device in DEVICES {
        let mixed = "near.mixed_completions=1 near.late_completions=5 far.mixed_completions=1 far.late_completions=5";
        // After the messages that open the connections: one that fails to open gets another queue pair, which has no fault.
        let first = format!("{mixed} {device}.fail_after={}", 10 + chance.below(50));
        Plan { first, connections: 3, bytes: 1_000_000, expect: Expect::Failover, ..PLAN }.run();
    }
}

#[test]
fn completion_events_come_twice() {
    Plan { first: "near.doubled_events=1 far.doubled_events=1".into(), connections: 2, ..PLAN }.run();
}

#[test]
fn a_few_completions_are_lost() {
    let later = "near.lost_completions=3 far.lost_completions=3".into();
    Plan { later, connections: 2, bytes: 1_000_000, ..PLAN }.run();
}

/// From some moment on no send completes any more. Soon neither side can send, which both notice after some seconds, since
/// nothing comes and no answer either.
#[test]
fn all_completions_are_lost() {
    let side = DEVICES[Chance::of("lost").below(2) as usize];
    let later = format!("{side}.lost_completions=1000000000");
    Plan { later, bytes: 3_000_000, expect: Expect::Failover, ..PLAN }.run();
}

/// Only credits come back, and each message that has some comes late.
#[test]
fn credits_are_slow() {
    for connections in [1, 4] {
        let first = "near.late_messages=5".into();
        Plan { first, one_way: true, connections, bytes: 1_000_000, ..PLAN }.run();
    }
}

#[test]
fn messages_and_credits_are_slow() {
    Plan { first: "near.late_messages=2 far.late_messages=2".into(), connections: 2, ..PLAN }.run();
}

/// Nothing leaves a device any more.
#[test]
fn a_device_falls_silent() {
    for device in DEVICES {
        Plan { later: format!("{device}.silent=1"), bytes: 3_000_000, expect: Expect::Failover, ..PLAN }.run();
    }
}

/// As iWARP, which would try to send for a quarter of an hour: the sides themselves notice that nothing comes.
#[test]
fn a_device_that_never_gives_up_falls_silent() {
    let side = DEVICES[Chance::of("silent").below(2) as usize];
    let first = "near.endless_retries=1 far.endless_retries=1".into();
    Plan { first, later: format!("{side}.silent=1"), bytes: 3_000_000, expect: Expect::Failover, ..PLAN }.run();
}

/// The first messages come before the connection manager has said that the queue pair is established.
#[test]
fn the_connection_manager_tells_late() {
    for device in DEVICES {
        Plan { first: format!("{device}.late_established=200"), ..PLAN }.run();
    }
}
