//! epoll_create(2).

use crate::epoll::instance::EPOLLS;
use crate::epoll::{cookies, fairness};
use crate::fd::table;
use crate::fd::table::Entry;
use crate::object::reference::Ref;
use crate::outcome::Outcome;
use core::sync::atomic::Ordering;
use netacc_sys::errno::Result;
use netacc_sys::{cpu, libc_kind};

/// epoll_create(2), epoll_create1(2): the kernel's instance, which is entered in the table so that its registrations
/// are seen.
pub fn create(make: impl FnOnce() -> Result<i32>) -> Outcome {
    if !libc_kind::is_known() {
        return Outcome::Pass;
    }
    crate::fd::fd_cache::close_all();
    let fd = match make() {
        Ok(fd) => fd,
        Err(e) => return Outcome::Failed(e),
    };
    if let Some(e) = EPOLLS.alloc().filter(|e| cookies::enter(*e).inspect_err(|_| EPOLLS.release(e)).is_ok()) {
        e.fd.set(fd);
        for n in [&e.ours, &e.usage, &e.others, &e.sleepers] {
            n.store(0, Ordering::Relaxed);
        }
        for n in [&e.polled, &e.with_liveness, &e.listened, &e.nested, &e.remote, &e.stash_len, &e.ready_len, &e.news] {
            n.set(0);
        }
        for is in [&e.inner, &e.foreign, &e.edges, &e.switch_due] {
            is.set(false);
        }
        e.stash.lock().queueable = false;
        e.own.store(0, Ordering::Relaxed);
        e.last_kernel.set(0);
        e.held_until.set(0);
        e.slice_start.set(0);
        e.loop_index.set(fairness::assign_index());
        e.peer_cpu.set(cpu::NO_CPU);
        e.spin.reset();
        e.refs.store(1, Ordering::Release);
        let r = Ref { obj: e, generation: e.generation() };
        match table::put(fd, Entry::Epoll(r)) {
            Ok(stale) => crate::fd::closing::replaced(fd, stale),
            // Without an entry the instance works for everything except accelerated connections, whose numbers cannot
            // be beyond the table either.
            Err(_) => EPOLLS.release(e),
        }
    }
    Outcome::Done(fd as isize)
}
