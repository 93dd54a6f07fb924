//! The destinations of the [`pool`](crate::conn::pool), and the list of links to each.

use crate::conn::kernel_queue;
use crate::conn::reuseport::ReuseportGroup;
use core::net::SocketAddr;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use netacc_sys::mem::Zeroed;
use netacc_sys::slab::{Pooled, Slab};
use netacc_sys::{AtomicRef, Lock, cpu, lock_rank};
use netacc_transport::shm::{Link, is_handing_on};

/// A destination and our links to it.
#[derive(Debug)]
pub struct Target {
    next_free: AtomicRef<Target>,
    next: AtomicRef<Target>,
    pub(super) dest: crate::object::address::Addr,
    /// Whether the destination is on another host. An address that moves to this host becomes another destination.
    remote: AtomicBool,
    links: AtomicRef<Link>,
    /// Counter for the rotation over the links of a listener that several processes serve, and over listeners that
    /// share a port.
    pub(super) rotation: AtomicU32,
    pub(super) reuseport: ReuseportGroup,
}

#[allow(unsafe_code)]
mod zeroed {
    // SAFETY: the type consists of atomics and structs of them, for which zero is valid and a fresh object.
    unsafe impl super::Zeroed for super::Target {}
}

impl Pooled for Target {
    fn next_free(&self) -> &AtomicRef<Target> {
        &self.next_free
    }
}

const BUCKETS: usize = 64;
static BUCKET: [AtomicRef<Target>; BUCKETS] = [const { AtomicRef::none() }; BUCKETS];
static TARGETS: Slab<Target> = Slab::new();
/// Guards the buckets, the targets' lists of links, and the order of connects on a link.
pub(super) static POOL: Lock<{ lock_rank::POOL }> = Lock::new();

/// The head of the list in which a target for `dest` is.
fn bucket(dest: SocketAddr) -> Option<&'static AtomicRef<Target>> {
    BUCKET.get(usize::from(dest.port()) % BUCKETS)
}

/// The targets of a bucket. Under [`POOL`].
fn targets(head: &AtomicRef<Target>) -> impl Iterator<Item = &'static Target> + use<> {
    head.list(|t| &t.next)
}

/// The target for `dest`, if there is one. Under [`POOL`].
pub(super) fn known(dest: SocketAddr, remote: bool) -> Option<&'static Target> {
    targets(bucket(dest)?).find(|t| t.dest.get() == Some(dest) && t.remote.load(Ordering::Relaxed) == remote)
}

/// The target for `dest`, which is made if there is none; `None`: no memory. Under [`POOL`].
pub(super) fn target(dest: SocketAddr, remote: bool) -> Option<&'static Target> {
    if let Some(t) = known(dest, remote) {
        return Some(t);
    }
    let head = bucket(dest)?;
    let t = TARGETS.alloc()?;
    t.dest.set(dest);
    t.remote.store(remote, Ordering::Relaxed);
    t.links.set(None);
    t.reuseport.reset();
    t.next.set(head.get());
    head.set(Some(t));
    Some(t)
}

/// Time (ticks, some 20 microseconds) for which the kernel's answer that the peer lives is believed.
///
/// A connect to a server that has just died must be refused, and not be queued at a dead process. A client cannot learn
/// of the death within this time: killing a process, its teardown by the kernel and the notification take longer. If a
/// connect is queued at a dead process nevertheless, nothing hangs: the end of the control socket wakes every waiter,
/// which finds the connect queued and makes it once more (`redispatch`), where it is refused.
const ALIVE: u64 = 60_000;

/// Asks the kernel whether the link's peer lives, unless it was asked lately.
pub(super) fn check_liveness(l: &'static Link) {
    let now = cpu::ticks();
    if now.wrapping_sub(l.checked.load(Ordering::Relaxed)) >= ALIVE {
        l.checked.store(now, Ordering::Relaxed);
        l.service_if_readable();
    }
}

/// The target for `dest`, on another host; else one without links to a destination for which `stands_in` is true, which
/// then gets this destination, so that the list does not grow with each server that starts. Under [`POOL`].
pub(super) fn target_or_unused(dest: SocketAddr, stands_in: fn(SocketAddr) -> bool) -> Option<&'static Target> {
    let mut free = None;
    for t in targets(bucket(dest)?) {
        match t.dest.get() {
            Some(of) if of == dest => return Some(t),
            Some(of) if stands_in(of) && t.links.is_none() => free = Some(t),
            _ => {}
        }
    }
    match free {
        Some(t) => {
            t.dest.set(dest);
            Some(t)
        }
        None => target(dest, true),
    }
}

/// Removes the links whose servers take no connect any more, and returns whether there was one. A link whose server is just
/// passing its connects on stays: a later connect waits until that is done. Under [`POOL`].
pub(super) fn sweep(t: &'static Target) -> bool {
    remove(t, |link| link.accepting() || is_handing_on(link))
}

/// As [`sweep`], but nobody waits for the server any longer. Under [`POOL`].
pub(super) fn sweep_handed_on(t: &'static Target) -> bool {
    remove(t, Link::accepting)
}

fn remove(t: &'static Target, stays: impl Fn(&Link) -> bool) -> bool {
    let mut any = false;
    retain(t, |link| {
        let stays = stays(link);
        if !stays && link.is_withdrawn() {
            // A server process that closes its listener while others have it hands the queued connects on to the
            // kernel.
            t.dest.get().into_iter().for_each(kernel_queue::note);
        }
        any |= !stays;
        stays
    });
    any
}

/// Adds a link to the list, which has a reference to it from now on. Under [`POOL`].
pub(super) fn add(t: &'static Target, link: &'static Link) {
    link.next.set(t.links.get());
    t.links.set(Some(link));
}

/// Removes the links for which `keep` is false from the list. Their connections go on.
pub(super) fn retain(t: &'static Target, mut keep: impl FnMut(&Link) -> bool) {
    let mut cell: &'static AtomicRef<Link> = &t.links;
    while let Some(l) = cell.get() {
        if keep(l) {
            cell = &l.next;
        } else {
            cell.set(l.next.get());
            // The link's open connections keep their own references to it.
            l.put();
        }
    }
}

/// Sweeps every destination, so that a program that connects to many servers does not keep links to those that have
/// ended. Under `POOL`.
pub(super) fn sweep_all() {
    for t in BUCKET.iter().flat_map(targets) {
        links(t).for_each(check_liveness);
        sweep(t);
    }
}

/// Whether a connect of this process waits at a server, also one whose connection has gone on by another path: the server
/// finds it by the link. Links of servers that have ended do not count.
pub(crate) fn any_connect_waits() -> bool {
    let _g = POOL.lock();
    let waits = |link: &Link| !link.is_lost() && link.segment().is_some_and(|segment| segment.queued() > 0);
    BUCKET.iter().flat_map(targets).any(|t| links(t).any(waits))
}

/// The links of a target, newest first. Under [`POOL`].
pub(super) fn links(t: &'static Target) -> impl Iterator<Item = &'static Link> {
    t.links.list(|l| &l.next)
}

/// The links to the listener with the cookie `member` (0: there is only one listener).
pub(super) fn links_to(t: &'static Target, member: u64) -> impl Iterator<Item = &'static Link> {
    links(t).filter(move |l| l.listener.member.load(Ordering::Relaxed) == member)
}

/// Called in the child of a fork: the links are the parent's; connections of the child make their own.
pub fn after_fork() {
    for t in BUCKET.iter().flat_map(targets) {
        links(t).for_each(Link::inherit);
        t.links.set(None);
    }
}
