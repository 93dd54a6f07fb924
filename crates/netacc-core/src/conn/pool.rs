//! The pool of links to servers, which later connections to the same destination use again.

use crate::conn::reuseport::{Members, ReuseportGroup};
use crate::conn::targets::{POOL, Target, add, check_liveness, links, links_to, retain, sweep, sweep_all, target};
use crate::conn::{current, reuseport};
use crate::fork::descendants;
use crate::limits::LINKS_TRIED_FOR_IDLE;
use core::net::SocketAddr;
use core::sync::atomic::Ordering;
use netacc_stats::Reason;
use netacc_sys::errno::Errno;
use netacc_transport::shm::claim::{Claim, segment_lacks};
use netacc_transport::shm::owner::Word;
use netacc_transport::shm::rendezvous::NoLink;
use netacc_transport::shm::segment::Segment;
use netacc_transport::shm::{Link, owner, rendezvous};

/// Number of links to a listener that several processes serve. Each of the first connects makes a link, which some idle
/// process takes up; later ones rotate over these links, and sometimes make another one to find new processes.
const SPREAD: usize = 16;
/// Largest number of processes of one listener that are avoided because they do not accept the connects that wait
/// there.
const STUCK: usize = 8;

/// Claims a slot on the link; returns the lock if it has none left.
pub(super) fn claim_on(
    link: &'static Link,
    order: netacc_sys::Guard<'static>,
) -> core::result::Result<Claim, netacc_sys::Guard<'static>> {
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

/// Summary of the links to a destination. Valid under `POOL`, after a [`sweep`].
struct View {
    /// Number of links to the wanted listener.
    count: usize,
    /// Whether several processes serve the wanted listener.
    shared: bool,
    /// The members of the reuseport group to which there are links; `None`: the listener is in no group.
    members: Option<Members>,
    /// Processes that do not accept the connects that wait on one of their links, and so do not serve their other links
    /// either.
    stuck: [u32; STUCK],
    /// Whether the kernel does not tell which listener has the port: then servers of other users are not trusted.
    untold: bool,
}

impl View {
    fn of(t: &'static Target) -> View {
        let mut v = View { count: 0, shared: false, members: None, stuck: [0; STUCK], untold: false };
        let mut room = v.stuck.iter_mut();
        for link in links(t) {
            let member = link.listener.member.load(Ordering::Relaxed);
            if member != 0 {
                v.members.get_or_insert_default().add(member);
            }
            if link.queue.is_stuck(link.segment())
                && let Some(pid) = room.next()
            {
                *pid = link.peer_pid();
            }
        }
        v
    }

    /// Number of members of the reuseport group to which there are links.
    fn known(&self) -> usize {
        self.members.as_ref().map_or(0, Members::count)
    }

    fn consider(&mut self, t: &'static Target, member: u64) {
        (self.count, self.shared) = links_to(t, member)
            .fold((0, false), |(n, shared), l| (n + 1, shared | l.segment().is_some_and(Segment::served_by_many)));
    }

    /// Whether another link should be made although there are some. Members of a reuseport group need none, since the
    /// rotation spreads over them.
    fn wants_link(&self, turn: usize) -> bool {
        let later = turn.is_multiple_of(SPREAD) && self.known() < 2;
        self.shared && (self.count < SPREAD.div_ceil(self.known().max(1)) || later) && self.count < 64
    }

    fn avoids(&self, link: &'static Link) -> bool {
        if self.untold && !link.peer.is_trusted() {
            return true;
        }
        // A process in a PID namespace that is not visible here has number 0, as free entries of the list do.
        let pid = link.peer_pid();
        self.shared && (link.queue.is_stuck(link.segment()) || (pid != 0 && self.stuck.contains(&pid)))
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

/// Claims a slot on a link from `from` (whose port may be 0: any) to `dest`: on an existing link if possible, else on a
/// new one. `member` is the listener's cookie if the kernel was asked for it. A `late` connect comes from a client on
/// another host whose program has been told that it is connected: so it is queued even if the backlog is full, on
/// further links if need be.
pub fn claim(
    from: SocketAddr,
    dest: SocketAddr,
    member: Option<u64>,
    late: bool,
) -> core::result::Result<Claim, Reason> {
    claim_in_order(from, dest, member, late, || true)
}

/// Claims as [`claim`] does. When a link to `dest` has ended, `settle` is called without a lock before another one is
/// used: it makes the connects that are queued there once more, since the new one must not be accepted before them. It
/// returns whether the new one may go over a link.
pub fn claim_in_order(
    from: SocketAddr,
    dest: SocketAddr,
    member: Option<u64>,
    late: bool,
    settle: impl Fn() -> bool,
) -> core::result::Result<Claim, Reason> {
    loop {
        match attempt(from, dest, member, late)? {
            Some(claim) => return Ok(claim),
            None if settle() => {}
            None => return Err(Reason::KernelQueue),
        }
    }
}

/// `None`: a link was found to have ended, and is removed.
fn attempt(
    from: SocketAddr,
    dest: SocketAddr,
    member: Option<u64>,
    late: bool,
) -> core::result::Result<Option<Claim>, Reason> {
    if let Some(why) = crate::process_mode::reason() {
        return Err(why);
    }
    let mut order = POOL.lock();
    let t = target(dest, false).ok_or(Reason::NoMemory)?;
    if sweep(t) {
        return Ok(None);
    }
    let mut view = View::of(t);
    let turn = t.rotation.fetch_add(1, Ordering::Relaxed) as usize;
    let any = SocketAddr::new(from.ip(), if from.port() == 0 { reuseport::any_port() } else { from.port() });
    let mut named = member;
    if named.is_none() {
        let word = ask_if_due(t, &view, turn, any);
        if let Some(word) = word {
            retain(t, |link| current::heed(link, word));
            view = View { untold: word == Word::Untold, ..View::of(t) };
        }
        named = match word {
            Some(Word::Listener(found)) if view.known() > 0 => Some(found.cookie),
            _ => None,
        };
    }
    let count = view.known();
    // Connects rotate over the members of a group, and over the links of one member.
    let (meant, turn) = match named.or_else(|| view.members.as_ref()?.at(turn)) {
        Some(cookie) => (Some(cookie), turn / count.max(1)),
        None => (None, turn),
    };
    view.consider(t, meant.unwrap_or(0));
    if view.count > 0 && !view.wants_link(turn) {
        match claim_known(t, &view, (meant.unwrap_or(0), turn), late, order)? {
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
    if sweep(t) {
        return Ok(None);
    }
    sweep_all();
    // Processes that share the listener have rendezvous at different places, which are tried one after the other.
    // The number of links leads round them, since the rotation begins anew with each link.
    let place = if view.shared { view.count as u16 % rendezvous::PLACES } else { 0 };
    let meant = named.or_else(|| meant.map(|cookie| owner::listener_cookie(any, dest).unwrap_or(cookie)));
    let made = rendezvous::connect_link(any, dest, meant, place);
    if named.is_some() {
        t.reuseport.on_kernel_choice(matches!(made, Err(NoLink::Nobody)));
    }
    let link = made.map_err(|e| why_not(e, meant.is_some()))?;
    current::confirm(link);
    if link.listener.member.load(Ordering::Relaxed) == 0 {
        // A link that was made for another listener is obsolete.
        let listener = link.listener.cookie.load(Ordering::Relaxed);
        retain(t, |l| {
            l.listener.member.load(Ordering::Relaxed) != 0 || l.listener.cookie.load(Ordering::Relaxed) == listener
        });
    }
    if count == 0 {
        // If this is the first member of a group, the others have to be found.
        t.rotation.store(1, Ordering::Relaxed);
    }
    // Tells the server to take up this link before it serves later connects of another one.
    links_to(t, link.listener.member.load(Ordering::Relaxed)).filter_map(Link::segment).for_each(Segment::set_more);
    add(t, link);
    claim_on(link, order).map(Some).map_err(|_| Reason::NoMemory)
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

/// Index of a link to `member` whose process waits for connects, among the next [`LOOKS`] links from the `turn`th on.
fn idle(t: &'static Target, member: u64, turn: usize, count: usize) -> usize {
    let waits =
        |at: &usize| links_to(t, member).nth(at % count).and_then(Link::segment).is_some_and(Segment::server_waits);
    (turn..turn + count.min(LINKS_TRIED_FOR_IDLE)).find(waits).unwrap_or(turn)
}

/// Whether a process other than that of `link` waits for connects to `dest`.
pub fn is_awaited_elsewhere(dest: SocketAddr, link: &Link) -> bool {
    let _order = POOL.lock();
    let busy = link.peer_pid();
    // A process may have several links. If the number is not known (0), another link may lead to another process.
    let another = |l: &Link| !core::ptr::eq(l, link) && (busy == 0 || l.peer_pid() != busy);
    let waits = |l: &'static Link| another(l) && l.accepting() && l.segment().is_some_and(Segment::server_waits);
    target(dest, link.is_remote()).is_some_and(|t| links_to(t, link.listener.member.load(Ordering::Relaxed)).any(waits))
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
    late: bool,
    mut order: netacc_sys::Guard<'static>,
) -> core::result::Result<core::result::Result<Claim, netacc_sys::Guard<'static>>, Reason> {
    // As in the kernel, an idle process gets the connection rather than a busy one.
    let turn = if view.shared { idle(t, member, turn, view.count) } else { 0 };
    let start = turn % view.count;
    let mut late_and_full = false;
    for i in 0..view.count {
        let Some(link) = links_to(t, member).nth((start + i) % view.count) else { break };
        check_liveness(link);
        if !link.accepting() || view.avoids(link) {
            continue;
        }
        // With several processes another one may have room, and by TCP any of them can accept.
        let full = link.segment().is_some_and(|s| link.queue.is_full(s));
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
    target(dest, false)
        .is_some_and(|t| links(t).any(|l| l.listener.member.load(Ordering::Relaxed) != 0) && which(&t.reuseport))
}
