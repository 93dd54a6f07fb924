//! What the links to a destination say of its listener and of the processes that serve it.

use crate::conn::reuseport::Members;
use crate::conn::targets::{Target, links, links_to};
use core::sync::atomic::Ordering;
use netacc_transport::shm::Link;
use netacc_transport::shm::segment::{Segment, ServedBy};

/// Number of links to a listener that several processes serve. Each of the first connects makes a link, which some idle
/// process takes up; later ones rotate over these links, and sometimes make another one to find new processes.
const SPREAD: usize = 16;
/// Largest number of links to such a listener. Beyond it the kernel's queue is the one that all of its processes have.
pub(super) const MOST_LINKS: usize = 64;
/// Largest number of processes of one listener that are avoided because they do not accept the connects that wait
/// there.
const STUCK: usize = 8;

/// Summary of the links to a destination. Valid under `POOL`, after a [`sweep`].
pub(super) struct View {
    /// Number of links to the wanted listener.
    pub(super) count: usize,
    /// Whether several processes have the wanted listener.
    pub(super) shared: bool,
    /// Whether several processes have served it, so that further links may lead to others of them.
    pub(super) several: bool,
    /// Whether they serve a connection for any time after each accept(2) ([`ServedBy::Acceptors`]).
    pub(super) acceptors: bool,
    /// The members of the reuseport group to which there are links; `None`: the listener is in no group.
    pub(super) members: Option<Members>,
    /// Processes that do not accept the connects that wait on one of their links, and so do not serve their other links
    /// either.
    pub(super) stuck: [u32; STUCK],
    /// Whether the kernel does not tell which listener has the port: then servers of other users are not trusted.
    pub(super) untold: bool,
}

impl View {
    pub(super) fn of(t: &'static Target) -> View {
        let mut v = View {
            count: 0,
            shared: false,
            several: false,
            acceptors: false,
            members: None,
            stuck: [0; STUCK],
            untold: false,
        };
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
    pub(super) fn known(&self) -> usize {
        self.members.as_ref().map_or(0, Members::count)
    }

    pub(super) fn consider(&mut self, t: &'static Target, member: u64) {
        for by in links_to(t, member).map(|l| l.segment().map_or(ServedBy::One, Segment::served_by)) {
            self.count += 1;
            self.shared |= by != ServedBy::One;
            self.several |= matches!(by, ServedBy::Several | ServedBy::Acceptors);
            self.acceptors |= by == ServedBy::Acceptors;
        }
    }

    /// Whether another link should be made although there are some. Members of a reuseport group need none, since the
    /// rotation spreads over them.
    pub(super) fn wants_link(&self, turn: usize) -> bool {
        let later = turn.is_multiple_of(SPREAD) && self.known() < 2;
        self.several && (self.count < SPREAD.div_ceil(self.known().max(1)) || later) && self.count < MOST_LINKS
    }

    /// Whether as many connects wait on all links to a listener of one process together as its backlog allows: a link has
    /// fewer slots than some backlogs.
    pub(super) fn is_full_in_all(&self, t: &'static Target, member: u64) -> bool {
        let segments = || links_to(t, member).filter_map(|l| Some((l, l.segment()?)));
        let waiting = |exact| segments().map(|(l, seg)| l.queue.waiting(seg, exact)).fold(0, u64::saturating_add);
        let limit = || segments().map(|(_, seg)| seg.backlog()).max().map_or(0, u64::from);
        // What the server has taken is loaded only if that matters, since its words are in its cache.
        !self.shared && links_to(t, member).nth(1).is_some() && {
            let limit = limit();
            limit != 0 && waiting(false) >= limit && waiting(true) >= limit
        }
    }

    pub(super) fn avoids(&self, link: &'static Link) -> bool {
        if self.untold && !link.peer.is_trusted() {
            return true;
        }
        // A process in a PID namespace that is not visible here has number 0, as free entries of the list do.
        let pid = link.peer_pid();
        self.shared && (link.queue.is_stuck(link.segment()) || (pid != 0 && self.stuck.contains(&pid)))
    }
}
