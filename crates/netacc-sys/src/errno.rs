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

impl Errno {
    /// Not an errno: the connection is the kernel's by now, and the call is to be made there.
    pub const TO_KERNEL: Errno = Errno(-1);
    /// Not an errno: the thread is cancelled, and ends as soon as it holds nothing of ours.
    pub const CANCELLED: Errno = Errno(-2);
}

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
