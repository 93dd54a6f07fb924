//! Suspends the parent of a vfork(2) that is made by fork(2): it waits for the end of a pipe, which the kernel closes
//! when the child ends or executes another program.

use crate::fd::table;
use crate::{runtime, timeouts};
use core::sync::atomic::{AtomicI32, Ordering};
use netacc_sys::{raw, reserved_fds, time};
use rustix::fs::{Access, access, lstat, stat};
use rustix::pipe::{PipeFlags, pipe_with};

/// The writing ends (+ 1) of the pipes on which parents wait. A child's own end is here too, so that its children close
/// it.
static ENDS: [AtomicI32; 16] = [const { AtomicI32::new(0) }; 16];

const VFORK_CHECK_INTERVAL: i64 = time::ns(timeouts::VFORK_CHECK_INTERVAL) as i64;

/// Whether a child that shares our memory has no state of ours to change: no TCP socket was ever opened, and there is
/// no epoll instance.
pub fn stands_alone() -> bool {
    runtime::get().is_none() && table::is_empty()
}

/// Whether the kernel knows of no thread beside the calling one. False where proc(5) is not mounted.
pub fn has_one_thread() -> bool {
    // The link count of a directory is two plus its subdirectories, of which this one has one per thread.
    stat(c"/proc/self/task").is_ok_and(|s| s.st_nlink == 3)
}

/// To be called in the child of any fork: closes all writing ends except `own`, since a parent waits for its own vfork
/// child only, and not for children of others or grandchildren.
pub fn in_child(own: i32) {
    for cell in &ENDS {
        let end = cell.load(Ordering::Acquire) - 1;
        if end >= 0 && end != own {
            cell.store(0, Ordering::Relaxed);
            reserved_fds::close(end);
        }
    }
}

/// A pipe whose writing end is closed when the child ends or executes, and by nothing else.
#[derive(Debug)]
pub struct ChildPipe {
    reading: i32,
    writing: i32,
    /// The cell with the writing end.
    cell: &'static AtomicI32,
}

impl ChildPipe {
    /// Makes the pipe before the fork. `None`: no pipe can be made, and the parent does not wait.
    #[allow(clippy::new_without_default, reason = "it may fail")]
    pub fn new() -> Option<ChildPipe> {
        let (reading, writing) = pipe_with(PipeFlags::CLOEXEC).ok()?;
        let reading = reserved_fds::adopt(reading);
        let writing = reserved_fds::adopt(writing);
        let (Ok(reading), Ok(writing)) = (reading, writing) else {
            [reading, writing].into_iter().flatten().for_each(reserved_fds::close);
            return None;
        };
        // AcqRel: the child of another thread's fork that sees the number also sees its file.
        let free = |c: &&AtomicI32| c.compare_exchange(0, writing + 1, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        let Some(cell) = ENDS.iter().find(free) else {
            reserved_fds::close(reading);
            reserved_fds::close(writing);
            return None;
        };
        Some(ChildPipe { reading, writing, cell })
    }

    /// In the child, after [`in_child`] has closed the parent's ends: its own is open until the kernel closes it.
    pub fn keep(self) {
        reserved_fds::close(self.reading);
    }

    /// The writing end.
    pub fn end(&self) -> i32 {
        self.writing
    }

    /// In the parent: waits until child `pid` has ended or executed, if it was made.
    pub fn wait(self, pid: i32) {
        self.cell.store(0, Ordering::Release);
        reserved_fds::close(self.writing);
        while pid > 0 && !self.ended() && has(pid, self.writing) {}
        reserved_fds::close(self.reading);
    }

    /// Whether the writing end is closed everywhere, now or within `VFORK_CHECK_INTERVAL`.
    fn ended(&self) -> bool {
        raw::poll_one(self.reading, libc::POLLIN, VFORK_CHECK_INTERVAL).is_ok_and(|events| events != 0)
    }
}

/// Whether process `pid` has descriptor `fd` according to proc(5). A fork of another thread while the pipe was being
/// made may have left a copy of the end in an unrelated process.
#[cold]
fn has(pid: i32, fd: i32) -> bool {
    let exists = |path: &str| access(path, Access::EXISTS).is_ok();
    !exists("/proc/self/fd") || lstat(&*alloc::format!("/proc/{pid}/fd/{fd}")).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::{BorrowedFd, OwnedFd};

    #[test]
    fn an_end_in_a_process_that_is_not_the_child_is_not_waited_for() {
        let pipe = ChildPipe::new().unwrap();
        #[allow(unsafe_code)]
        // SAFETY: the descriptor is open until the pipe is dropped below.
        let _others: OwnedFd = unsafe { BorrowedFd::borrow_raw(pipe.end()) }.try_clone_to_owned().unwrap();
        // No process has this number.
        pipe.wait(i32::MAX);
    }

    #[test]
    fn a_parent_waits_for_its_own_child_alone() {
        let pipe = ChildPipe::new().unwrap();
        let other = ChildPipe::new().unwrap();
        #[allow(unsafe_code)]
        // SAFETY: the descriptor is open until the pipe is dropped below.
        let childs: OwnedFd = unsafe { BorrowedFd::borrow_raw(pipe.end()) }.try_clone_to_owned().unwrap();
        let me = std::process::id() as i32;
        let waits = std::thread::spawn(move || pipe.wait(me));
        assert!(!waits.is_finished());
        drop(childs);
        waits.join().unwrap();
        // No child was made, so there is nothing to wait for.
        other.wait(-1);
        assert!(ENDS.iter().all(|c| c.load(Ordering::Relaxed) == 0));
    }
}
