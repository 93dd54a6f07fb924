//! Static Go programs that the program executes, into which the library is mapped (docs/decisions/0027).

use crate::exec::{Args, each};
use core::ffi::{CStr, c_char, c_int};
use netacc_core::exec::static_go::{Named, prepare};
use netacc_sys::mapped::Helper;
use netacc_sys::{libc_kind, user, weak};
use rustix::fd::BorrowedFd;

/// What an execution needs if its program is a static one.
pub struct Execution(Option<Helper>);

impl Execution {
    /// By a path, relative to a folder.
    ///
    /// # Safety
    /// The arguments are those of execveat(2), of which nothing but the path and the environment is read.
    pub unsafe fn at(folder: c_int, path: *const c_char, envp: Args, flags: c_int) -> Execution {
        if flags & !libc::AT_EMPTY_PATH != 0 {
            return Execution(None);
        }
        // SAFETY: the program's string; the descriptor is only asked about.
        match unsafe { (user::text(path), borrowed(folder)) } {
            (Some(path), Some(folder)) if path.is_empty() && flags != 0 => Execution::of(Named::Open(folder), envp),
            (Some(path), Some(folder)) => Execution::of(Named::Path(folder, path), envp),
            _ => Execution(None),
        }
    }

    /// By a path, as execve(2).
    ///
    /// # Safety
    /// As for [`Execution::at`].
    pub unsafe fn path(path: *const c_char, envp: Args) -> Execution {
        // SAFETY: the caller's guarantee.
        unsafe { Execution::at(libc::AT_FDCWD, path, envp, 0) }
    }

    /// By a name that is looked for in the folders of `PATH`, as execvp(3).
    ///
    /// # Safety
    /// As for [`Execution::at`].
    pub unsafe fn searched(name: *const c_char, envp: Args) -> Execution {
        let mut folders = &b"/bin:/usr/bin"[..];
        // SAFETY: the program's string, and the environment that libc searches, too.
        let name = unsafe {
            values(weak::environment(), b"PATH=", |value| folders = value);
            user::text(name)
        };
        name.map_or(Execution(None), |name| Execution::of(Named::Searched(name, folders), envp))
    }

    /// By a descriptor, as fexecve(3).
    pub fn open(fd: c_int, envp: Args) -> Execution {
        // SAFETY: only asked about.
        unsafe { borrowed(fd) }.map_or(Execution(None), |fd| Execution::of(Named::Open(fd), envp))
    }

    fn of(program: Named<'_>, envp: Args) -> Execution {
        if !libc_kind::is_known() {
            return Execution(None);
        }
        let mut place = [0; PATH_MAX];
        let mut length = 0;
        let mut is_off = false;
        // SAFETY: the application's environment for the program.
        unsafe {
            values(envp, b"LD_PRELOAD=", |list| length = library(list, &mut place));
            values(envp, b"NACC_ENABLE_GO=", |value| is_off = value == b"0");
        }
        let path = place.get(..=length).and_then(|path| CStr::from_bytes_with_nul(path).ok());
        Execution(path.filter(|_| length > 0 && !is_off).and_then(|path| prepare(program, path)))
    }

    /// Leaves the execution to the caller, whose process ends if it fails.
    pub fn leave(self) {}

    /// Makes the execution by `call`, which returns only if it has failed. Then it is tried again as if we were absent:
    /// a process that is traced may have got another error.
    pub fn run<T>(self, call: impl Fn() -> T) -> T {
        let failed = call();
        match self.0 {
            None => failed,
            Some(helper) => {
                helper.end();
                call()
            }
        }
    }
}

/// The most bytes of a path.
const PATH_MAX: usize = 4096;

/// # Safety
/// `fd` is only asked about.
unsafe fn borrowed<'a>(fd: c_int) -> Option<BorrowedFd<'a>> {
    // SAFETY: the caller guarantees that it is only asked about; -1 is no number of a descriptor.
    (fd != -1).then(|| unsafe { BorrowedFd::borrow_raw(fd) })
}

/// Calls `found` with the value of each variable that begins with `name`.
///
/// # Safety
/// `envp` is null or an array of strings that ends with a null. They stay as they are.
unsafe fn values<'a>(envp: Args, name: &[u8], mut found: impl FnMut(&'a [u8])) {
    // SAFETY: the caller's guarantee.
    unsafe {
        each(envp, |variable| {
            if let Some(value) = user::text(variable).and_then(|text| text.to_bytes().strip_prefix(name)) {
                found(value);
            }
        });
    }
}

/// Writes the path of the library that a value of `LD_PRELOAD` names to `place`, and returns its length; 0 where there
/// is none.
fn library(list: &[u8], place: &mut [u8; PATH_MAX]) -> usize {
    const NAMES: [&[u8]; 2] = [b"/libnetacc-preload.so", b"/libnetacc_preload.so"];
    let mut paths = list.split(|byte| matches!(byte, b' ' | b':'));
    let is_ours = |path: &&[u8]| path.starts_with(b"/") && NAMES.iter().any(|name| path.ends_with(name));
    let Some(path) = paths.find(is_ours).filter(|path| path.len() < PATH_MAX) else { return 0 };
    for (to, from) in place.iter_mut().zip(path.iter().chain(&[0])) {
        *to = *from;
    }
    path.len()
}
