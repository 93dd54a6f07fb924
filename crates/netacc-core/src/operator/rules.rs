//! Loads the rules anew while the process runs (`netacc_ctl reload`).
//!
//! The file is read and checked as a whole before anything changes: with a mistake in it the process keeps its rules.
//! New sockets follow the new rules from then on, and listeners are taken to where these permit them; connections stay
//! where they are.

use crate::conn::ports;
use crate::fd::{fd_cache, placeholder, table};
use crate::listen::adopt;
use crate::runtime::Runtime;
use crate::{own_calls, process_mode, runtime};
use alloc::vec::Vec;
use core::sync::atomic::{Ordering, fence};
use netacc_conf::{Config, Diagnostic, Rules, Source};
use netacc_stats::{Reason, Reloaded, page};
use netacc_sys::errno::Errno;

/// Why the rules stay as they are.
#[derive(Debug, PartialEq, Eq)]
enum Kept {
    Unreadable(Errno),
    Mistaken(Vec<Diagnostic>),
    /// The process must make no system call on its own account.
    Confined,
}

impl Kept {
    /// The answer to the operator.
    fn answer(&self) -> (Reloaded, u32) {
        match self {
            Kept::Unreadable(Errno(number)) => (Reloaded::Unreadable, number.unsigned_abs()),
            Kept::Mistaken(diags) => (Reloaded::Mistaken, diags.first().map_or(0, line)),
            Kept::Confined => (Reloaded::Confined, 0),
        }
    }
}

/// The line that a diagnostic is about; 0: the file as a whole.
fn line(diag: &Diagnostic) -> u32 {
    match diag.source {
        Source::File { line } => line,
        _ => 0,
    }
}

/// Loads the rules anew, and answers the request with this count. Called by the working thread, which holds no lock.
pub(crate) fn reload(count: u8) {
    let Some(rt) = runtime::get() else { return };
    let (answer, detail) = match load(rt) {
        Ok(()) => (Reloaded::Loaded, 0),
        Err(kept) => {
            report(rt, &kept);
            kept.answer()
        }
    };
    page().rules().answer(count, answer, detail);
}

fn load(rt: &'static Runtime) -> Result<(), Kept> {
    if process_mode::reason() == Some(Reason::Confined) {
        return Err(Kept::Confined);
    }
    let mut rules = match rt.file.read() {
        // As at the start: the usual file need not be there. A file that has gone while its rules are in force is a
        // mistake.
        Err(Errno::NOENT) if rt.file.may_be_absent() && !Runtime::has_rules() => Rules::default(),
        read => Config::of_file(&rt.file.shown(), &read.map_err(Kept::Unreadable)?).map_err(Kept::Mistaken)?.rules,
    };
    rt.file.keep_own(&mut rules);
    rt.load(&rules);
    netacc_log::log!(
        Info,
        "rules: loaded anew from {} by an operator, {} for this program; open connections stay where they are",
        rt.file.shown(),
        rules.as_slice().len()
    );
    follow(rt);
    Ok(())
}

/// Has the process follow rules that are in force now.
fn follow(rt: &'static Runtime) {
    own_calls::log(own_calls::examine(rt));
    if !rt.accelerates() {
        placeholder::drop_ready_sockets();
        fd_cache::close_all();
    }
    ports::forget_absent();
    let mut ruled_out = false;
    // Threads that find their listener left to the kernel hear of its coming back only if it is awaited before.
    process_mode::note_left_to_kernel(true);
    // Pairs with the fence in `opening::open`.
    fence(Ordering::SeqCst);
    table::each_socket(|fd, r| {
        if let Some(_pin) = r.pin() {
            ruled_out |= adopt::follow_rules(fd, r.obj, rt);
        }
    });
    process_mode::note_left_to_kernel(ruled_out);
}

/// Says in the log why the rules stay.
fn report(rt: &Runtime, kept: &Kept) {
    let file = rt.file.shown();
    match kept {
        Kept::Unreadable(e) => netacc_log::log!(Warn, "rules: {file} cannot be read ({e}); the rules stay as they are"),
        Kept::Mistaken(diags) => {
            diags.iter().for_each(|diag| netacc_log::log!(Warn, "{diag}"));
            netacc_log::log!(Warn, "rules: {file} has mistakes; the rules stay as they are");
        }
        // The log cannot be written to either.
        Kept::Confined => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_names_what_is_wrong() {
        let wrong = Config::of_file("f", b"[rules]\nuse=tcp\nuse=udp\nuse=\n").unwrap_err();
        assert_eq!(Kept::Mistaken(wrong).answer(), (Reloaded::Mistaken, 3));
        assert_eq!(Kept::Mistaken(Config::of_file("f", b"").unwrap_err()).answer(), (Reloaded::Mistaken, 0));
        assert_eq!(Kept::Unreadable(Errno::NOENT).answer(), (Reloaded::Unreadable, 2));
    }
}
