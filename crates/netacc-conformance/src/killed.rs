//! A peer that is killed at any instruction: it is a process that is executed step by step.
#![allow(unsafe_code)]

use crate::links::Links;
use core::ffi::c_void;
use netacc_sys::raw;
use netacc_transport::shm::{Link, ShmEndpoint};

/// How far the peer came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It was killed after this many instructions.
    Killed(u64),
    /// It had done all after this many instructions, and was killed then.
    Done(u64),
}

/// What a test says where no process may be executed step by step.
pub const REFUSED: &str = "ptrace(2) is not allowed here";
/// The exit status of a peer that may not be traced.
const NO_PTRACE: i32 = 77;

/// A connection whose other side is a process that does one thing.
pub struct Mortal {
    /// Our end of the connection.
    pub ep: &'static ShmEndpoint,
    /// Our link.
    pub link: &'static Link,
    peer: libc::pid_t,
}

/// Calls ptrace(2) without an address; `data` is a number.
fn ptrace(request: libc::c_uint, pid: libc::pid_t, data: usize) -> libc::c_long {
    // SAFETY: the requests of this module read and write no memory of the caller.
    unsafe { libc::ptrace(request, pid, core::ptr::null_mut::<c_void>(), data) }
}

fn wait_for(pid: libc::pid_t) -> i32 {
    let mut status = 0;
    // SAFETY: `status` is room for the answer.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    status
}

impl Mortal {
    /// A new connection over which `prepare` is done on both sides. The peer, which is the client or the server, does
    /// `act`. The calling process must have no other thread that may hold a lock, since it forks.
    pub fn new(
        peer_is_client: bool,
        trusted: bool,
        prepare: impl FnOnce(&'static ShmEndpoint, &'static ShmEndpoint),
        act: impl FnOnce(&'static ShmEndpoint),
    ) -> Mortal {
        let links = Links::new(trusted);
        let (client, server) = links.connect().unwrap();
        let (ep, theirs) = if peer_is_client { (server, client) } else { (client, server) };
        prepare(ep, theirs);
        let (ours, theirs_link) =
            if peer_is_client { (links.server, links.client) } else { (links.client, links.server) };
        // SAFETY: the child only does what is here, and ends without returning to the test.
        let peer = unsafe { libc::fork() };
        assert!(peer >= 0);
        if peer == 0 {
            // What is ours ends with the parent. A link whose descriptors are closed would shut the socket down.
            raw::close(ours.control_fd()).unwrap();
            if ptrace(libc::PTRACE_TRACEME, 0, 0) != 0 {
                // SAFETY: ends the process at once.
                unsafe { libc::_exit(NO_PTRACE) };
            }
            stop();
            act(theirs);
            stop();
            // SAFETY: ends the process at once.
            unsafe { libc::_exit(0) };
        }
        // What is the peer's ends with it, and the copy of its link that is here is never used again.
        raw::close(theirs_link.control_fd()).unwrap();
        core::mem::forget(links);
        let status = wait_for(peer);
        assert!(!libc::WIFEXITED(status) || libc::WEXITSTATUS(status) != NO_PTRACE, "{REFUSED}");
        assert!(libc::WIFSTOPPED(status) && libc::WSTOPSIG(status) == libc::SIGSTOP, "status {status:x}");
        Mortal { ep, link: ours, peer }
    }

    /// Executes up to `steps` instructions of the peer, and kills it.
    pub fn kill_after(&self, steps: u64) -> End {
        let mut done = 0;
        let end = loop {
            if done == steps {
                break End::Killed(done);
            }
            assert_eq!(ptrace(libc::PTRACE_SINGLESTEP, self.peer, 0), 0);
            let status = wait_for(self.peer);
            assert!(libc::WIFSTOPPED(status), "status {status:x}");
            match libc::WSTOPSIG(status) {
                libc::SIGTRAP => done += 1,
                libc::SIGSTOP => break End::Done(done),
                signal => panic!("the peer got signal {signal}"),
            }
        };
        // SAFETY: it is our child, and not reaped yet.
        assert_eq!(unsafe { libc::kill(self.peer, libc::SIGKILL) }, 0);
        assert!(libc::WIFSIGNALED(wait_for(self.peer)));
        end
    }
}

fn stop() {
    // SAFETY: stops the calling process.
    unsafe { libc::raise(libc::SIGSTOP) };
}
