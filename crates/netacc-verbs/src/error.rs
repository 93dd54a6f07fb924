//! Errors: each value says which operation failed and why.

use crate::cm::CmEventType;
use crate::load::{LoadError, loaded, lossy};
use crate::sys::*;
use core::ffi::{CStr, c_int};
use core::fmt;
use netacc_sys::Errno;

/// A result of this crate.
pub type Result<T> = core::result::Result<T, Error>;

/// Why an operation failed. `Display` is a sentence for a log or for `netacc_ss`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// libibverbs or librdmacm cannot be used on this host.
    Load(&'static LoadError),
    /// The running kernel has no RDMA subsystem, or it is not loaded.
    NoKernelSupport,
    /// The kernel has RDMA, but there is no device.
    NoDevice,
    /// More memory was to be registered than `RLIMIT_MEMLOCK` allows.
    Memlock {
        /// How many bytes were to be registered.
        wanted: usize,
        /// The limit in bytes.
        limit: u64,
    },
    /// A function of the libraries failed.
    Verb {
        /// The function's name.
        verb: &'static str,
        /// The errno that it returned or set.
        errno: Errno,
    },
    /// A function was called with arguments or in a state that it does not allow, or the library returned nothing
    /// usable.
    Misuse {
        /// The function's name.
        verb: &'static str,
        /// What was wrong with the call.
        why: &'static str,
    },
    /// A work request completed with an error.
    Completion {
        /// The status of the completion.
        status: WcStatus,
        /// The device's own error code.
        vendor_err: u32,
        /// The number of the work request.
        wr_id: u64,
    },
    /// The connection manager reported that a step failed.
    Cm {
        /// The kind of the event that reported it.
        event: CmEventType,
        /// The event's status: a negative errno, or a reason of the other side's connection manager.
        status: i32,
    },
}

impl Error {
    /// The error of a function that failed and set the calling thread's errno.
    pub(crate) fn last(verb: &'static str) -> Error {
        Error::Verb { verb, errno: Errno(netacc_sys::weak::errno()) }
    }

    /// The errno that comes nearest, for a caller that must answer as a socket would.
    pub fn errno(&self) -> Errno {
        match *self {
            Error::Load(_) | Error::NoKernelSupport => Errno::NOSYS,
            Error::NoDevice => Errno::NODEV,
            Error::Memlock { .. } => Errno::NOMEM,
            Error::Verb { errno, .. } => errno,
            Error::Misuse { .. } => Errno::INVAL,
            Error::Completion { status, .. } => status.errno(),
            Error::Cm { event, status } => event.errno(status),
        }
    }

    /// Whether an `rdma_connect` failed only because its local port is taken, so that a new identifier, which gets
    /// another port, may succeed. iWARP connects by TCP from the port that the connection manager chose among its own,
    /// and another socket may have that port of TCP.
    pub fn is_port_taken(&self) -> bool {
        matches!(self, Error::Verb { verb: "rdma_connect", errno: Errno::ADDRINUSE | Errno::ADDRNOTAVAIL })
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Load(error) => error.fmt(f),
            Error::NoKernelSupport => f.write_str(
                "the kernel offers no RDMA to programs (no /sys/class/infiniband_verbs: is ib_uverbs loaded?)",
            ),
            Error::NoDevice => f.write_str("this host has no RDMA device (/sys/class/infiniband_verbs is empty)"),
            Error::Memlock { wanted, limit } => {
                write!(f, "{wanted} bytes cannot be registered: RLIMIT_MEMLOCK is {limit} bytes (ulimit -l)")
            }
            Error::Verb { verb, errno } => write!(f, "{verb}: {errno}"),
            Error::Misuse { verb, why } => write!(f, "{verb}: {why}"),
            Error::Completion { status, vendor_err, wr_id } => {
                write!(f, "work request {wr_id:#x}: {status} (status {}, vendor error {vendor_err:#x})", status.0)
            }
            Error::Cm { event, status } => write!(f, "{event} (status {status}, {})", event.errno(*status)),
        }
    }
}

/// The status of a completion: one of `IBV_WC_*` (ibv_poll_cq(3)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WcStatus(pub u32);

impl WcStatus {
    /// The library's description of the status (`ibv_wc_status_str`).
    pub fn text(self) -> &'static str {
        match loaded() {
            // SAFETY: the function takes any number.
            #[allow(unsafe_code)]
            Some(api) => static_text(unsafe { (api.verbs.ibv_wc_status_str)(self.0) }),
            None => "libibverbs is not loaded",
        }
    }

    /// The errno that a socket would report.
    pub fn errno(self) -> Errno {
        match self.0 {
            IBV_WC_SUCCESS => Errno(0),
            IBV_WC_RETRY_EXC_ERR => Errno::TIMEDOUT,
            IBV_WC_LOC_LEN_ERR | IBV_WC_LOC_QP_OP_ERR | IBV_WC_LOC_PROT_ERR => Errno::INVAL,
            IBV_WC_FATAL_ERR => Errno::IO,
            _ => Errno::CONNRESET,
        }
    }
}

impl fmt::Display for WcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// A text that a library keeps for ever, as its `*_str` functions return.
#[allow(unsafe_code)]
pub(crate) fn static_text(text: *const core::ffi::c_char) -> &'static str {
    if text.is_null() {
        return "?";
    }
    // SAFETY: the text ends in a NUL and lies in the constant data of a library that is never closed.
    lossy(unsafe { CStr::from_ptr(text) })
}

/// The result of a function that returns 0 or an errno. Depending on its age, a provider returns the errno with either
/// sign, or -1 with errno set.
pub(crate) fn check(verb: &'static str, result: c_int) -> Result<()> {
    match result {
        0 => Ok(()),
        -1 => Err(Error::last(verb)),
        errno => Err(Error::Verb { verb, errno: Errno(errno.saturating_abs()) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn either_sign_is_an_errno() {
        let expected = Error::Verb { verb: "ibv_post_send", errno: Errno::INVAL };
        assert_eq!(check("ibv_post_send", libc::EINVAL), Err(expected));
        assert_eq!(check("ibv_post_send", -libc::EINVAL), Err(expected));
        assert_eq!(check("ibv_post_send", 0), Ok(()));
        assert_eq!(expected.to_string(), "ibv_post_send: EINVAL (errno 22)");
        assert_eq!(check("x", i32::MIN).map_err(|e| e.errno().0), Err(i32::MAX));
    }

    #[test]
    fn minus_one_means_errno() {
        netacc_sys::weak::set_errno(libc::ENODEV);
        assert_eq!(check("rdma_listen", -1), Err(Error::Verb { verb: "rdma_listen", errno: Errno::NODEV }));
    }

    #[test]
    fn a_limit_is_said_with_both_numbers() {
        let text = Error::Memlock { wanted: 1 << 20, limit: 65536 }.to_string();
        assert_eq!(text, "1048576 bytes cannot be registered: RLIMIT_MEMLOCK is 65536 bytes (ulimit -l)");
    }

    #[test]
    fn what_a_socket_would_say() {
        let refused = Error::Cm { event: CmEventType(RDMA_CM_EVENT_REJECTED), status: 8 };
        assert_eq!(refused.errno(), Errno::CONNREFUSED);
        let flushed = Error::Completion { status: WcStatus(IBV_WC_WR_FLUSH_ERR), vendor_err: 0, wr_id: 7 };
        assert_eq!(flushed.errno(), Errno::CONNRESET);
        assert!(flushed.to_string().starts_with("work request 0x7: "), "{flushed}");
    }

    #[test]
    fn a_port_that_is_taken_says_nothing_of_the_destination() {
        let connect = |errno| Error::Verb { verb: "rdma_connect", errno };
        assert!(connect(Errno::ADDRINUSE).is_port_taken() && connect(Errno::ADDRNOTAVAIL).is_port_taken());
        assert!(!connect(Errno::CONNREFUSED).is_port_taken());
        assert!(!Error::Verb { verb: "rdma_listen", errno: Errno::ADDRINUSE }.is_port_taken());
    }
}
