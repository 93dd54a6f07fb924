//! Requests to a process to leave its fast paths, to use them again, or to load its rules anew.

use std::io;
use std::path::Path;

use netacc_stats::layout::{Head, control as at, rules as rules_at};
use netacc_stats::{ControlCommand, ControlState, PAGE_SIZE, Reloaded, Upgraded};
use rustix::fd::OwnedFd;
use rustix::fs::{FileType, FlockOperation, Mode, OFlags, SealFlags, fcntl_get_seals, flock, fstat, open};
use rustix::io::{Errno, pread, pwrite, write};

use crate::source::system;
use crate::{Error, Page, Process, Snapshot};

/// The offset of the control words in the page.
const AT: u64 = core::mem::offset_of!(Head, control) as u64;

/// Where the words about the rules lie behind those.
const RULES_AT: usize = core::mem::offset_of!(Head, in_force) - core::mem::offset_of!(Head, control);

/// Number of bytes of both.
const BYTES: usize = RULES_AT + size_of::<netacc_stats::RulesInForce>();

/// The words of a process that concern an operator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Control {
    /// The current request to be off or on.
    pub request: u8,
    /// The request of this kind that the process carried out last.
    pub done: u32,
    /// How far the process is, as the number of a [`ControlState`]; 0: the library follows no operator.
    pub state: u32,
    /// Number of connections that have not switched to the kernel yet.
    pub left: u32,
    /// Descriptor (+ 1) of the write end of the pipe that wakes it; 0: there is none.
    wake_pipe: u32,
    /// What became of the last request to replace the library, a number of [`Upgraded`], and an errno in the bits above
    /// the lowest eight; 0: none was answered.
    upgraded: u16,
    /// How often the process was asked to load its rules anew, as far as a byte counts.
    pub reload: u8,
    /// The count of the request of this kind that it answered last.
    pub answered: u32,
    /// The answer, a number of [`Reloaded`].
    pub answer: u32,
    /// What the answer says besides: an errno or a line.
    pub detail: u32,
    /// When the rules in force were loaded: CLOCK_REALTIME in nanoseconds; 0 for a library that loads them only at its
    /// start.
    pub rules_loaded_ns: u64,
    /// The version of the rules on the page.
    pub(crate) rules_version: u32,
}

impl Control {
    /// Decodes the words from the first one of the control on.
    pub(crate) fn parse(words: &[u8]) -> Self {
        let word = |at: usize| {
            let bytes = words.get(at..).and_then(|rest| rest.first_chunk::<4>());
            u32::from_ne_bytes(bytes.copied().unwrap_or_default())
        };
        let rules = |at: usize| word(RULES_AT + at);
        let loaded = words.get(RULES_AT + rules_at::LOADED..).and_then(|rest| rest.first_chunk::<8>());
        Self {
            request: words.get(at::SWITCH).copied().unwrap_or_default(),
            reload: words.get(at::RELOAD).copied().unwrap_or_default(),
            answered: rules(rules_at::ANSWERED),
            answer: rules(rules_at::ANSWER),
            detail: rules(rules_at::DETAIL),
            rules_version: rules(rules_at::VERSION),
            rules_loaded_ns: u64::from_ne_bytes(loaded.copied().unwrap_or_default()),
            upgraded: word(at::SWITCH).to_ne_bytes().last_chunk().map_or(0, |half| u16::from_ne_bytes(*half)),
            done: word(at::DONE),
            state: word(at::STATE),
            left: word(at::LEFT),
            wake_pipe: word(at::WAKE_PIPE),
        }
    }

    /// How far the process is; `None` if it follows no operator, or if the state is unknown to this version.
    #[must_use]
    pub fn state(&self) -> Option<ControlState> {
        ControlState::from_u32(self.state)
    }

    /// Whether the current request to be off or on has been carried out.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        u32::from(self.request) == self.done
    }

    /// What became of the last request to replace the library, and an errno or 0; `None`: none was answered, or the answer
    /// is not known here.
    #[must_use]
    pub fn upgraded(&self) -> Option<(Upgraded, i32)> {
        Upgraded::from_u32(u32::from(self.upgraded & 0xff)).map(|what| (what, i32::from(self.upgraded >> 8)))
    }

    /// Whether the process can load its rules anew.
    #[must_use]
    pub fn can_reload(&self) -> bool {
        self.state != 0 && self.rules_loaded_ns != 0
    }

    /// Whether the process has answered the current request to load the rules anew.
    #[must_use]
    pub fn has_answered(&self) -> bool {
        u32::from(self.reload) == self.answered
    }

    /// What became of the last request to load the rules anew that was answered; `None`: there was none, or the answer
    /// is not known here.
    #[must_use]
    pub fn reloaded(&self) -> Option<Reloaded> {
        Reloaded::from_u32(self.answer)
    }
}

/// The right to send requests to a process, which one controller at a time has.
#[derive(Debug)]
pub struct Controller {
    process: Process,
    file: OwnedFd,
    /// User that owns the page's file (`st_uid`).
    owner: u32,
}

/// Why no request can be sent to a process.
#[derive(Debug)]
pub enum Refusal {
    /// Another controller is sending requests to the process.
    Busy,
    /// The process belongs to another user.
    Denied,
    /// The file with the page's name is not a page.
    NoPage,
    /// A system call failed.
    Io(io::Error),
}

impl From<Errno> for Refusal {
    fn from(error: Errno) -> Self {
        match error {
            Errno::AGAIN => Self::Busy,
            Errno::ACCESS | Errno::PERM => Self::Denied,
            error => Self::Io(system(error)),
        }
    }
}

impl Page {
    /// Opens the page for requests.
    ///
    /// # Errors
    ///
    /// The variant of the error says why this is impossible.
    pub fn control(&self) -> Result<Controller, Refusal> {
        // The page is a file whose size is sealed. No other file must be written to: a hostile process may present any
        // file that it has been passed as its page, and root may write to all of them.
        let seals = fcntl_get_seals(&self.file).map_err(|_| Refusal::NoPage)?;
        let about = fstat(&self.file)?;
        if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) || about.st_size.cast_unsigned() != PAGE_SIZE as u64 {
            return Err(Refusal::NoPage);
        }
        let file = again(&self.file, OFlags::RDWR)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Controller { process: self.process.copy()?, file, owner: about.st_uid })
    }
}

/// Opens the file behind a descriptor once more, independently of its name.
fn again(file: &OwnedFd, flags: OFlags) -> Result<OwnedFd, Errno> {
    use rustix::fd::AsRawFd;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    open(path.as_str(), flags | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY, Mode::empty())
}

impl Controller {
    /// Reads the words of the process.
    ///
    /// # Errors
    ///
    /// When the page cannot be read.
    pub fn read(&self) -> Result<Control, Error> {
        let mut words = [0; BYTES];
        match pread(&self.file, &mut words, AT) {
            Ok(_) => Ok(Control::parse(&words)),
            Err(error) => Err(Error::Io(system(error))),
        }
    }

    /// Stores a request to be off or on, or to replace the library, and wakes the process if it sleeps.
    ///
    /// # Errors
    ///
    /// When the page cannot be written.
    pub fn request(&self, command: ControlCommand) -> Result<(), Error> {
        let now = self.read()?;
        self.store(at::SWITCH, command.after(now.request), &now)
    }

    /// Stores a request to load the rules anew, and wakes the process if it sleeps.
    ///
    /// # Errors
    ///
    /// When the page cannot be written.
    pub fn request_reload(&self) -> Result<(), Error> {
        let now = self.read()?;
        self.store(at::RELOAD, now.reload.wrapping_add(1), &now)
    }

    fn store(&self, at: usize, byte: u8, now: &Control) -> Result<(), Error> {
        pwrite(&self.file, &[byte], AT + at as u64).map_err(|error| Error::Io(system(error)))?;
        self.wake(now);
        Ok(())
    }

    /// Wakes the process. A process without a pipe has no thread asleep: it makes the pipe before its first sleep, and
    /// then checks for a request.
    fn wake(&self, control: &Control) {
        let Some(fd) = control.wake_pipe.checked_sub(1) else { return };
        let path = self.process.path(format_args!("fd/{fd}"));
        // The file is examined before it is opened, since opening a file of another type may have side effects.
        let Ok(found) = open(path.as_str(), OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) else { return };
        let Ok(about) = fstat(&found) else { return };
        if FileType::from_raw_mode(about.st_mode) != FileType::Fifo
            || !self.is_its_own(about.st_uid)
            || !has_no_name(&found)
        {
            return;
        }
        if let Ok(pipe) = again(&found, OFlags::WRONLY) {
            // A full pipe wakes the process already.
            let _ = write(&pipe, b"!");
        }
    }

    /// Whether a file of user `uid` may be one that the process made, and not one that another user passed to it.
    fn is_its_own(&self, uid: u32) -> bool {
        use std::os::unix::fs::MetadataExt;
        let process = std::fs::metadata(self.process.path("")).map(|about| about.uid());
        uid == self.owner || process.is_ok_and(|process| process == uid)
    }
}

/// Whether this is a pipe made by pipe(2), and not a FIFO with a name in a folder.
fn has_no_name(file: &OwnedFd) -> bool {
    use rustix::fd::AsRawFd;
    let link = std::fs::read_link(Path::new(&format!("/proc/self/fd/{}", file.as_raw_fd())));
    link.is_ok_and(|target| target.to_string_lossy().starts_with("pipe:["))
}

impl Snapshot {
    /// How far the process is with an operator's request; `None` as for [`Control::state`].
    #[must_use]
    pub fn control_state(&self) -> Option<ControlState> {
        self.control.state()
    }

    /// What became of a request to replace the library, as [`Control::upgraded`] says it.
    #[must_use]
    pub fn upgraded(&self) -> Option<(Upgraded, i32)> {
        self.control.upgraded()
    }
}
