//! The descriptors that a program which is executed gets from this process.

use crate::fd::placeholder;
use crate::fd::placeholder::is_stdio;
use crate::fd::table;
use crate::fd::table::Entry;
use crate::object::socket::{HANDED, PLACEHOLDER, Path, Socket};
use crate::switch::demote::demote;
use core::sync::atomic::Ordering;
use libc::FD_CLOEXEC;
use netacc_stats::Reason;
use netacc_sys::{addr, raw};

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
/// that uses it is replaced itself. A socket that is not connected yet is no different, but for one that was bound: threads
/// of a program connect while another one starts programs.
pub fn before_exec(spawns: bool, named: impl Fn(i32) -> bool) {
    table::each(0, usize::MAX, |fd, e| {
        let Entry::Socket(r) = e else { return };
        let stays = raw::fcntl(fd, libc::F_GETFD, 0).is_ok_and(|f| f & FD_CLOEXEC == 0);
        if stays && r.obj.path() == Path::Listener {
            crate::engine::note_unknown_sharer();
        }
        if !stays {
            return;
        }
        let is_meant = is_bound(fd, r.obj) || handed_over(r.obj, spawns) || is_stdio(fd) || named(fd);
        let left = match r.obj.path() {
            // A placeholder must not be connected by that program.
            Path::New if !is_meant => placeholder::materialize(fd, r.obj),
            _ if is_meant => demote(fd, r, Reason::Exec),
            _ => Ok(()),
        };
        if let Err(e) = left {
            netacc_log::log!(
                Warn,
                "fd {fd}: cannot become a kernel socket ({e}); the next program gets no working socket"
            );
        }
    });
}

/// Whether this is a socket that has a port but no connection: a program may have bound it for the one that it starts.
fn is_bound(fd: i32, s: &Socket) -> bool {
    s.path() == Path::New && !s.has(PLACEHOLDER) && addr::local_of(fd).is_some_and(|a| a.port() != 0)
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
