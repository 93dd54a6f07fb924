//! Options of a socket that the kernel does not have, or whose kernel socket does not carry the connection.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use libc::SOL_SOCKET;
use netacc_sys::{SharedCell, raw};
use netacc_transport::shm::ShmEndpoint;

const REMEMBERED: usize = 20;

/// Integer options that were set on such a socket. They are returned by getsockopt(2), and applied to a kernel socket
/// that replaces it. Guarded by the socket's `meta` lock.
#[derive(Debug)]
pub struct Remembered {
    used: AtomicU32,
    /// Level of the option in the upper half, name in the lower.
    key: [AtomicU64; REMEMBERED],
    value: [AtomicU32; REMEMBERED],
}

impl Remembered {
    pub(crate) fn clear(&self) {
        self.used.store(0, Ordering::Relaxed);
    }

    fn entries(&self) -> impl Iterator<Item = (u64, &AtomicU32)> {
        let used = self.used.load(Ordering::Relaxed) as usize;
        self.key.iter().map(|k| k.load(Ordering::Relaxed)).zip(&self.value).take(used)
    }

    pub(crate) fn get(&self, level: i32, name: i32) -> Option<i32> {
        let key = key(level, name);
        self.entries().find(|(k, _)| *k == key).map(|(_, v)| v.load(Ordering::Relaxed) as i32)
    }

    pub(crate) fn set(&self, level: i32, name: i32, value: i32) -> bool {
        if (level, name) == (SOL_SOCKET, libc::SO_KEEPALIVE) && value != 0 {
            KEEPALIVE.set(true);
        }
        let key = key(level, name);
        if let Some((_, v)) = self.entries().find(|(k, _)| *k == key) {
            v.store(value as u32, Ordering::Relaxed);
            return true;
        }
        let at = self.used.load(Ordering::Relaxed) as usize;
        let (Some(k), Some(v)) = (self.key.get(at), self.value.get(at)) else { return false };
        k.store(key, Ordering::Relaxed);
        v.store(value as u32, Ordering::Relaxed);
        self.used.store(at as u32 + 1, Ordering::Relaxed);
        true
    }

    /// Whether TCP_CORK is set.
    pub(crate) fn is_corked(&self) -> bool {
        self.used.load(Ordering::Relaxed) != 0 && self.get(libc::IPPROTO_TCP, libc::TCP_CORK).is_some_and(|on| on != 0)
    }

    /// Applies SO_SNDBUF and SO_RCVBUF as limits of the bytes in a ring.
    pub(crate) fn bound(&self, ep: &ShmEndpoint) {
        if self.used.load(Ordering::Relaxed) != 0 {
            let size = |name| self.get(SOL_SOCKET, name).unwrap_or(0).max(0) as u32;
            let (send, receive) = (size(libc::SO_SNDBUF), size(libc::SO_RCVBUF));
            if send | receive != 0 {
                ep.set_buffers(send, receive);
            }
        }
    }

    /// Copies the options of a listener to a connection that it accepted. The kernel's connections begin without a
    /// priority, and without what concerns the listener's queue.
    pub(crate) fn inherit(&self, from: &Remembered) {
        let stays = [
            key(SOL_SOCKET, libc::SO_PRIORITY),
            key(libc::IPPROTO_TCP, libc::TCP_FASTOPEN),
            key(libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT),
        ];
        for (k, v) in from.entries().filter(|(k, _)| !stays.contains(k)) {
            self.set((k >> 32) as i32, k as u32 as i32, v.load(Ordering::Relaxed) as i32);
        }
    }

    /// All of them: level, name and value.
    pub(crate) fn all(&self) -> impl Iterator<Item = (i32, i32, i32)> {
        self.entries().map(|(k, v)| ((k >> 32) as i32, k as u32 as i32, v.load(Ordering::Relaxed) as i32))
    }

    /// Applies all remembered options to a real socket.
    pub(crate) fn apply(&self, fd: i32) {
        for (level, name, v) in self.all() {
            // The kernel doubles the value that is set, and returns the double (socket(7)). The size may have been set
            // beyond the limit by SO_SNDBUFFORCE or SO_RCVBUFFORCE.
            let _ = match (level, name) {
                (SOL_SOCKET, libc::SO_RCVBUF | libc::SO_SNDBUF) => {
                    let forced = raw::setsockopt_int(fd, level, forced_by(name), v / 2);
                    forced.or_else(|_| raw::setsockopt_int(fd, level, name, v / 2))
                }
                _ => raw::setsockopt_int(fd, level, name, v),
            };
        }
    }
}

/// Set once some socket has had SO_KEEPALIVE.
static KEEPALIVE: SharedCell<bool> = SharedCell::<bool>::new(false);

/// Whether any socket may have SO_KEEPALIVE.
pub(crate) fn has_keepalive() -> bool {
    KEEPALIVE.get()
}

fn key(level: i32, name: i32) -> u64 {
    u64::from(level as u32) << 32 | u64::from(name as u32)
}

/// The option by which a privileged program sets the size of a buffer past the host's limit.
fn forced_by(name: i32) -> i32 {
    if name == libc::SO_RCVBUF { libc::SO_RCVBUFFORCE } else { libc::SO_SNDBUFFORCE }
}
