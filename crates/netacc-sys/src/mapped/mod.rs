//! Executes a static program with the library in its memory, since nothing can be preloaded into it.
//!
//! This process is the one that executes the program. A child of it, the helper, traces it for the moment between the
//! execution and the program's first instruction, maps the library, has the library's start run first, and ends. The
//! program's process is the same one as without the helper, and has no child: the library's start waits for the
//! helper's end (docs/decisions/0027). Nothing of what the process is or has changes if the execution fails.
#![allow(unsafe_code)]

pub mod file;
mod mapping;
mod problem;
mod rights;

pub use problem::Problem;

use self::file::Identity;
use crate::errno::Errno;
use crate::heap;
use crate::raw;
use crate::tracee::{self, Seized};
use core::ffi::CStr;
use core::time::Duration;
use mapping::{Library, Mapping};
use problem::ANSWER;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::io::{read, write};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

/// How long each side waits for the other one. Neither has anything else to do meanwhile.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// The process that maps the library.
#[derive(Debug)]
pub struct Helper(u32);

impl Helper {
    /// Starts the helper, which then waits until this process executes a program. `accepts` runs in the helper, and
    /// tells which program may get the library: any one, or that of a file. `report` runs in the helper, too, if the
    /// program is executed without the library after all.
    ///
    /// # Errors
    /// Why there is none. Nothing is left of it then.
    pub fn start(
        library: &CStr,
        accepts: impl FnOnce() -> Result<Option<Identity>, Problem>,
        report: impl FnOnce(Problem),
    ) -> Result<Helper, Problem> {
        rights::unchanged()?;
        let failed = |error: rustix::io::Errno| Problem::Helper(Errno(error.raw_os_error()));
        let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        let (ours, theirs) = pair.map_err(failed)?;
        let me = raw::getpid();
        heap::before_fork();
        let helper = tracee::helper(|| {
            heap::in_child();
            let _ = raw::close(ours.as_raw_fd());
            help(&theirs, me, library, accepts, report)
        });
        heap::after_fork();
        let helper = Helper(helper.map_err(Problem::Helper)?);
        drop(theirs);
        tracee::admit(helper.0);
        let answer = write(&ours, b"!").ok().and_then(|_| received(&ours));
        let answer = answer.map_or(Err(Problem::Ended), Problem::decode);
        if let Err(problem) = answer {
            helper.end();
            return Err(problem);
        }
        Ok(helper)
    }

    /// Ends the helper, where no program was executed.
    pub fn end(self) {
        tracee::end_helper(self.0);
    }
}

/// Waits for the other side's bytes. None if it has ended, or says nothing for too long.
fn received<const N: usize>(from: &OwnedFd) -> Option<[u8; N]> {
    let limit = Timespec { tv_sec: HANDSHAKE.as_secs().cast_signed(), tv_nsec: 0 };
    let mut bytes = [0; N];
    loop {
        match poll(&mut [PollFd::new(from, PollFlags::IN)], Some(&limit)) {
            Err(rustix::io::Errno::INTR) => {}
            Ok(n) if n > 0 => break,
            _ => return None,
        }
    }
    // One message of a few bytes comes whole.
    (read(from.as_fd(), &mut bytes).ok()? == N).then_some(bytes)
}

/// What the helper does.
fn help(
    parent: &OwnedFd,
    pid: u32,
    library: &CStr,
    accepts: impl FnOnce() -> Result<Option<Identity>, Problem>,
    report: impl FnOnce(Problem),
) -> i32 {
    if received::<1>(parent).is_none() {
        return 1;
    }
    let ready = Library::read(library)
        .and_then(|file| Ok((file, accepts()?)))
        .and_then(|(file, identity)| Ok((file, identity, Seized::seize(pid).map_err(Problem::Tracing)?)));
    let answer = ready.as_ref().err().map_or([0; ANSWER], |problem| problem.encode());
    if write(parent, &answer).is_err() {
        return 1;
    }
    let Ok((file, identity, seized)) = ready else { return 1 };
    let Some(mut held) = seized.held() else { return 1 };
    if identity.is_some_and(|identity| Some(identity) != file::of_process(pid)) {
        held.release();
        return 1;
    }
    match Mapping::make(&mut held, &file, library.to_bytes()) {
        Ok(mapping) => {
            let start = held.start();
            let entry = mapping.base + file.image.entry as usize;
            // The process has ended if this fails.
            let _ = held.release_at(entry, [raw::getpid() as usize, start]);
        }
        Err(problem) => {
            report(problem);
            held.release();
        }
    }
    0
}
