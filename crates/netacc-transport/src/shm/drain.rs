//! What comes over a liveness socket of either side: wake-up bytes, the socket on which the connection goes on, the end.
//!
//! All processes of a side read the same socket. A wake-up byte is meant for whichever of them reads it first. A message
//! with descriptors is meant for all of them: each one peeks at it, which duplicates the descriptors (unix(7)), and leaves
//! it in place. A read returns whatever is at the front, so a process that peeks at bytes and then reads might remove a
//! message that came to the front because another process took those bytes. Therefore only one process at a time may
//! peek and read.

use crate::shm::ShmEndpoint;
use crate::shm::guard::{FirstMessage, first_message};
use crate::shm::passing::{PASSES, PASSES_OLD_SUBFLOW, receive_descriptors};
use crate::shm::sharers::WAKE;
use netacc_sys::errno::Errno;
use netacc_sys::lock::Guard;
use netacc_sys::raw;

/// Largest number of looks at a socket in one call: a peer that sends without end is not listened to without end.
const LOOKS: usize = 64;

/// What came over a liveness socket of either side.
pub(super) enum LivenessEvent {
    /// Nothing is there.
    Nothing,
    /// Wake-up bytes or a socket, which we have taken from any other thread that sleeps there.
    Woken,
    /// The last process at the other end is gone.
    End,
    /// Something that no process with this library sends.
    Strange,
}

/// As long as this lives, no other thread of this process and no other process reads bytes of the socket. Of the
/// threads one has the lock; of the processes one has the kernel's lock of the file (`F_SETLK`, fcntl(2)), which ends
/// with its process.
struct Reading<'a> {
    fd: i32,
    #[expect(dead_code, reason = "held as long as it lives")]
    threads: Guard<'a>,
}

impl Reading<'_> {
    /// None if another thread or process is reading.
    fn begin(ep: &ShmEndpoint, fd: i32) -> Option<Reading<'_>> {
        let threads = ep.draining.try_lock()?;
        set_lock(fd, libc::F_WRLCK).then_some(Reading { fd, threads })
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        set_lock(self.fd, libc::F_UNLCK);
    }
}

/// Takes or frees this process's lock of a file without waiting; whether that was done.
fn set_lock(fd: i32, kind: i32) -> bool {
    let lock = libc::flock { l_type: kind as i16, l_whence: libc::SEEK_SET as i16, l_start: 0, l_len: 0, l_pid: 0 };
    raw::fcntl(fd, libc::F_SETLK, (&raw const lock).addr()).is_ok()
}

impl ShmEndpoint {
    /// Takes wake-up bytes, and the socket on which the connection goes on. With `stays` the socket is left for the
    /// other sharers.
    pub(super) fn drain(&self, fd: i32, stays: bool) -> LivenessEvent {
        let mut buf = [0u8; 64];
        let mut heard = LivenessEvent::Nothing;
        // A stranger passes nothing that the other sharers would need.
        let lends = self.link().trusts_peer();
        let stays = stays && lends;
        let mut reading = None;
        for _ in 0..LOOKS {
            // Descriptors stay in the socket, which is closed with care.
            if !lends && matches!(first_message(fd), FirstMessage::Message { descriptors: true, .. }) {
                self.report("passed descriptors over a liveness socket");
                return LivenessEvent::Strange;
            }
            let (got, fds) = receive_descriptors(fd, &mut buf, stays);
            let found = fds.kernel.is_some() || fds.lost;
            self.learn_passed(fds);
            let n = match got {
                Ok(0) => return LivenessEvent::End,
                Ok(_) if found => return LivenessEvent::Woken,
                Ok(n) => n,
                Err(Errno::AGAIN | Errno::INTR) => return heard,
                Err(_) => return LivenessEvent::End,
            };
            let ours = |b: &u8| *b == WAKE || (lends && matches!(*b, PASSES | PASSES_OLD_SUBFLOW));
            if !buf.iter().take(n).all(ours) {
                return LivenessEvent::Strange;
            }
            heard = LivenessEvent::Woken;
            if stays && reading.is_none() {
                // The next look counts: what this one saw may have been taken in between.
                match Reading::begin(self, fd) {
                    None => return LivenessEvent::Woken,
                    begun => reading = begun,
                }
            } else if stays {
                let _ = raw::recv(fd, buf.as_mut_ptr(), n, libc::MSG_DONTWAIT);
            }
        }
        heard
    }
}
