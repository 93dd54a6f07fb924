//! Listeners whose connections are passed on to other processes (Node's cluster module, a dispatcher with workers).
//!
//! Only a kernel socket can be passed (`SCM_RIGHTS`), so such a connection leaves its ring, mostly before its first byte.
//! That costs more than the ring could save, and for a client of another user a process of its own. After a few of them the
//! listener is left to the kernel, and its connections begin where they have to go.

use crate::listen::opening;
use crate::object::listener::{Listener, owner_of};
use crate::object::socket::Socket;
use core::sync::atomic::Ordering;
use netacc_stats::Reason;
use netacc_transport::shm::{Link, Side};

/// Number of connections that a process has passed on when it leaves their listener to the kernel.
const ENOUGH: u32 = 8;

/// To be called before the program passes the connection on. The caller holds no lock.
#[cold]
pub(crate) fn passes_on(s: &Socket) {
    let accepted_here = |link: &&'static Link| s.is_shm() && link.side() == Side::Server && !link.is_inherited();
    let link = s.endpoint().map(|ep| ep.side.link()).filter(accepted_here);
    let Some((l, owner)) = link.and_then(owner_of).and_then(|l| Some((l, l.owner.load()?))) else {
        return;
    };
    // The object of a listener that has ended may stand for another one.
    let still = owner.listener().is_some_and(|now| core::ptr::eq(now, l)) && port(owner) == port(s);
    if still && passes_nearly_all(l) {
        opening::give_up(owner.first_fd(), owner, Reason::Passed);
    }
}

fn port(s: &Socket) -> Option<u16> {
    s.local.get().map(|local| local.port())
}

/// Counts a connection that is passed on, and returns whether the program keeps hardly any: one in eight at most.
fn passes_nearly_all(l: &Listener) -> bool {
    // Relaxed, here and in accept(2): each number stands for itself.
    let passed = l.passed_on.fetch_add(1, Ordering::Relaxed) + 1;
    let accepted = l.accepted.load(Ordering::Relaxed);
    passed >= ENOUGH && u64::from(passed) * 8 >= u64::from(accepted) * 7
}
