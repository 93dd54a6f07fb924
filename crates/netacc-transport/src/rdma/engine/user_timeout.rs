//! How long a companion connection that has taken over waits for the other host.

use crate::host::{ConnToken, Patience, host};
use libc::{IPPROTO_TCP, SOL_SOCKET};
use netacc_sys::raw;

/// When the kernel is to give up a companion connection whose queue pair has failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct UserTimeout {
    /// `TCP_USER_TIMEOUT` (ms); 0: its own default.
    ms: u32,
    /// `TCP_KEEPIDLE` and `TCP_KEEPINTVL` (s), `TCP_KEEPCNT`, if the kernel is to ask at all.
    keepalive: Option<[u32; 3]>,
}

/// The value of a socket option, which the kernel takes as an int. A negative one would be refused.
fn int(value: u32) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}

impl UserTimeout {
    /// Time-out of an idle companion connection, without which the end of the other host would not be noticed.
    pub const OF_NOBODY: UserTimeout = UserTimeout { ms: 0, keepalive: Some([60, 15, 4]) };

    /// The patience that a socket's options ask for.
    pub fn of(socket: ConnToken) -> UserTimeout {
        let Patience { user_timeout_ms, keepalive } =
            host().map_or_else(Patience::default, |host| host.patience(socket));
        let ms = match user_timeout_ms {
            0 => keepalive.map_or(0, |k| seconds(k).saturating_mul(1000).min(i32::MAX as u32)),
            ms => ms,
        };
        UserTimeout { ms, keepalive }
    }

    /// The patience of two programs that share the companion connection: the less patient one decides.
    pub fn and(self, other: UserTimeout) -> UserTimeout {
        let ms = [self.ms, other.ms].into_iter().filter(|ms| *ms > 0).min().unwrap_or(0);
        let keepalive = self.keepalive.into_iter().chain(other.keepalive).min_by_key(|k| seconds(*k));
        UserTimeout { ms, keepalive }
    }

    /// Tells the kernel.
    pub fn apply(self, fd: i32) {
        let _ = raw::setsockopt_int(fd, IPPROTO_TCP, libc::TCP_USER_TIMEOUT, int(self.ms));
        let names = [libc::TCP_KEEPIDLE, libc::TCP_KEEPINTVL, libc::TCP_KEEPCNT];
        for (name, value) in names.into_iter().zip(self.keepalive.into_iter().flatten()) {
            let _ = raw::setsockopt_int(fd, IPPROTO_TCP, name, int(value));
        }
        let _ = raw::setsockopt_int(fd, SOL_SOCKET, libc::SO_KEEPALIVE, self.keepalive.is_some().into());
    }
}

/// Time (s) that silence lasts until keepalive gives up.
fn seconds([idle, interval, count]: [u32; 3]) -> u32 {
    idle.saturating_add(interval.saturating_mul(count))
}
