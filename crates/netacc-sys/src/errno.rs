//! An errno value as the kernel gave it (errno(3)).

use core::fmt;

/// A positive errno value, e.g. `Errno::AGAIN`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

macro_rules! errnos {
    ($($name:ident = $c:ident),* $(,)?) => {
        impl Errno {
            $(#[doc = concat!("`", stringify!($c), "`")] pub const $name: Errno = Errno(libc::$c);)*

            /// The symbolic name, or `E?` for a value this library never makes itself.
            pub const fn name(self) -> &'static str {
                match self.0 { $(libc::$c => stringify!($c),)* _ => "E?" }
            }
        }
    };
}

errnos! {
    AGAIN = EAGAIN, BADF = EBADF, INTR = EINTR, INVAL = EINVAL, PIPE = EPIPE, NOTCONN = ENOTCONN,
    CONNRESET = ECONNRESET, CONNREFUSED = ECONNREFUSED, ISCONN = EISCONN, ALREADY = EALREADY,
    INPROGRESS = EINPROGRESS, TIMEDOUT = ETIMEDOUT, NOMEM = ENOMEM, MFILE = EMFILE, NFILE = ENFILE,
    OPNOTSUPP = EOPNOTSUPP, NOENT = ENOENT, EXIST = EEXIST, FAULT = EFAULT, NOPROTOOPT = ENOPROTOOPT,
    NOSYS = ENOSYS, PERM = EPERM, ADDRINUSE = EADDRINUSE, LOOP = ELOOP, PROTO = EPROTO, ACCES = EACCES,
    CONNABORTED = ECONNABORTED, DESTADDRREQ = EDESTADDRREQ, NOTSOCK = ENOTSOCK, NOSPC = ENOSPC,
    ADDRNOTAVAIL = EADDRNOTAVAIL, AFNOSUPPORT = EAFNOSUPPORT, NODEV = ENODEV, NODATA = ENODATA, IO = EIO, BUSY = EBUSY,
    NETUNREACH = ENETUNREACH, HOSTUNREACH = EHOSTUNREACH, NETDOWN = ENETDOWN, SHUTDOWN = ESHUTDOWN,
}

/// Why a call that may sleep is not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fail {
    /// The call failed.
    Errno(Errno),
    /// The connection is the kernel's by now, and the call is to be made there.
    ToKernel,
    /// The thread is cancelled (pthread_cancel(3)), and ends as soon as it holds nothing of ours.
    Cancelled,
    /// The call is to be made anew: the library is about to be replaced ([`crate::visits`]), or the connection has changed
    /// its path.
    Anew,
    /// A signal interrupted the call, and the kernel would restart it (signal(7)): it begins with its number, which the
    /// handler may have closed or given to another file.
    Restart,
}

impl Fail {
    /// Nothing is there now, or the time limit has passed.
    pub const AGAIN: Fail = Fail::Errno(Errno::AGAIN);
    /// A signal came.
    pub const INTR: Fail = Fail::Errno(Errno::INTR);
    /// The descriptor is closed.
    pub const BADF: Fail = Fail::Errno(Errno::BADF);
}

impl From<Errno> for Fail {
    fn from(e: Errno) -> Self {
        Fail::Errno(e)
    }
}

/// The result of a call that may sleep.
pub type Answer<T> = core::result::Result<T, Fail>;

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self.name(), self.0)
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (errno {})", self.name(), self.0)
    }
}

impl From<rustix::io::Errno> for Errno {
    fn from(e: rustix::io::Errno) -> Self {
        Errno(e.raw_os_error())
    }
}

/// A result whose error is an errno.
pub type Result<T> = core::result::Result<T, Errno>;
