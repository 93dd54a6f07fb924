//! Opening the libraries. Nothing is linked: a host without them loses nothing, and a process that
//! never asks for RDMA never maps them.
//!
//! # Safety
//! `dlopen` runs the constructors of rdma-core's libraries, as a program linked to them does.
#![allow(unsafe_code)]

use crate::error::{Error, Result};
use crate::sys::{Cma, Verbs};
use alloc::boxed::Box;
use core::ffi::{CStr, c_char, c_void};
use core::fmt;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicPtr, Ordering};
use netacc_sys::linker;
use rustix::fs::{Mode, OFlags, RawDir, open};
use rustix::process::{Resource, geteuid, getrlimit};

/// Why the libraries cannot be used.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum LoadError {
    /// `dlopen` refused.
    Library {
        /// The file asked for.
        file: &'static CStr,
        /// What the dynamic linker said, cut to fit, NUL-terminated.
        why: [u8; 96],
    },
    /// The library is too old: it lacks a function that we need.
    Function {
        /// The library's file name.
        file: &'static str,
        /// The function that is not there.
        name: &'static str,
    },
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoadError::Library { file, why } => {
                let said = CStr::from_bytes_until_nul(why).unwrap_or(c"no reason given");
                write!(f, "{} cannot be opened ({})", lossy(file), lossy(said))
            }
            LoadError::Function { file, name } => write!(f, "{file} is too old: it has no function {name}"),
        }
    }
}

impl fmt::Debug for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A C string that ought to be ASCII.
pub(crate) fn lossy(text: &CStr) -> &str {
    text.to_str().unwrap_or("?")
}

/// An open library. It stays open for the life of the process: providers that it has opened itself
/// have handlers registered that must not lose their code.
pub(crate) struct Handle(*mut c_void);

impl Handle {
    pub(crate) fn open(file: &'static CStr) -> core::result::Result<Handle, LoadError> {
        // All links at once: a library that does not fit another one is found out here, where the answer is TCP, and not at
        // a call in the middle of somebody's program, which would end.
        // Local: our copy must not answer for a program's own symbols.
        let handle = linker::open(file, libc::RTLD_NOW | libc::RTLD_LOCAL);
        if handle.is_null() {
            return Err(LoadError::Library { file, why: linker_says() });
        }
        Ok(Handle(handle))
    }

    /// The address of a function; null if the library has none of that name, which ends in NUL.
    pub(crate) fn symbol(&self, name: &'static str) -> *mut c_void {
        match CStr::from_bytes_with_nul(name.as_bytes()) {
            // SAFETY: an open library and a NUL-terminated name. Without a version it is the default one, which is
            // what a program linked today gets.
            Ok(name) => unsafe { linker::symbol(self.0, name) },
            Err(_) => core::ptr::null_mut(),
        }
    }
}

/// The dynamic linker's last words; `dlerror`'s own memory lasts only until its next call.
fn linker_says() -> [u8; 96] {
    let mut why = [0u8; 96];
    let said: *const c_char = linker::error();
    if !said.is_null() {
        // SAFETY: a NUL-terminated string of this thread.
        let text = unsafe { CStr::from_ptr(said) }.to_bytes();
        let last = why.len() - 1;
        for (to, from) in why.iter_mut().take(last).zip(text) {
            *to = *from;
        }
    }
    why
}

/// Both libraries' functions.
#[derive(Debug)]
pub struct Api {
    /// libibverbs.
    pub verbs: Verbs,
    /// librdmacm.
    pub cma: Cma,
}

static API: AtomicPtr<Api> = AtomicPtr::new(core::ptr::null_mut());
/// Remembered, so that a host without the libraries searches for them once and not with each connect.
static FAILED: AtomicPtr<LoadError> = AtomicPtr::new(core::ptr::null_mut());

/// The functions if they are already there; never opens anything.
pub(crate) fn loaded() -> Option<&'static Api> {
    // SAFETY: null or what `keep` put there, which is never freed. Acquire pairs with its Release.
    unsafe { API.load(Ordering::Acquire).as_ref() }
}

/// Makes `value` the one of the process, unless another thread was quicker. A lock would have to be
/// looked after in the child of a fork; opening a library twice only counts it twice.
fn keep<T>(place: &AtomicPtr<T>, value: T) -> &T {
    let fresh = Box::into_raw(Box::new(value));
    let winner = match place.compare_exchange(core::ptr::null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => fresh,
        Err(first) => {
            // SAFETY: made above, and nobody else has seen it.
            drop(unsafe { Box::from_raw(fresh) });
            first
        }
    };
    // SAFETY: not null, and never freed once it is in its place.
    unsafe { &*winner }
}

/// The libraries' functions, opened now if need be. An error says in a sentence what this host lacks.
pub fn api() -> Result<&'static Api> {
    if let Some(api) = loaded() {
        return Ok(api);
    }
    // SAFETY: null or what `keep` put there.
    if let Some(error) = unsafe { FAILED.load(Ordering::Acquire).as_ref() } {
        return Err(Error::Load(error));
    }
    // Before the libraries are opened, because they write to the standard error output where these fail.
    need_device()?;
    need_memlock()?;
    open_routes();
    let opened = Verbs::open().and_then(|verbs| {
        crate::provider::open_needed(verbs.ibv_alloc_pd as *const c_void);
        Ok(Api { verbs, cma: Cma::open()? })
    });
    match opened {
        Ok(api) => Ok(keep(&API, api)),
        Err(error) => Err(Error::Load(keep(&FAILED, error))),
    }
}

/// libibverbs needs libnl's part for routes, which has a thousand links of which hardly any is followed: half of what opening
/// takes, unless it is open already and links when it is called. Where there is none, or another one, all is as it would be.
fn open_routes() {
    // The two parts of libnl are one package.
    linker::open(c"libnl-route-3.so.200", libc::RTLD_LAZY | libc::RTLD_LOCAL);
}

/// Whether the kernel offers any device to user space: a glance at a folder, without the libraries.
/// Not remembered, since devices come and go.
fn need_device() -> Result<()> {
    let folder =
        open(c"/sys/class/infiniband_verbs", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|_| Error::NoKernelSupport)?;
    let mut room = [MaybeUninit::<u8>::uninit(); 1024];
    let mut found = false;
    {
        let mut entries = RawDir::new(&folder, &mut room);
        while let Some(Ok(entry)) = entries.next() {
            // Beside the devices there is one file, abi_version.
            found |= entry.file_name().to_bytes().starts_with(b"uverbs");
        }
    }
    netacc_sys::reserved_fds::drop_raw(folder);
    if found { Ok(()) } else { Err(Error::NoDevice) }
}

/// libibverbs complains on the standard error output below this limit, where nobody asked for it, and
/// little could be registered anyway.
fn need_memlock() -> Result<()> {
    const LEAST: u64 = 32769;
    match getrlimit(Resource::Memlock).current {
        // Root is not limited, and not complained to.
        Some(limit) if limit < LEAST && !geteuid().is_root() => Err(Error::Memlock { wanted: LEAST as usize, limit }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn a_missing_library_is_named() {
        let error = Handle::open(c"libnetacc-is-not-there.so.1").err().unwrap();
        let text = error.to_string();
        assert!(text.starts_with("libnetacc-is-not-there.so.1 cannot be opened ("), "{text}");
        assert!(text.contains("No such file"), "{text}");
    }

    #[test]
    fn a_missing_function_is_null() {
        let library = Handle::open(c"libc.so.6").unwrap();
        assert!(library.symbol("ibv_alloc_pd\0").is_null());
        assert!(!library.symbol("read\0").is_null());
        let text = LoadError::Function { file: "libibverbs.so.1", name: "ibv_alloc_pd" }.to_string();
        assert_eq!(text, "libibverbs.so.1 is too old: it has no function ibv_alloc_pd");
    }

    #[test]
    fn a_long_reason_is_cut() {
        let mut why = [b'x'; 96];
        assert!(LoadError::Library { file: c"l", why }.to_string().contains("no reason given"));
        why[95] = 0;
        assert!(LoadError::Library { file: c"l", why }.to_string().ends_with("xxx)"));
    }

    #[test]
    fn the_first_one_kept_stays() {
        static PLACE: AtomicPtr<u32> = AtomicPtr::new(core::ptr::null_mut());
        assert_eq!(*keep(&PLACE, 1), 1);
        assert_eq!(*keep(&PLACE, 2), 1);
    }
}
