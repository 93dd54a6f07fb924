//! Neighbours: processes on this host in other network namespaces, such as other containers. A client connects to them
//! by TCP, and goes over to shared memory once the connection has shown that it lives ([`crate::switch::promote`]).
//!
//! Which process has the other end is not known: the network may have translated the destination, and several processes
//! may serve it. So the client offers the connection to one entrance of the host directory after the other. The process
//! there knows by the time stamp of the SYN whether the connection is its own ([`crate::switch::syn_stamp`]).

use crate::conn::beliefs::Beliefs;
use crate::conn::{neighbour_links, pool, ports};
use crate::host_directory;
use crate::limits::{CALLS_BEFORE_SEARCH, ENTRANCES_TRIED, NAMES_LOOKED_AT, SEARCHES_AGAIN};
use crate::object::candidate::Stage;
use crate::object::socket::{ConnState, Socket, Upgrade};
use crate::timeouts;
use core::net::SocketAddr;
use core::sync::atomic::Ordering;
use netacc_stats::Reason;
use netacc_sys::time;
use netacc_transport::shm::claim::Claim;
use netacc_transport::shm::host_dir::{self, Candidate, Maker};
use netacc_transport::shm::rendezvous::NoLink;
use netacc_wire::Entrance;

const PROOF_TURN: u64 = time::ns(timeouts::PROOF_TURN);
const SEARCH_AGAIN: u64 = time::ns(timeouts::SEARCH_AGAIN);
const NO_NEIGHBOUR_BELIEVED: u64 = time::ns(timeouts::NO_NEIGHBOUR_BELIEVED);

netacc_sys::tables! {
    /// Destinations that no neighbour serves.
    static NOBODY: Beliefs<64> = Beliefs::new();
    /// Destinations that were not found at the destination's port, though a process there was asked: the network translates
    /// the client's address, perhaps.
    static TRANSLATED: Beliefs<64> = Beliefs::new();
    /// Destinations with the identifier of the entrance of their neighbour, and clients' hosts, with port 0, with the number
    /// of the link of theirs.
    static ENTRANCE: Beliefs<64> = Beliefs::new();
    /// Destinations for which not all entrances were tried, with the identifier of the one that was tried last.
    static RESUME: Beliefs<64> = Beliefs::new();
    /// Destinations and clients' hosts with the time at which a connection to them delayed a send.
    static TURN: Beliefs<64> = Beliefs::new();
}

/// Called in the child of a fork.
pub fn after_fork() {
    [&NOBODY, &TRANSLATED, &ENTRANCE, &RESUME, &TURN].into_iter().for_each(Beliefs::after_fork);
}

/// Whether the other end of the connection is a neighbour's, or one was asked about it.
pub fn is_one(s: &Socket) -> bool {
    s.upgrade.search.is_on() || s.upgrade.watched.load(Ordering::Relaxed) != 0
}

/// Begins the search for the neighbour that has the other end of `s`, which the kernel connects to `target` since
/// `begun` ([`time::now`]) for this reason. Returns why it is on TCP meanwhile, or why there will be no search if that is
/// known; `None`: the reason stays.
pub fn begin(s: &Socket, target: SocketAddr, reason: Reason, begun: u64) -> Option<Reason> {
    host_directory::usable()?;
    let now = time::coarse();
    if NOBODY.holds(target, now, NO_NEIGHBOUR_BELIEVED) {
        let translated = TRANSLATED.holds(target, now, NO_NEIGHBOUR_BELIEVED);
        return Some(if translated { Reason::Translated } else { Reason::NoNeighbour });
    }
    // The other reasons say already that the destination is not in this network namespace, and the kernel was asked.
    if reason != Reason::PeerPlain || ports::local_source(target.ip(), now).is_none() {
        s.upgrade.when.store(begun, Ordering::Relaxed);
        s.calls.store(0, Ordering::Relaxed);
        s.upgrade.search.begin(Stage::Remembered);
        s.change(ConnState::Tcp, ConnState::Candidate(Upgrade::ToOffer));
        return Some(Reason::ShortLived);
    }
    None
}

/// Whether a candidate has shown by its calls that it is worth a search, or is no neighbour's at all.
pub fn is_due(s: &Socket) -> bool {
    let search = &s.upgrade.search;
    let due = search.due.load(Ordering::Relaxed);
    !search.is_on() || s.calls.load(Ordering::Relaxed) >= CALLS_BEFORE_SEARCH && (due == 0 || time::coarse() >= due)
}

/// Whether a search that finds nobody may be too early: a server at the destination's port that has said nothing may not
/// have accepted the connection yet, and so does not know it.
fn may_be_early(s: &Socket) -> bool {
    let search = &s.upgrade.search;
    s.kernel_read.load(Ordering::Relaxed) == 0
        && search.denied.load(Ordering::Relaxed) != 0
        && search.matched.load(Ordering::Relaxed) == 0
        && search.repeated.load(Ordering::Relaxed) < SEARCHES_AGAIN
}

/// Prepares a repetition of the search that ended for this reason. False: it would not find more. Called under both
/// direction locks.
pub fn search_again(s: &Socket, why: Reason) -> bool {
    let search = &s.upgrade.search;
    let again = why == Reason::Translated && search.is_on() && may_be_early(s);
    if again {
        let pause = SEARCH_AGAIN << (2 * search.repeated.fetch_add(1, Ordering::Relaxed));
        search.due.store(time::coarse().saturating_add(pause), Ordering::Relaxed);
        search.begin(Stage::Remembered);
    }
    again
}

/// Claims a slot on a link to the next entrance at which `s`, connected from `local` to `target`, may be known. `Err`: no
/// entrance is
/// left, or there are no resources.
#[inline(never)]
pub fn claim(s: &Socket, local: SocketAddr, target: SocketAddr) -> core::result::Result<Claim, Reason> {
    let dir = host_directory::usable().ok_or(Reason::OtherHost)?;
    let mut names = NAMES_LOOKED_AT;
    loop {
        let Some(entrance) = next((dir, &mut names), s, local, target) else { return Err(fail(s, target)) };
        match neighbour_links::claim_neighbour(entrance, || pool::met(|| host_dir::connect_link(dir, entrance))) {
            Ok(claim) => return Ok(claim),
            Err(NoLink::Resources(_)) => return Err(Reason::NoMemory),
            Err(NoLink::Stranger) if s.upgrade.search.stage() != Stage::Others => {
                s.upgrade.search.strange.store(1, Ordering::Relaxed);
            }
            Err(_) => {}
        }
    }
}

/// The next entrance to try: first those of servers that have forked for just this connection. The order of identifiers
/// is as good as any. Files that somebody else has put into the directory count for nothing, however many they are.
#[inline(never)]
fn next((dir, names): (&str, &mut u32), s: &Socket, local: SocketAddr, target: SocketAddr) -> Option<Entrance> {
    let search = &s.upgrade.search;
    if *names == 0 {
        // The search of the next connection goes on where this one ends.
        search.tries.store(ENTRANCES_TRIED, Ordering::Relaxed);
    }
    if search.tries.fetch_add(1, Ordering::Relaxed) >= ENTRANCES_TRIED {
        return None;
    }
    let (remembered, resume) = (ENTRANCE.noted(target), RESUME.noted(target));
    let (stage, tried) = (search.stage(), search.tried.load(Ordering::Relaxed));
    // The identifier from which a stage goes on.
    let after = |of: Stage| if stage == of { Some(tried) } else { None };
    let (mut known, mut own, mut same, mut other) = (None, None::<Entrance>, None::<Entrance>, None::<Entrance>);
    // The file is looked at last, since that costs a system call.
    let first = |best: &mut Option<Entrance>, found: &Candidate<'_>, after: Option<u64>| {
        let e = found.entrance;
        if after.is_some_and(|id| e.id <= id) || best.is_some_and(|b| e.id >= b.id) {
            return;
        }
        match found.maker() {
            Maker::Trusted => *best = Some(e),
            Maker::Stranger if e.port == target.port() => search.strange.store(1, Ordering::Relaxed),
            Maker::Stranger | Maker::Nobody => {}
        }
    };
    let listed = host_dir::each(dir, names, |found| {
        let e = found.entrance;
        if e.is_of_one_connection() {
            if e.is_of(local) {
                first(&mut own, &found, after(Stage::Own));
            }
        } else if Some(e.id) == remembered {
            first(&mut known, &found, None);
        } else if e.port == target.port() {
            first(&mut same, &found, after(Stage::SamePort));
        } else {
            first(&mut other, &found, after(Stage::Others).or(resume));
        }
    });
    listed.ok()?;
    let own = own.filter(|_| stage == Stage::Own || search.tries.load(Ordering::Relaxed) == 1);
    let known = known.filter(|_| stage == Stage::Remembered && search.tries.load(Ordering::Relaxed) == 1);
    let same = same.filter(|_| stage != Stage::Others);
    let (entrance, stage) = own
        .map(|e| (e, Stage::Own))
        .or_else(|| known.map(|e| (e, Stage::Remembered)))
        .or_else(|| same.map(|e| (e, Stage::SamePort)))
        .or_else(|| other.map(|e| (e, Stage::Others)))?;
    search.tried.store(entrance.id, Ordering::Relaxed);
    search.port.store(entrance.port.into(), Ordering::Relaxed);
    s.upgrade.proving.begin();
    s.upgrade.proving.known.store((stage == Stage::Remembered).into(), Ordering::Relaxed);
    search.confirmed.store(0, Ordering::Relaxed);
    search.stage.store(stage as u32, Ordering::Relaxed);
    Some(entrance)
}

/// Notes that no entrance is left to try, and returns the reason for which the connection stays on TCP.
fn fail(s: &Socket, target: SocketAddr) -> Reason {
    let search = &s.upgrade.search;
    let (now, denied) = (time::coarse(), search.denied.load(Ordering::Relaxed) != 0);
    if search.tries.load(Ordering::Relaxed) > ENTRANCES_TRIED {
        // The next connection goes on where this one ends.
        RESUME.note(target, search.tried.load(Ordering::Relaxed));
    } else if RESUME.noted(target).is_some() {
        RESUME.forget(target);
    } else if !may_be_early(s) && ENTRANCE.noted(target).is_none() && search.matched.load(Ordering::Relaxed) == 0 {
        // No process has the destination's connections, as far as can be seen.
        NOBODY.note(target, now);
        if denied {
            TRANSLATED.note(target, now);
        }
    }
    match () {
        () if search.matched.load(Ordering::Relaxed) != 0 => Reason::Unproven,
        () if denied => Reason::Translated,
        () if search.strange.load(Ordering::Relaxed) != 0 => Reason::PeerUid,
        () => Reason::NoNeighbour,
    }
}

/// Notes why a connection that was a neighbour's candidate stays on TCP, unless another reason is known already.
pub fn note_reason(s: &Socket, why: Reason) {
    if let Some(e) = s.stats().filter(|e| e.reason() == Reason::ShortLived) {
        e.set_reason(why);
    }
}

/// Notes that the process behind the entrance that was tried last does not have the connection. A link to a process that
/// serves other ports is given up.
pub fn note_denied(s: &Socket) {
    let search = &s.upgrade.search;
    if s.upgrade.proving.known.load(Ordering::Relaxed) != 0 && search.matched.load(Ordering::Relaxed) == 0 {
        // The network leads elsewhere now, or to several processes.
        s.peer.get().into_iter().for_each(|target| ENTRANCE.forget(target));
    }
    match search.stage() {
        Stage::SamePort => search.denied.store(1, Ordering::Relaxed),
        Stage::Others | Stage::Own => {
            let port = u16::try_from(search.port.load(Ordering::Relaxed)).unwrap_or(0);
            neighbour_links::release_neighbour(Entrance { id: search.tried.load(Ordering::Relaxed), port });
        }
        Stage::None | Stage::Remembered => {}
    }
}

/// Where `s` leads, and which process may be there: for a client its destination and the entrance that was tried last, for a
/// server its client's host and the link of the offer. `None`: no other connection is found at that process.
fn place(s: &Socket) -> Option<(SocketAddr, u64)> {
    let peer = s.peer.get()?;
    let [link, ..] = &s.upgrade.proving.offer;
    match s.upgrade.search.stage() {
        Stage::Own => None,
        Stage::None => Some((SocketAddr::new(peer.ip(), 0), link.load(Ordering::Relaxed).into())),
        Stage::Remembered | Stage::SamePort | Stage::Others => {
            Some((peer, s.upgrade.search.tried.load(Ordering::Relaxed)))
        }
    }
}

/// Whether another connection to the same place was found at the process that `s` is offered to, or offered by.
pub fn is_known_by_now(s: &Socket) -> bool {
    place(s).is_some_and(|(at, process)| ENTRANCE.noted(at) == Some(process))
}

/// Whether `s` may delay a send. Of the connections to one place one does so at a time, since the others need no delay
/// once it has been found: a program with many connections would otherwise stand still for the sum of the delays.
pub fn takes_turn(s: &Socket) -> bool {
    let Some((at, _)) = place(s) else { return true };
    let now = time::now();
    let turn = &s.upgrade.proving.turn;
    if turn.load(Ordering::Relaxed) == 0 && TURN.holds(at, now, PROOF_TURN) {
        return false;
    }
    turn.store(1, Ordering::Relaxed);
    TURN.note(at, now);
    true
}

/// Leaves the turn of `s` to another connection: the process was found, or does not have the connection.
pub fn leave_turn(s: &Socket) {
    if s.upgrade.proving.turn.swap(0, Ordering::Relaxed) != 0
        && let Some((at, _)) = place(s)
    {
        TURN.forget(at);
    }
}

/// Notes that the process that `s` is offered to, or offered by, has the connection.
pub fn note_found(s: &Socket) {
    if let Some((at, process)) = place(s) {
        ENTRANCE.note(at, process);
    }
    s.peer.get().into_iter().for_each(|target| NOBODY.forget(target));
}

/// Server: notes that the process that has offered `s` does not have the connection.
pub fn note_lost(s: &Socket) {
    if let Some((at, process)) = place(s)
        && ENTRANCE.noted(at) == Some(process)
    {
        ENTRANCE.forget(at);
    }
}
