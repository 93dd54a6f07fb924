//! The other process is killed at any instruction of what it does: nobody hangs, and what arrives is a beginning of what
//! it wrote, then the end or a reset.
//!
//! The tests `inside::*` fork, so each runs alone in a process of its own.

use netacc_conformance::chance::{self, Chance};
use netacc_conformance::ends::{
    AGAIN, READ, RESET, WRITE, fill, get, pattern, read, read_into, wait_beside_the_dead, write,
};
use netacc_conformance::killed::{End, Mortal, REFUSED};
use netacc_sys::Errno;
use netacc_transport::shm::ShmEndpoint;
use netacc_transport::{Endpoint, Shut, WaitSet};
use std::process::Command;
use std::sync::LazyLock;
use std::thread;

/// How often the peer of each kind is killed.
const TIMES: usize = 12;

fn in_a_process_of_its_own(test: &str) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("killed::inside::{test}"), "--ignored", "--nocapture", "--test-threads=1"]);
    let out = command.env(chance::VARIABLE, chance::seed().to_string()).output().unwrap();
    let text = [out.stdout, out.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    if text.contains(REFUSED) {
        eprintln!("skipped: {REFUSED}");
        return;
    }
    assert!(out.status.success() && text.contains("test result: ok. 1 passed"), "{text}");
}

/// Kills peers that do `act` after `prepare`: once at the end, and then before, at instructions that follow from the
/// seed. `survive` is what we do meanwhile; what it returns is given to `check` when the peer is dead.
fn at_any_instruction<T: Send>(
    name: &str,
    prepare: impl Fn(&'static ShmEndpoint, &'static ShmEndpoint),
    act: impl Fn(&'static ShmEndpoint),
    survive: impl Fn(&'static ShmEndpoint) -> T + Sync,
    check: impl Fn(&'static ShmEndpoint, T, End),
) {
    LazyLock::force(&WRITTEN);
    for (client, trusted) in [(true, true), (false, true), (true, false), (false, false)] {
        let mut chance = Chance::of(&format!("{name} {client} {trusted}"));
        let mut all = u64::MAX;
        for n in 0..=TIMES {
            let steps = if n == 0 { u64::MAX } else { chance.below(all) };
            let mortal = Mortal::new(client, trusted, &prepare, &act);
            let ep = mortal.ep;
            let (end, found) = thread::scope(|scope| {
                let survivor = scope.spawn(|| survive(ep));
                let end = mortal.kill_after(steps);
                eprintln!("{name}: client {client}, trusted {trusted}: {end:?} of {all}");
                (end, survivor.join().unwrap())
            });
            if let (0, End::Done(steps)) = (n, end) {
                all = steps;
            }
            check(ep, found, end);
            mortal.link.service();
            assert!(mortal.link.is_lost());
            ep.close(false);
            assert_eq!(mortal.link.slots.open(), 0);
        }
    }
}

/// Reads to the end, asleep where there is nothing: the number of bytes, and whether it ended with a reset.
fn read_all(ep: &'static ShmEndpoint) -> (usize, bool) {
    let mut got = 0;
    loop {
        match get(ep, 1000, false) {
            Ok(m) if m.is_empty() => return (got, false),
            Ok(m) => {
                assert!(m == pattern(got, m.len()), "garbled after {got} bytes");
                got += m.len();
            }
            Err(Errno::AGAIN) => wait_beside_the_dead(ep, READ),
            Err(Errno::CONNRESET) => return (got, true),
            Err(e) => panic!("{e}"),
        }
    }
}

const BYTES: usize = 5000;

/// The bytes that the peer writes. They are made before it is executed step by step.
static WRITTEN: LazyLock<Vec<u8>> = LazyLock::new(|| pattern(0, BYTES));

fn write_some(ep: &'static ShmEndpoint) {
    for part in WRITTEN.chunks(BYTES / 4) {
        let _ = write(ep, part);
    }
}

mod inside {
    use super::*;

    #[test]
    #[ignore = "runs in a process of its own"]
    fn as_it_writes() {
        at_any_instruction(
            "writes",
            |_, _| {},
            write_some,
            read_all,
            |_, (got, reset), end| {
                assert!(!reset && got <= BYTES && (got == BYTES || matches!(end, End::Killed(_))), "{got} bytes");
            },
        );
    }

    #[test]
    #[ignore = "runs in a process of its own"]
    fn as_it_closes() {
        let act = |ep: &'static ShmEndpoint| {
            write_some(ep);
            ep.shutdown(Shut::Write);
            ep.close(false);
        };
        at_any_instruction(
            "closes",
            |_, _| {},
            act,
            read_all,
            |_, (got, reset), end| {
                assert!(!reset && got <= BYTES && (got == BYTES || matches!(end, End::Killed(_))), "{got} bytes");
            },
        );
    }

    #[test]
    #[ignore = "runs in a process of its own"]
    fn as_it_aborts() {
        let act = |ep: &'static ShmEndpoint| {
            write_some(ep);
            ep.close(true);
        };
        at_any_instruction(
            "aborts",
            |_, _| {},
            act,
            read_all,
            |_, (got, reset), end| {
                assert!(got <= BYTES && (reset || matches!(end, End::Killed(_))), "{got} bytes, {reset}");
            },
        );
    }

    /// It reads, and we wait for room: its death makes room or is an error.
    #[test]
    #[ignore = "runs in a process of its own"]
    fn as_it_reads() {
        let prepare = |ours: &'static ShmEndpoint, theirs: &'static ShmEndpoint| {
            // A little more, and there is room for us.
            let nearly = fill(ours) / 4 - 3000;
            let mut got = 0;
            while got < nearly {
                got += read(theirs, (nearly - got).min(10_000)).unwrap();
            }
        };
        let act = |ep: &'static ShmEndpoint| {
            for _ in 0..4 {
                let _ = read_into(ep, &mut [0; 1500], false);
            }
        };
        let survive = |ep: &'static ShmEndpoint| {
            wait_beside_the_dead(ep, WRITE);
        };
        at_any_instruction("reads", prepare, act, survive, |ep, (), _| {
            // It has left bytes unread, so that the connection is reset once its death is known.
            let last = loop {
                match write(ep, &[0; 1000]) {
                    Ok(_) => {}
                    AGAIN => wait_beside_the_dead(ep, WRITE),
                    other => break other,
                }
            };
            assert_eq!(last, RESET);
        });
    }

    /// It registers itself to be woken, and we write: that goes through or fails, and wakes nobody.
    #[test]
    #[ignore = "runs in a process of its own"]
    fn as_it_goes_to_sleep() {
        let act = |ep: &'static ShmEndpoint| {
            for _ in 0..2 {
                let mut set = WaitSet::new();
                ep.arm(READ, &mut set);
                ep.disarm(READ, &set);
            }
        };
        let survive = |ep: &'static ShmEndpoint| {
            for _ in 0..100 {
                assert!(matches!(write(ep, &[7; 100]), Ok(100) | RESET | Err(Errno::PIPE)));
            }
            read_all(ep).0
        };
        at_any_instruction("sleeps", |_, _| {}, act, survive, |_, got, _| assert_eq!(got, 0));
    }
}

#[test]
fn a_peer_that_writes() {
    in_a_process_of_its_own("as_it_writes");
}

#[test]
fn a_peer_that_closes() {
    in_a_process_of_its_own("as_it_closes");
}

#[test]
fn a_peer_that_aborts() {
    in_a_process_of_its_own("as_it_aborts");
}

#[test]
fn a_peer_that_reads() {
    in_a_process_of_its_own("as_it_reads");
}

#[test]
fn a_peer_that_goes_to_sleep() {
    in_a_process_of_its_own("as_it_goes_to_sleep");
}
