//! Opening libibverbs and librdmacm. They are not linked, so that a host without them loses nothing and a
//! process that never asks for RDMA never maps them.
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
    /// `dlopen` failed.
    Library {
        /// The name of the library's file.
        file: &'static CStr,
        /// The dynamic linker's message, NUL-terminated and cut to fit.
        why: [u8; 96],
    },
    /// The library is too old: it lacks a function that we need.
    Function {
        /// The library's file name.
        file: &'static str,
        /// The function that is missing.
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

/// The text of a C string that should be ASCII; "?" if it is not even UTF-8.
pub(crate) fn lossy(text: &CStr) -> &str {
    text.to_str().unwrap_or("?")
}

/// An open library. It is never closed: providers that it has opened itself have registered handlers whose code must
/// stay mapped.
pub(crate) struct Handle(*mut c_void);

impl Handle {
    pub(crate) fn open(file: &'static CStr) -> core::result::Result<Handle, LoadError> {
        // RTLD_NOW finds a library that does not fit another one here, where the consequence is TCP, and not at a later
        // call, which would end the program. RTLD_LOCAL keeps our copy from resolving the program's own symbols.
        let handle = linker::open(file, libc::RTLD_NOW | libc::RTLD_LOCAL);
        if handle.is_null() {
            return Err(LoadError::Library { file, why: linker_says() });
        }
        Ok(Handle(handle))
    }

    /// The address of a function; null if the library has none of that name. `name` must end in a NUL.
    pub(crate) fn symbol(&self, name: &'static str) -> *mut c_void {
        match CStr::from_bytes_with_nul(name.as_bytes()) {
            // SAFETY: the library is open, and the name ends in a NUL. Without a version this finds the symbol's
            // default version, which is the one that a program linked today gets.
            Ok(name) => unsafe { linker::symbol(self.0, name) },
            Err(_) => core::ptr::null_mut(),
        }
    }
}

/// A copy of the dynamic linker's last message, since the memory of `dlerror` is valid only until the next call.
fn linker_says() -> [u8; 96] {
    let mut why = [0u8; 96];
    let said: *const c_char = linker::error();
    if !said.is_null() {
        // SAFETY: dlerror(3) returned a NUL-terminated string that is valid until this thread calls it again.
        let text = unsafe { CStr::from_ptr(said) }.to_bytes();
        let last = why.len() - 1;
        for (to, from) in why.iter_mut().take(last).zip(text) {
            *to = *from;
        }
    }
    why
}

/// The functions of both libraries.
#[derive(Debug)]
pub struct Api {
    /// The functions of libibverbs.
    pub verbs: Verbs,
    /// The functions of librdmacm.
    pub cma: Cma,
}

static API: AtomicPtr<Api> = AtomicPtr::new(core::ptr::null_mut());
/// The first failure to open a library. It is remembered so that a host without the libraries searches for them once,
/// and not for each connect.
static FAILED: AtomicPtr<LoadError> = AtomicPtr::new(core::ptr::null_mut());

/// The functions if the libraries are open already; never opens anything.
pub(crate) fn loaded() -> Option<&'static Api> {
    // SAFETY: the pointer is null or comes from `keep`, which never frees it. Acquire pairs with the Release there.
    unsafe { API.load(Ordering::Acquire).as_ref() }
}

/// Stores `value` for the process, unless another thread was quicker, and returns what is stored. There is no lock,
/// since a child of fork could inherit it locked; if two threads open a library at once, `dlopen` only counts it twice.
fn keep<T>(place: &AtomicPtr<T>, value: T) -> &T {
    let fresh = Box::into_raw(Box::new(value));
    let winner = match place.compare_exchange(core::ptr::null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => fresh,
        Err(first) => {
            // SAFETY: the box was made above, and no other thread has seen its address.
            drop(unsafe { Box::from_raw(fresh) });
            first
        }
    };
    // SAFETY: the pointer is not null, and a value that is in its place is never freed.
    unsafe { &*winner }
}

/// The libraries' functions; opens the libraries if they are not open yet. An error says in a sentence what this host
/// lacks.
pub fn api() -> Result<&'static Api> {
    if let Some(api) = loaded() {
        return Ok(api);
    }
    // SAFETY: the pointer is null or comes from `keep`, which never frees it. Acquire pairs with the Release there.
    if let Some(error) = unsafe { FAILED.load(Ordering::Acquire).as_ref() } {
        return Err(Error::Load(error));
    }
    // These are checked before the libraries are opened, because the libraries write to standard error where they fail.
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

/// Opens libnl-route, which libibverbs needs, with lazy binding. It refers to a thousand symbols of which hardly any is
/// used, and binding them all takes half of the time in which libibverbs is opened; a library that is open already is
/// not bound again. If the file is missing or has another version, libibverbs opens its own as always.
fn open_routes() {
    // This opens libnl-3 too, since the two are one package.
    linker::open(c"libnl-route-3.so.200", libc::RTLD_LAZY | libc::RTLD_LOCAL);
}

/// Checks in sysfs, without the libraries, that the kernel offers a device to user space. The answer is not remembered,
/// since devices come and go.
fn need_device() -> Result<()> {
    let folder =
        open(c"/sys/class/infiniband_verbs", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|_| Error::NoKernelSupport)?;
    let mut room = [MaybeUninit::<u8>::uninit(); 1024];
    let mut found = false;
    {
        let mut entries = RawDir::new(&folder, &mut room);
        while let Some(Ok(entry)) = entries.next() {
            // Besides the devices there is one file, abi_version.
            found |= entry.file_name().to_bytes().starts_with(b"uverbs");
        }
    }
    netacc_sys::reserved_fds::drop_raw(folder);
    if found { Ok(()) } else { Err(Error::NoDevice) }
}

/// Checks that `RLIMIT_MEMLOCK` is more than 32 KiB. Up to that limit libibverbs writes a warning to the program's
/// standard error, and hardly any memory could be registered.
fn need_memlock() -> Result<()> {
    const LEAST: u64 = 32769;
    match getrlimit(Resource::Memlock).current {
        // Root is not limited, and gets no warning.
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
