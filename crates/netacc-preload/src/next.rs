//! The next definition of a symbol after ours, and the macro that makes a hook.

use core::ffi::{CStr, c_void};
use core::marker::PhantomData;
use core::sync::atomic::{AtomicPtr, Ordering};

/// Which function a [`Next`] is. That is a type, and the name lies in the code that looks for it: with a pointer to it in
/// each [`Next`] the loader would have to write to four more pages of each process.
pub trait Sought {
    /// The function's name.
    const NAME: &'static CStr;
    /// Libraries to search if no other library defines the function. They need not be loaded, or may be loaded only for a
    /// part of the program.
    const LIBRARIES: &'static [&'static CStr] = &[];
}

/// A libc function, looked up when it is first needed: hooks are called before any constructor of ours.
pub struct Next<S> {
    addr: AtomicPtr<c_void>,
    sought: PhantomData<S>,
}

impl<S: Sought> Next<S> {
    /// A function that has not been looked up yet.
    pub const fn new() -> Next<S> {
        Next { addr: AtomicPtr::new(core::ptr::null_mut()), sought: PhantomData }
    }

    /// Address of the function if it was looked up before, else null.
    #[inline]
    pub fn known(&self) -> *mut c_void {
        // Relaxed: every thread finds the same address, and the code there needs no ordering.
        self.addr.load(Ordering::Relaxed)
    }

    /// Address of the function, looked up if need be; null if there is no such function (an older libc).
    #[inline]
    pub fn get(&self) -> *mut c_void {
        let p = self.known();
        if p.is_null() { find(&self.addr, S::NAME, S::LIBRARIES) } else { p }
    }
}

#[cold]
fn find(addr: &AtomicPtr<c_void>, name: &CStr, libraries: &[&CStr]) -> *mut c_void {
    #[cfg(target_arch = "x86_64")]
    if netacc_sys::static_program::is_one() {
        let p = crate::without_libc::function(name);
        addr.store(p, Ordering::Relaxed);
        return p;
    }
    let mut p = netacc_sys::symbol::next(name);
    if p.is_null() {
        p = without_64(name);
    }
    for library in libraries {
        if p.is_null() {
            p = netacc_sys::linker::loaded(library, name);
        }
    }
    if p.is_null() {
        p = crate::stand_ins::stand_in(name);
    }
    addr.store(p, Ordering::Relaxed);
    p
}

/// Looks up a name with the suffix `64` without it. musl's loader resolves such names (`fcntl64`) to the plain ones
/// (`fcntl`), which only its own table shows.
fn without_64(name: &CStr) -> *mut c_void {
    let mut plain = [0u8; 32];
    let mut parts = name.to_bytes_with_nul().splitn(2, |b| *b == b'6');
    let (Some(before), Some([b'4', after @ ..])) = (parts.next(), parts.next()) else { return core::ptr::null_mut() };
    plain.iter_mut().zip(before.iter().chain(after)).for_each(|(to, from)| *to = *from);
    CStr::from_bytes_until_nul(&plain).map_or(core::ptr::null_mut(), netacc_sys::symbol::next)
}

/// Sets errno and gives -1.
#[cold]
pub fn fail(e: netacc_sys::Errno) -> isize {
    netacc_sys::weak::set_errno(e.0);
    -1
}

/// Sets errno and gives -1 for a call in which the thread was cancelled, but which does not end the thread: only the
/// calls inside `sleeps!` do.
#[cold]
pub fn interrupted() -> isize {
    fail(netacc_sys::Errno::INTR)
}

/// Calls the next definition of `$name`; -1 with ENOSYS where there is none.
macro_rules! call_next {
    ($name:ident ( $($arg:expr => $ty:ty),* ) -> $ret:ty) => {{
        next_of!(NEXT, name_of!($name));
        call_at!(NEXT, ($($arg => $ty),*) -> $ret)
    }};
}

/// Defines `$next`, the next definition of the function `$name`, which is not looked up yet.
macro_rules! next_of {
    ($next:ident, $name:expr $(, $libraries:expr)?) => {
        #[allow(non_camel_case_types, clippy::upper_case_acronyms, reason = "the type has the name of its static")]
        enum $next {}

        impl $crate::next::Sought for $next {
            const NAME: &'static core::ffi::CStr = $name;
            $(const LIBRARIES: &'static [&'static core::ffi::CStr] = $libraries;)?
        }

        static $next: $crate::next::Next<$next> = $crate::next::Next::new();
    };
}

macro_rules! name_of {
    ($name:ident) => {
        match core::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
            Ok(s) => s,
            Err(_) => c"",
        }
    };
}

/// Calls the function that `$next` stands for.
macro_rules! call_at {
    ($next:ident, ( $($arg:expr => $ty:ty),* ) -> $ret:ty) => {{
        let p = $next.get();
        if p.is_null() {
            $crate::next::fail(netacc_sys::Errno::NOSYS) as $ret
        } else {
            // SAFETY: the libc function of this name has this signature; the arguments are the caller's.
            unsafe { called!(p, ($($arg => $ty),*) -> $ret) }
        }
    }};
}

/// Calls the function at `$p`.
macro_rules! called {
    ($p:ident, ( $($arg:expr => $ty:ty),* ) -> $ret:ty) => {{
        let f: unsafe extern "C" fn($($ty),*) -> $ret = core::mem::transmute($p);
        f($($arg),*)
    }};
}

/// Returns the result of `$next` where `$ours` is false.
macro_rules! pass_on {
    ([], $($rest:tt)*) => {};
    ([$ours:expr], $next:ident, ( $($arg:expr => $ty:ty),* ) -> $ret:ty) => {
        // A function that was not looked up yet is looked up by the slow path, in `ours`.
        let p = $next.known();
        #[allow(unused_unsafe)]
        // SAFETY: the application calls under the function's own contract; the libc function has this signature.
        unsafe {
            if !p.is_null() && !$ours {
                return called!(p, ($($arg => $ty),*) -> $ret);
            }
        }
    };
}

/// What the socket layer makes of a call, with the thread counted as inside the library meanwhile.
macro_rules! answered {
    ($body:expr) => {
        match netacc_sys::visits::Visit::begin() {
            netacc_sys::visits::Admission::Inside(_visit) => $body,
            netacc_sys::visits::Admission::Anew => netacc_core::Outcome::ANEW,
            netacc_sys::visits::Admission::Closer => netacc_core::Outcome::Pass,
        }
    };
}

/// The result of a call with this outcome: of `$pass` where the next definition makes the call, and of `$anew` where the
/// call is to be made once more. Of a time-out of which a part is over, the call has what is left: by `$left`, where the
/// time-out that ends at `$until` is an argument of the call; else it is a limit of the socket `$fd`, which `has_passed` of the
/// hooks knows.
macro_rules! concluded {
    ($outcome:expr, $pass:expr, $fd:expr => $anew:expr, $ret:ty $(, $until:ident => $left:expr)?) => {
        match $outcome {
            netacc_core::Outcome::Pass => $pass,
            netacc_core::Outcome::Done(v) => v as $ret,
            netacc_core::Outcome::Failed(e) => $crate::next::fail(e) as $ret,
            netacc_core::Outcome::Cancelled => $crate::next::interrupted() as $ret,
            $(netacc_core::Outcome::Anew { until: $until, .. } => $left,)?
            #[allow(unreachable_patterns, reason = "a call with a time-out has the line above")]
            netacc_core::Outcome::Anew { waits, until } if has_passed(until, $fd as usize as i32, waits) => {
                -1 as $ret
            }
            // Made anew, with the whole time-out if there is one.
            _ => $anew,
        }
    };
}

/// The first of some arguments, which is the descriptor in a call on one.
macro_rules! first {
    ($first:expr $(, $rest:expr)*) => {
        $first
    };
}

/// One line per intercepted call: its C signature and what the socket layer makes of it. With `where`, the call is
/// passed on at once if that is false: a few instructions, for the calls that a program makes most on descriptors
/// that are not ours.
///
/// A line whose call has a time-out ends with that call once more, with what is left of it until the time named before the
/// arrow.
///
/// With `mod NAME` there is a module of that name, too, in which the function of each line only tells what the socket
/// layer makes of the call: for a caller that passes a call on in another way than by libc's function.
macro_rules! hooks {
    (mod $outcomes:ident; $($lines:tt)*) => {
        hooks! { $($lines)* }
        outcomes! { $outcomes; $($lines)* }
    };
    ($(
        fn $name:ident ( $($arg:ident : $ty:ty),* ) -> $ret:ty $(where $ours:expr)? => $body:expr
            $(, $until:ident => $left:expr)?;
    )*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> $ret {
            next_of!(NEXT, name_of!($name));
            unsafe extern "C" fn here($($arg: $ty),*) -> $ret {
                pass_on!([$($ours)?], NEXT, ($($arg => $ty),*) -> $ret);
                // SAFETY: the application calls under the function's own contract.
                unsafe { ours($($arg),*) }
            }
            // A separate function, so that a call that only passes through saves no registers and makes no frame.
            #[inline(never)]
            unsafe fn ours($($arg: $ty),*) -> $ret {
                #[allow(unused_unsafe)]
                // SAFETY: the application calls under the function's own contract. The visit ends with the outcome, so that
                // a thread is not inside while the next definition makes the call.
                unsafe {
                    concluded!(
                        answered!($body), call_at!(NEXT, ($($arg => $ty),*) -> $ret), first!($($arg),*) => $name($($arg),*), $ret
                        $(, $until => $left)?
                    )
                }
            }
            jump_by_table!($name, here, ($($arg : $ty),*) -> $ret)
        }
    )*};
}

/// Defines the module of [`hooks!`] with the outcomes of its calls.
macro_rules! outcomes {
    (
        $module:ident;
        $(
            fn $name:ident ( $($arg:ident : $ty:ty),* ) -> $ret:ty $(where $ours:expr)? => $body:expr
                $(, $until:ident => $left:expr)?;
        )*
    ) => {
        #[allow(unused_unsafe, reason = "the lines differ in what they need")]
        #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "AArch64 has no select(2)"))]
        pub(crate) mod $module {
            use super::*;

            $(
                /// # Safety
                /// The contract is that of the call.
                pub unsafe fn $name($($arg: $ty),*) -> Outcome {
                    // SAFETY: the caller's guarantee.
                    unsafe {
                        $(if !$ours {
                            return Outcome::Pass;
                        })?
                        answered!($body)
                    }
                }
            )*
        }
    };
}

/// A call that may sleep. A thread that is cancelled meanwhile ends here, where it has nothing of ours to release. A
/// thread that was woken although another one was cancelled makes the call anew, and so does one that a signal has
/// interrupted, by no further frame, however often that happens. A thread that is to come out of the library does so first.
macro_rules! sleeps {
    ($call:expr) => {
        loop {
            match $call {
                netacc_core::Outcome::Cancelled => $crate::process::cancelled(),
                netacc_core::Outcome::Anew { until: netacc_sys::time::Until::NONE, .. }
                | netacc_core::Outcome::Restart
                    if netacc_sys::visits::stays_for_another() => {}
                outcome => break outcome,
            }
        }
    };
}

/// Defines hooks that execute a statement, which may use the call's arguments, and then call libc's function.
macro_rules! before {
    ($( fn $name:ident ( $($arg:ident : $ty:ty),* ) => $ours:expr; )*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> c_int {
            unsafe extern "C" fn here($($arg: $ty),*) -> c_int {
                if netacc_sys::libc_kind::is_known() {
                    visit!($name($($arg),*));
                    #[allow(unused_unsafe)]
                    // SAFETY: the application's arguments, under the contract of libc's function.
                    unsafe {
                        $ours
                    };
                }
                call_next!($name($($arg => $ty),*) -> c_int)
            }
            jump_by_table!($name, here, ($($arg : $ty),*) -> c_int)
        }
    )*};
}
