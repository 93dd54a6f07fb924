//! What a program that is started gets of this process.

use crate::fd::placeholder::is_stdio;
use crate::fd::table;
use crate::fd::table::Entry;
use crate::object::socket::{HANDED, Path, Socket};
use crate::switch::demote::demote;
use core::sync::atomic::Ordering;
use libc::FD_CLOEXEC;
use netacc_stats::Reason;
use netacc_sys::raw;

/// FD_CLOEXEC was taken from the number: a program that is started is meant to have it.
pub fn inheritable(fd: i32) {
    if let Some(r) = table::socket(fd) {
        r.obj.set(HANDED, true);
    }
}

/// Another program is about to run in this process, or in a child that libc makes (`spawns`): what it is meant to
/// have must be the kernel's. `named` tells whether its arguments or environment mention a number.
///
/// Many servers leak their connections to every program they start. A leaked one that goes on here stays as it is;
/// it is handed over if something says so: a standard stream, a number that is named or was made or lost its
/// FD_CLOEXEC for the purpose, or that the process that had it is the one that is replaced.
pub fn before_exec(spawns: bool, named: impl Fn(i32) -> bool) {
    table::each(0, usize::MAX, |fd, e| {
        let Entry::Socket(r) = e else { return };
        let stays = raw::fcntl(fd, libc::F_GETFD, 0).is_ok_and(|f| f & FD_CLOEXEC == 0);
        if stays && r.obj.path() == Path::Listener {
            crate::engine::note_unknown_sharer();
        }
        if stays
            && (handed_over(r.obj, spawns) || is_stdio(fd) || named(fd))
            && let Err(e) = demote(fd, r, Reason::Exec)
        {
            netacc_log::log!(
                Warn,
                "fd {fd}: cannot become a kernel socket ({e}); the next program gets no working socket"
            );
        }
    });
}

fn handed_over(s: &Socket, spawns: bool) -> bool {
    let elsewhere = spawns
        || match s.path() {
            Path::New => false,
            // A listener on which this process never accepted is served by the program that is started.
            Path::Listener => s
                .listener()
                .is_some_and(|l| l.many.load(Ordering::Relaxed) != 0 && l.served.load(Ordering::Relaxed) != 0),
            Path::Tcp | Path::Shm => s.endpoint().is_some_and(|ep| ep.link().is_inherited()),
        };
    s.has(HANDED) || !elsewhere
}
