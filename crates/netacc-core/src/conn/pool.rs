//! The pool of links to servers, which later connections to the same destination use again.

use crate::conn::link_view::{MOST_LINKS, View};
use crate::conn::reuseport::ReuseportGroup;
use crate::conn::targets::{
    POOL, Target, add, check_liveness, known, links, links_to, retain, sweep, sweep_all, sweep_handed_on, target,
};
use crate::conn::{current, reuseport};
use crate::fork::descendants;
use crate::timeouts;
use core::net::SocketAddr;
use core::sync::atomic::Ordering;
use netacc_stats::Reason;
use netacc_sys::errno::Errno;
use netacc_sys::time::Deadline;
use netacc_sys::{Guard, lock, time};
use netacc_transport::shm::claim::{Claim, segment_lacks};
use netacc_transport::shm::owner::Word;
use netacc_transport::shm::rendezvous::NoLink;
use netacc_transport::shm::segment::{Segment, ServedBy};
use netacc_transport::shm::{Link, ServerState, is_handing_on, owner, rendezvous};

/// How often a client comes to the rendezvous of a listener of several processes before its connect goes by TCP.
const MEETINGS: usize = 4;
const MOVES: u64 = time::ns(timeouts::QUEUED_CONNECT_MOVES);

/// Claims a slot on the link; returns the lock if it has none left.
pub(super) fn claim_on(link: &'static Link, order: Guard<'static>) -> core::result::Result<Claim, Guard<'static>> {
    if let Some(left) = link.slots.parked_slots()
        && descendants::alone()
    {
        link.slots.unpark(left);
    }
    match link.claim() {
        Some(claimed) => Ok(Claim { link, claimed, pending: false, order }),
        None => Err(order),
    }
}

/// Asks the kernel which listener a connect from `any` is for, if the `turn`th connect needs that: when no earlier
/// answer is valid for its link, or while the members of a reuseport group are not all known.
fn ask_if_due(t: &'static Target, view: &View, turn: usize, any: SocketAddr) -> Option<Word> {
    let members = view.known();
    let next = view.members.as_ref().and_then(|m| m.at(turn)).unwrap_or(0);
    let link = links_to(t, next).next()?;
    // Evaluated first, since it also notes that the kernel is asked.
    let due = members > 0 && t.reuseport.due(turn, members);
    let asks = due || !current::is_confirmed(link);
    // Without a group the port does not matter, and for port 0 the kernel never finds a connection instead of the
    // listener.
    let dest = t.dest.get()?;
    asks.then(|| owner::listener((members > 0).then_some(any), dest))
}

/// What a slot is claimed for, which decides how far a busy server is avoided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimFor {
    /// A connect of the program's.
    Connect,
    /// A connection of the kernel's that is offered to the server, whichever of its processes has it.
    Offer,
    /// A connect of a client on another host whose program has been told that it is connected: it is queued even if the
    /// backlog is full, on further links if need be.
    Late,
    /// A connect that has waited too long at one process: only one that waits for connects gets it, or the one that next
    /// takes a client up at the rendezvous.
    Move,
}

/// Claims a slot on a link from `from` (whose port may be 0: any) to `dest`: on an existing link if possible, else on a
/// new one. `member` is the listener's cookie if the kernel was asked for it.
pub fn claim(
    from: SocketAddr,
    dest: SocketAddr,
    member: Option<u64>,
    what: ClaimFor,
) -> core::result::Result<Claim, Reason> {
    claim_in_order(from, dest, member, what, || true)
}

/// Claims as [`claim`] does. When a link to `dest` has ended, `settle` is called without a lock before another one is
/// used: it makes the connects that are queued there once more, since the new one must not be accepted before them. It
/// returns whether the new one may go over a link.
pub fn claim_in_order(
    from: SocketAddr,
    dest: SocketAddr,
    member: Option<u64>,
    what: ClaimFor,
    settle: impl Fn() -> bool,
) -> core::result::Result<Claim, Reason> {
    loop {
        match attempt(from, dest, member, what)? {
            Some(claim) => return Ok(claim),
            None if settle() => {}
            None => return Err(Reason::KernelQueue),
        }
    }
}

/// Whether a link to `dest` has ended since this was last asked: connects that are queued there have to be made once more
/// before a later one is made in any way.
pub fn has_ended(dest: SocketAddr) -> bool {
    let order = POOL.lock();
    let Some(t) = known(dest, false) else { return false };
    let (_order, waited) = when_handed_on(t, order);
    sweep(t) || waited.ended
}

/// Whether a server is just passing on the connects that wait on one of the links to `dest`.
pub fn is_handed_on(dest: SocketAddr) -> bool {
    let _order = POOL.lock();
    known(dest, false).is_some_and(|t| links(t).any(is_handing_on))
}

/// What [`when_handed_on`] came to.
struct Waited {
    /// Whether it has waited, so that the links are to be looked at anew.
    any: bool,
    /// Whether links were removed whose servers take no connect any more.
    ended: bool,
}

/// Waits briefly, without the lock, if a server is just passing on the connects that wait on one of the links. A stopped
/// server is not waited for long, and only once; one that this user trusts, and that goes on, for as long as it takes.
fn when_handed_on(t: &'static Target, mut order: Guard<'static>) -> (Guard<'static>, Waited) {
    let mut until = None;
    let (mut ended, mut taken) = (false, 0);
    while links(t).any(is_handing_on) {
        let of_trusted = |link: &&Link| is_handing_on(link) && link.trust_is_mutual();
        let numbers = links(t).filter(of_trusted).filter_map(Link::segment).map(Segment::connects_taken);
        let now = numbers.fold(0, u64::wrapping_add);
        if core::mem::replace(&mut taken, now) != now {
            until = None;
        }
        drop(order);
        let over = lock::interrupted() || until.get_or_insert_with(|| Deadline::within(timeouts::HANDING_ON)).passed();
        if !over {
            time::pause();
        }
        order = POOL.lock();
        if over {
            ended |= sweep_handed_on(t);
        }
    }
    (order, Waited { any: until.is_some(), ended })
}

/// The member of a reuseport group that the `turn`th connect is for, if the kernel is asked and says it. Links to which that
/// does not fit are removed, and the others are looked at anew.
fn member_by_kernel(t: &'static Target, view: &mut View, turn: usize, any: SocketAddr) -> Option<u64> {
    let word = ask_if_due(t, view, turn, any)?;
    retain(t, |link| current::heed(link, word));
    *view = View { untold: word == Word::Untold, ..View::of(t) };
    match word {
        Word::Listener(found) if view.known() > 0 => Some(found.cookie),
        _ => None,
    }
}

/// Makes a link to a process that serves the listener. Processes that share it have rendezvous at different places, which
/// are tried one after the other: the number of links leads round them, since the rotation begins anew with each link.
fn meet(
    any: SocketAddr,
    dest: SocketAddr,
    view: &View,
    meant: Option<u64>,
) -> core::result::Result<&'static Link, NoLink> {
    let place = if view.shared { view.count as u16 % rendezvous::PLACES } else { 0 };
    met(|| rendezvous::connect_link(any, dest, meant, place))
}

/// Makes a link by `connect`, once more where a process has let us in and gone off to serve another client before it had our
/// Hello.
pub(super) fn met(
    connect: impl Fn() -> core::result::Result<&'static Link, NoLink>,
) -> core::result::Result<&'static Link, NoLink> {
    let once = |_| match connect() {
        Err(NoLink::Resources(Errno::PIPE | Errno::CONNRESET)) => None,
        made => Some(made),
    };
    (0..MEETINGS).find_map(once).unwrap_or(Err(NoLink::Busy))
}

/// `None`: a link was found to have ended, and is removed.
fn attempt(
    from: SocketAddr,
    dest: SocketAddr,
    member: Option<u64>,
    what: ClaimFor,
) -> core::result::Result<Option<Claim>, Reason> {
    if let Some(why) = crate::process_mode::reason() {
        return Err(why);
    }
    let order = POOL.lock();
    let t = target(dest, false).ok_or(Reason::NoMemory)?;
    let (mut order, waited) = when_handed_on(t, order);
    if sweep(t) || waited.ended {
        return Ok(None);
    }
    let mut view = View::of(t);
    let turn = t.rotation.fetch_add(1, Ordering::Relaxed) as usize;
    let any = SocketAddr::new(from.ip(), if from.port() == 0 { reuseport::any_port() } else { from.port() });
    let named = member.or_else(|| member_by_kernel(t, &mut view, turn, any));
    let count = view.known();
    // Connects rotate over the members of a group, and over the links of one member.
    let (meant, turn) = match named.or_else(|| view.members.as_ref()?.at(turn)) {
        Some(cookie) => (Some(cookie), turn / count.max(1)),
        None => (None, turn),
    };
    view.consider(t, meant.unwrap_or(0));
    if view.count > 0 && !view.wants_link(turn) {
        match claim_known(t, &view, (meant.unwrap_or(0), turn), what, order)? {
            Ok(c) => {
                if named.is_some() {
                    t.reuseport.on_kernel_choice(false);
                }
                return Ok(Some(c));
            }
            Err(o) => order = o,
        }
    }
    links(t).for_each(check_liveness);
    // The server may have begun to leave since the look above.
    let (order, waited) = when_handed_on(t, order);
    if sweep(t) || waited.any || waited.ended {
        return Ok(None);
    }
    sweep_all();
    let meant = named.or_else(|| meant.map(|cookie| owner::listener_cookie(any, dest).unwrap_or(cookie)));
    let made = meet(any, dest, &view, meant);
    if named.is_some() {
        t.reuseport.on_kernel_choice(matches!(made, Err(NoLink::Nobody)));
    }
    let link = made.map_err(|e| why_not(e, meant.is_some()))?;
    if count == 0 {
        // If this is the first member of a group, the others have to be found.
        t.rotation.store(1, Ordering::Relaxed);
    }
    enter(t, link);
    let pending = what != ClaimFor::Late && view.is_full_in_all(t, member_of(link));
    claim_on(link, order).map(|claim| Some(Claim { pending, ..claim })).map_err(|_| Reason::NoMemory)
}

/// The member of a reuseport group to which a link leads; 0: the listener is in no group.
fn member_of(link: &Link) -> u64 {
    link.listener.member.load(Ordering::Relaxed)
}

/// Adds a link that was just made.
fn enter(t: &'static Target, link: &'static Link) {
    current::confirm(link);
    if member_of(link) == 0 {
        // A link that was made for another listener is obsolete.
        let listener = link.listener.cookie.load(Ordering::Relaxed);
        retain(t, |l| member_of(l) != 0 || l.listener.cookie.load(Ordering::Relaxed) == listener);
    }
    // Tells the server to take up this link before it serves later connects of another one.
    links_to(t, member_of(link)).filter_map(Link::segment).for_each(Segment::set_more);
    add(t, link);
}

/// Claims a slot on `link` to `dest`, a server on another host, or, unless `only` that link may be used, on an earlier
/// one.
pub fn claim_remote(dest: SocketAddr, link: &'static Link, only: bool) -> core::result::Result<Claim, Reason> {
    let order = POOL.lock();
    let t = target(dest, true).ok_or(Reason::NoMemory)?;
    sweep(t);
    if !links(t).any(|l| core::ptr::eq(l, link)) {
        link.hold();
        add(t, link);
    }
    if link.segment().is_some_and(|s| link.queue.is_full(s)) {
        return Err(Reason::BacklogFull);
    }
    let mut order = match claim_on(link, order) {
        Ok(claim) => return Ok(claim),
        Err(order) => order,
    };
    for other in links(t).filter(|l| !only && !core::ptr::eq(*l, link) && l.accepting()) {
        match claim_on(other, order) {
            Ok(claim) => return Ok(claim),
            Err(o) => order = o,
        }
    }
    Err(Reason::NoMemory)
}

/// What a process that serves a listener does, as its client sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// It sleeps until a connect comes, and none of ours waits there.
    Idle,
    /// It is awake, or is about to be.
    Awake,
    /// It has left one of our connects waiting for [`timeouts::QUEUED_CONNECT_MOVES`].
    Stuck,
}

/// What the process at the other end of the link does. A process may have several links: it serves all or none of them.
fn standing(t: &'static Target, link: &'static Link, now: u64) -> Standing {
    let pid = link.peer_pid();
    // A process in a PID namespace that is not visible here has number 0.
    let same = |l: &&'static Link| core::ptr::eq(*l, link) || (pid != 0 && l.peer_pid() == pid);
    let longest = links(t).filter(same).filter_map(|l| l.segment()?.front_age(now)).max();
    match longest {
        Some(age) if age >= MOVES => Standing::Stuck,
        None if link.segment().is_some_and(Segment::server_waits) => Standing::Idle,
        _ => Standing::Awake,
    }
}

/// Whether a connect of this process waits on a link that no process has taken up. One that has waited long is at the place
/// of a process that may be stopped, and keeps no other one waiting.
fn waits_at_rendezvous(link: &'static Link, now: u64) -> bool {
    let waits = |s: Segment| s.server() == ServerState::Pending && s.front_age(now).is_some_and(|age| age < MOVES);
    link.accepting() && link.segment().is_some_and(waits)
}

/// The link on which a connect to a listener of several processes is queued: one whose process waits for connects, or
/// else one whose process will look soon. `None`: only a queue that all of them have leads to whichever process is idle
/// next.
fn link_of_several(
    t: &'static Target,
    view: &View,
    (member, turn): (u64, usize),
    what: ClaimFor,
) -> Option<&'static Link> {
    let takes_awake = match what {
        ClaimFor::Connect => !view.acceptors,
        ClaimFor::Offer | ClaimFor::Late => true,
        ClaimFor::Move => false,
    };
    let now = time::now();
    // The process that takes up that link may be the one that accepts this connect, and has to accept the earlier one first.
    let is_passed = |link: &'static Link| !view.avoids(link) && waits_at_rendezvous(link, now);
    if what == ClaimFor::Connect && view.count < MOST_LINKS && links_to(t, member).any(is_passed) {
        return None;
    }
    let first = turn % view.count;
    let in_turn = links_to(t, member).skip(first).chain(links_to(t, member).take(first));
    let mut awake = None;
    for link in in_turn.filter(|l| l.accepting() && !view.avoids(l)) {
        match standing(t, link, now) {
            Standing::Idle => {
                check_liveness(link);
                if link.accepting() {
                    return Some(link);
                }
            }
            Standing::Awake if awake.is_none() && takes_awake => awake = Some(link),
            Standing::Awake | Standing::Stuck => {}
        }
    }
    awake.inspect(|link| check_liveness(link)).filter(|link| link.accepting())
}

/// Whether a connect to `dest` that has waited too long on `link` can be moved to where an idle process takes it.
pub fn can_move(dest: SocketAddr, link: &'static Link) -> bool {
    let by = match link.segment() {
        // A link that was not taken up yet is at the rendezvous, where any of the processes can take it.
        Some(s) if s.server() != ServerState::Pending => s.served_by(),
        _ => return false,
    };
    let _order = POOL.lock();
    let now = time::now();
    let Some(t) = target(dest, link.is_remote()) else { return false };
    let member = member_of(link);
    let several = matches!(by, ServedBy::Several | ServedBy::Acceptors);
    // By TCP any of the processes can accept it.
    by == ServedBy::Acceptors
        || (several && links_to(t, member).count() < MOST_LINKS)
        || links_to(t, member).any(|l| l.accepting() && standing(t, l, now) == Standing::Idle)
}

/// Number of links, of some 500 slots each, on which connects of clients on other hosts may wait beyond the listener's
/// backlog. Such a client's connects return at once, so many may arrive together.
const LATE_LINKS: usize = 8;

/// Claims a slot on one of the links to `member`, beginning with the `turn`th; returns the lock if none has a free
/// slot.
fn claim_known(
    t: &'static Target,
    view: &View,
    (member, turn): (u64, usize),
    what: ClaimFor,
    mut order: Guard<'static>,
) -> core::result::Result<core::result::Result<Claim, Guard<'static>>, Reason> {
    let late = what == ClaimFor::Late;
    if view.several {
        match link_of_several(t, view, (member, turn), what) {
            // With several processes another one may have room, and by TCP any of them can accept.
            Some(link) if !late && link.segment().is_some_and(|s| link.queue.is_full(s)) => {
                return Err(Reason::BacklogFull);
            }
            Some(link) => match claim_on(link, order) {
                Ok(claim) => return Ok(Ok(claim)),
                Err(o) => order = o,
            },
            None if late => {}
            // A new link waits at the rendezvous, where the process that is idle next takes it up.
            None if view.count < MOST_LINKS => return Ok(Err(order)),
            None => return Err(Reason::NotTaken),
        }
    }
    let mut late_and_full = false;
    let full_in_all = !late && view.is_full_in_all(t, member);
    for link in links_to(t, member) {
        check_liveness(link);
        if !link.accepting() || view.avoids(link) {
            continue;
        }
        let full = link.segment().is_some_and(|s| link.queue.is_full(s)) || full_in_all;
        if full && !late && (view.shared || link.is_remote()) {
            return Err(Reason::BacklogFull);
        }
        match claim_on(link, order) {
            Ok(c) => return Ok(Ok(Claim { pending: full && !late, ..c })),
            Err(o) => order = o,
        }
        late_and_full |= full;
    }
    if late_and_full && view.count >= LATE_LINKS { Err(Reason::BacklogFull) } else { Ok(Err(order)) }
}

fn why_not(e: NoLink, in_group: bool) -> Reason {
    match e {
        NoLink::Nobody if in_group => Reason::ReusePort,
        NoLink::Nobody => Reason::PeerPlain,
        NoLink::Version => Reason::PeerVersion,
        NoLink::Stranger => Reason::PeerUid,
        NoLink::Busy => Reason::BacklogFull,
        NoLink::Resources(Errno::MFILE | Errno::NFILE) => Reason::NoDescriptors,
        // A security module (Landlock, AppArmor) forbids abstract names of other domains.
        NoLink::Resources(Errno(libc::EPERM | libc::EACCES)) => Reason::Unsupported,
        NoLink::Resources(e) => segment_lacks(e),
    }
}

/// Whether the member of the group has to be known before the connection to `dest` is made: the group is mixed, or a
/// connection that begins on TCP (`tcp_first`) has to find its server again among several.
pub fn is_exact(dest: SocketAddr, tcp_first: bool) -> bool {
    (tcp_first || reuseport::any_mixed()) && is_group(dest, |g| tcp_first || g.is_mixed())
}

/// Whether links to `dest` lead to listeners that share a port, and `which` holds for their group.
fn is_group(dest: SocketAddr, which: impl FnOnce(&ReuseportGroup) -> bool) -> bool {
    let _order = POOL.lock();
    target(dest, false).is_some_and(|t| links(t).any(|l| member_of(l) != 0) && which(&t.reuseport))
}
