//! Reading a liveness socket of either side: wake-up bytes, the socket on which the connection goes on, and the end.
//!
//! All processes of a side read the same socket. A wake-up byte is meant for whichever of them reads it first. A
//! message with descriptors is meant for all of them: each one peeks at it, which duplicates the descriptors (unix(7)),
//! and leaves it in place. A read returns whatever is at the front, so a process that peeks at bytes and then reads
//! might remove a message that came to the front because another process took those bytes. Therefore only one process
//! at a time may peek and read.

use crate::shm::ShmEndpoint;
use crate::shm::guard::{FirstMessage, first_bare_message};
use crate::shm::passing::{PASSES, PASSES_OLD_SUBFLOW, receive_descriptors};
use crate::shm::wake_peer::WAKE;
use netacc_sys::errno::Errno;
use netacc_sys::lock::Guard;
use netacc_sys::raw;
use netacc_sys::record_lock::RecordLock;

/// Largest number of reads of a socket in one call, since a peer may keep sending.
const LOOKS: usize = 64;

/// Result of reading a liveness socket of either side.
pub(super) enum LivenessEvent {
    /// The socket has no data.
    Nothing,
    /// Wake-up bytes or a socket were received, for which other threads that sleep there have to be woken too.
    Woken,
    /// The last process at the other end has closed it.
    End,
    /// Data that no process with this library sends.
    Strange,
}

/// Guard that keeps other threads of this process and other processes from reading the socket.
struct Reading<'a> {
    #[expect(dead_code, reason = "held as long as it lives; dropped first, since it belongs to all threads")]
    processes: RecordLock,
    #[expect(dead_code, reason = "held as long as it lives")]
    threads: Guard<'a>,
}

impl Reading<'_> {
    /// Takes the locks; `None` if another thread or process is reading.
    fn begin(ep: &ShmEndpoint, fd: i32) -> Option<Reading<'_>> {
        let threads = ep.liveness.draining.try_lock()?;
        Some(Reading { processes: RecordLock::try_take(fd).ok()?, threads })
    }
}

impl ShmEndpoint {
    /// Receives wake-up bytes, and the socket on which the connection goes on. With `stays` the socket is left for the
    /// other sharers. Without `over` a read that was cut short ends it, since nothing but bytes has come.
    pub(super) fn drain(&self, fd: i32, stays: bool, over: bool) -> LivenessEvent {
        let mut buf = [0u8; 64];
        let mut heard = LivenessEvent::Nothing;
        // A stranger passes nothing that the other sharers would need.
        let lends = self.side.link().peer.is_trusted();
        let stays = stays && lends;
        let mut reading = None;
        for _ in 0..LOOKS {
            // Descriptors stay in the socket, which is closed by `dismiss_shared`.
            if !lends && matches!(first_bare_message(fd), FirstMessage::Message { descriptors: true, .. }) {
                self.side.report("passed descriptors over a liveness socket");
                return LivenessEvent::Strange;
            }
            let (got, fds) = receive_descriptors(fd, &mut buf, stays);
            let found = fds.kernel.is_some() || fds.lost;
            if self.passed.keep(&self.side, fds) {
                self.poke_self();
            }
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
            if !stays && !over && n < buf.len() {
                return heard;
            }
            if stays && reading.is_none() {
                // The socket is read again under the locks, since another thread or process may have taken the data in
                // between.
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
