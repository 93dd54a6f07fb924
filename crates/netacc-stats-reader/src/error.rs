//! Why a page could not be read.

use std::fmt;
use std::io;

use netacc_stats::LAYOUT_VERSION;

/// Why there is no [`Snapshot`](super::Snapshot) of a process.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// No process has this number.
    NoProcess,
    /// The process has ended and waits to be reaped.
    Exited,
    /// The system does not let us look into the process.
    Denied,
    /// The process has no page: NetACC is not loaded into it.
    NotAccelerated,
    /// NetACC is loaded, but the process has no page: it begins with the first TCP socket.
    Unused,
    /// The process holds only the page of another process, whose number in its
    /// own PID namespace this is. Seen just after a fork.
    Inherited(u32),
    /// The page is being filled at this moment.
    Starting,
    /// The page has a layout that this version does not know.
    Layout {
        /// The version of the layout.
        found: u32,
        /// The release of NetACC in the process; empty if the page does not say.
        library: String,
    },
    /// The page is shorter than its layout, in bytes.
    Truncated(u64),
    /// The page contradicts itself.
    Corrupt(&'static str),
    /// The system failed to read it.
    Io(io::Error),
}

impl Error {
    /// The error that a failure to open a file of a process in `/proc` stands for.
    pub(super) fn of_proc(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Self::NoProcess,
            io::ErrorKind::PermissionDenied => Self::Denied,
            // ESRCH: the process ended between two steps.
            _ if error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => Self::NoProcess,
            _ => Self::Io(error),
        }
    }
}

/// Displays what is wrong and what to do, as text that follows "process PID".
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoProcess => {
                f.write_str("does not exist; run netacc_ss without a PID to list the accelerated processes")
            }
            Self::Exited => f.write_str("has ended; only its parent has not yet noticed"),
            Self::Denied => {
                f.write_str("belongs to another user or is protected; run netacc_ss as that user or as root")
            }
            Self::NotAccelerated => f.write_str(
                "is not accelerated by NetACC; restart it with 'netacc_run COMMAND', \
                 and run netacc_ss without a PID to list the accelerated processes",
            ),
            Self::Unused => f.write_str(
                "has NetACC loaded but has not opened a TCP socket yet; its figures begin with the first one",
            ),
            Self::Inherited(owner) => {
                write!(f, "was forked from process {owner} and has no statistics of its own (yet)")
            }
            Self::Starting => f.write_str("is just starting; try again"),
            Self::Layout { found, library } => {
                let release = if library.is_empty() { String::new() } else { format!(" {library}") };
                let (age, advice) = if *found > LAYOUT_VERSION {
                    ("a newer", "use the tools of that version")
                } else {
                    ("an older", "restart it, or use the tools of that version")
                };
                write!(f, "runs {age} NetACC{release} (page layout {found}, this one knows {LAYOUT_VERSION}); {advice}")
            }
            Self::Truncated(len) => write!(f, "has a damaged statistics page (only {len} bytes); restart the process"),
            Self::Corrupt(what) => write!(f, "has a damaged statistics page ({what}); restart the process"),
            Self::Io(error) => write!(f, "cannot be read: {error}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(error) => Some(error),
            _ => None,
        }
    }
}
