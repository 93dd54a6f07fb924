//! What is known of a Go program, whose calls reach the library by the one function of its runtime that was changed.

use crate::engine;
use crate::fd::table;
use crate::object::socket::Path;
use crate::process_mode;
use crate::runtime::Runtime;
use crate::switch::demote;
use netacc_stats::Reason;
use netacc_sys::go_program::Unfollowed;
use netacc_sys::{SharedCell, delivery};

/// The program is not Go's.
const OTHER: u32 = 0;
/// Its calls are followed.
const FOLLOWED: u32 = 1;
/// They are not, by the user's wish.
const OFF: u32 = 2;
/// They are not, for the [`Unfollowed`] whose number this is added to.
const UNFOLLOWED: u32 = 3;

static STATE: SharedCell<u32> = SharedCell::<u32>::new(OTHER);

const ALL: [Unfollowed; 8] = [
    Unfollowed::Machine,
    Unfollowed::WithoutLibc,
    Unfollowed::StaticLibc,
    Unfollowed::NotFound,
    Unfollowed::ThreadPointers,
    Unfollowed::Ambiguous,
    Unfollowed::Plugins,
    Unfollowed::Refused,
];

/// Notes that the program is Go's, and whether its calls are followed.
pub fn note(found: Result<(), Unfollowed>) {
    // Relaxed, as all accesses: the loader's thread is the only one yet.
    let state = match found {
        Ok(()) => {
            engine::note_go();
            // Its runtime asks the kernel itself.
            delivery::note_one_inside();
            FOLLOWED
        }
        Err(why) => UNFOLLOWED + ALL.iter().position(|w| *w == why).unwrap_or(0) as u32,
    };
    STATE.set(state);
}

/// Whether its calls are followed.
#[must_use]
pub fn is_followed() -> bool {
    STATE.get() == FOLLOWED
}

/// Notes that the user does not want the calls of Go programs followed.
pub fn note_off() {
    STATE.set(OFF);
}

/// Whether the environment says that Go programs are left alone ([`netacc_conf::ENV_ENABLE_GO`]). A configuration file
/// is read at the first socket and not here.
#[must_use]
pub fn is_off_by_environment() -> bool {
    crate::startup::env(netacc_conf::ENV_ENABLE_GO) == Some(b"0")
}

/// Whether a socket of MPTCP is refused, as where the kernel's setting (`net.mptcp.enabled`) does. Since 1.24 each
/// listener of Go is one where the kernel has it, and Go goes on with TCP where it is refused. The kernel does not tell
/// which listener of MPTCP has a port, so that clients could not know whose rendezvous is the right one.
#[must_use]
pub fn refuses_mptcp(domain: i32, ty: i32, proto: i32) -> bool {
    const FLAGS: i32 = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    proto == libc::IPPROTO_MPTCP
        && ty & !FLAGS == libc::SOCK_STREAM
        && matches!(domain, libc::AF_INET | libc::AF_INET6)
        && crate::startup::ensure().is_some_and(Runtime::accelerates)
        && process_mode::reason().is_none()
}

/// To be called before a descriptor is duplicated. A duplicate is what Go code makes of a connection or a listener to
/// hand it to a program that it starts, and it starts programs without our knowledge. So it becomes the kernel's before.
/// A listener that was inherited, and that the program has not waited on yet, is duplicated to become Go's: it stays.
pub fn before_duplicate(fd: i32) {
    if let Some(r) = table::socket(fd).filter(|r| r.obj.path() != Path::New) {
        let _ = demote::demote(fd, r, Reason::Passed);
    }
}

/// Starts the runtime, so that a Go program that cannot be followed is among those that `netacc_ss` shows.
pub fn show() {
    let _ = crate::startup::ensure();
}

/// Leaves the process to the kernel if it is a Go program whose calls are not followed: what its C code does with a
/// socket, its Go code would not know. Returns what to log.
pub(crate) fn examine(rt: &Runtime) -> Option<&'static str> {
    let why = match STATE.get() {
        OTHER => return None,
        FOLLOWED if rt.conf.enable_go => return None,
        FOLLOWED | OFF => "which are left to the kernel (NACC_ENABLE_GO=0)",
        n => ALL.get((n - UNFOLLOWED) as usize).map_or("", |why| why.why()),
    };
    process_mode::leave_to_kernel(Reason::Go);
    Some(why)
}

/// Logs what [`examine`] has found.
pub(crate) fn log(why: Option<&'static str>) {
    if let Some(why) = why {
        netacc_log::log!(Info, "program: it is a Go program, {why}; its connections use kernel TCP");
    }
}
