//! The descriptors that a program which is executed gets from this process.

use crate::fd::placeholder::is_stdio;
use crate::fd::table;
use crate::fd::table::Entry;
use crate::object::socket::{HANDED, Path, Socket};
use crate::switch::demote::demote;
use core::sync::atomic::Ordering;
use libc::FD_CLOEXEC;
use netacc_stats::Reason;
use netacc_sys::raw;

/// Notes that FD_CLOEXEC was cleared on the number: a program that is executed is meant to have it.
pub fn inheritable(fd: i32) {
    if let Some(r) = table::socket(fd) {
        r.obj.set(HANDED, true);
    }
}

/// Demotes the connections that another program is meant to have, before it runs in this process or in a child that
/// libc makes (`spawns`). `named` tells whether its arguments or environment mention a number.
///
/// Many servers leak their connections to every program that they start. A leaked connection that this process
/// continues to use is left unchanged. It is demoted if there is evidence that the program shall have it: it is a
/// standard stream, its number is mentioned, was duplicated or lost its FD_CLOEXEC for that purpose, or the process
/// that uses it is replaced itself.
pub fn before_exec(spawns: bool, named: impl Fn(i32) -> bool) {
    table::each(0, usize::MAX, |fd, e| {
        let Entry::Socket(r) = e else { return };
        let stays = raw::fcntl(fd, libc::F_GETFD, 0).is_ok_and(|f| f & FD_CLOEXEC == 0);
        if stays && r.obj.path() == Path::Listener {
            crate::engine::note_unknown_sharer();
        }
        // A socket without a connection costs little, and its placeholder must not be connected by that program.
        let is_cheap = r.obj.path() == Path::New;
        if stays
            && (is_cheap || handed_over(r.obj, spawns) || is_stdio(fd) || named(fd))
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
            // A listener on which this process never accepted will be served by the new program.
            Path::Listener => s
                .listener()
                .is_some_and(|l| l.many.load(Ordering::Relaxed) != 0 && l.served.load(Ordering::Relaxed) != 0),
            Path::New | Path::Tcp | Path::Shm => s.endpoint().is_some_and(|ep| ep.side.link().is_inherited()),
        };
    s.has(HANDED) || !elsewhere
}
