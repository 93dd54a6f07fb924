//! How another copy of the library takes the place of this one while the process runs: what `netacc_core`'s
//! `operator::exchange` leaves to the object that has the exported functions.
//!
//! The library that the loader has loaded is the *first copy*. It stays mapped for good, since the program has the
//! addresses of its exported functions; those lead to the newest copy. Every other copy is mapped from the library's file
//! without the loader. A copy that was replaced stays mapped as well, since a thread may yet return through it from a call
//! of libc's; what it has allocated is given back.
//!
//! # Safety
//! Two copies, which may be of different versions, meet in [`Entrance`] and [`Handover`] alone. Their layout is the
//! same for all copies with one [`VERSION`], and a copy of another version is refused.

use crate::freestanding;
use crate::table::Export;
use core::ffi::{CStr, c_char, c_void};
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use netacc_core::operator::exchange::{self, Exchanger, Obstacle};
use netacc_stats::Upgraded;
use netacc_sys::errno::Errno;
use netacc_sys::signals::Blocked;
use netacc_sys::successor::{Copy, Problem};
use netacc_sys::{libc_kind, linker, origin, symbol, visits};

/// Version of what copies tell each other.
const VERSION: u32 = 1;

/// How one copy finds what it needs of another.
#[repr(C)]
pub struct Entrance {
    version: u32,
    /// Size (bytes) of a line of the table.
    line: u32,
    /// The table of exports: its first line, and its end.
    exports: *const Export,
    end: *const Export,
    /// Begins in the place of another copy. To be called once.
    begin: unsafe extern "C" fn(*const Handover),
}

// SAFETY: the pointers lead to a static table and to code.
unsafe impl Sync for Entrance {}

/// What a copy is told that takes the place of another one.
#[repr(C)]
struct Handover {
    /// The first copy.
    first: *const Entrance,
    /// The library's file, as a NUL-terminated path that stays where it is.
    path: *const c_char,
    /// See [`symbol::search_from`].
    searcher: *mut c_void,
    /// What the socket layer has written down.
    text: *const u8,
    length: usize,
}

// Nobody else is to see where the table begins and ends, and where the library does.
core::arch::global_asm!(
    ".hidden __start_netacc_exports",
    ".hidden __stop_netacc_exports",
    ".hidden __ehdr_start",
    ".hidden _end",
    ".hidden _DYNAMIC",
);

unsafe extern "C" {
    // The linker defines them: the first byte of this copy in memory, the one after its last, and its dynamic section.
    #[link_name = "__ehdr_start"]
    static FIRST_BYTE: u8;
    #[link_name = "_end"]
    static END: u8;
    #[link_name = "_DYNAMIC"]
    static DYNAMIC: u8;
    // The linker defines them around the section (`export_line!`).
    #[link_name = "__start_netacc_exports"]
    static FIRST_LINE: Export;
    #[link_name = "__stop_netacc_exports"]
    static END_OF_LINES: Export;
}

/// This copy, for another one that looks for it by name.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "the name of a symbol")]
pub static netacc_exchange: Entrance = Entrance {
    version: VERSION,
    line: size_of::<Export>() as u32,
    exports: &raw const FIRST_LINE,
    end: &raw const END_OF_LINES,
    begin,
};

impl Entrance {
    fn lines(&self) -> &[Export] {
        // SAFETY: the linker has put the lines one after the other, and they stay where they are.
        unsafe {
            let count = self.end.offset_from_unsigned(self.exports);
            core::slice::from_raw_parts(self.exports, count)
        }
    }

    /// Has this copy's exported functions lead to those of `other`.
    fn lead_to(&self, other: &Entrance) {
        for line in self.lines() {
            let there = other.lines().iter().find(|there| there.name() == line.name());
            line.lead_to(there.map_or_else(|| instead(line.name()), Export::function));
        }
    }
}

/// What a function of this name does that the new copy does not have: what it does without the library.
fn instead(name: &CStr) -> *mut c_void {
    extern "C" fn absent() -> isize {
        crate::next::fail(Errno::NOSYS)
    }
    let next = symbol::next(name);
    if next.is_null() { absent as *mut c_void } else { next }
}

/// Whether an address lies in this copy.
pub fn holds(address: *const c_void) -> bool {
    ((&raw const FIRST_BYTE).addr()..(&raw const END).addr()).contains(&address.addr())
}

/// What this copy defines under a name, for the linker to find.
fn own_definition(name: &CStr) -> *mut c_void {
    // SAFETY: the linker has put this copy's addresses from its first byte on, where they count from, and its dynamic section.
    unsafe { symbol::in_tables((&raw const FIRST_BYTE).cast(), (&raw const DYNAMIC).cast(), name) }
}

/// The first copy, in one that took another's place.
static FIRST: AtomicPtr<Entrance> = AtomicPtr::new(ptr::null_mut());
/// The library's file, in a copy that took another's place.
static PATH: AtomicPtr<c_char> = AtomicPtr::new(ptr::null_mut());
/// The entrance of the copy that was mapped to take this one's place. The thread that carries out the operator's requests
/// writes it, and the one that has closed the library, when the former is not inside.
static SUCCESSOR: AtomicPtr<Entrance> = AtomicPtr::new(ptr::null_mut());
/// Where that copy lies.
static MAPPED: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

static EXCHANGER: Exchanger = Exchanger { prepare, discard };
static REPLACE: fn() = replace;

/// To be called when the linker has loaded the library, before the program begins.
pub fn note_origin() {
    origin::note(path());
}

/// To be called when the library starts: from then on an operator's request is carried out.
pub fn start() {
    exchange::on_request(&EXCHANGER);
    visits::on_leaving(&REPLACE);
}

/// The first copy.
fn first() -> &'static Entrance {
    // SAFETY: null or the first copy's entrance, which stays mapped. Relaxed: stored before the first call of this copy.
    unsafe { FIRST.load(Ordering::Relaxed).as_ref() }.unwrap_or(&netacc_exchange)
}

/// The function of this name in the first copy's table; null if that copy has none.
pub fn of_first(name: &CStr) -> *mut c_void {
    first().lines().iter().find(|line| line.name() == name).map_or(ptr::null_mut(), Export::function)
}

/// The exported function of this name, by which the program's own calls come to us whichever copy serves them; null if there
/// is none, or if what it calls next is not `next`.
pub fn exported(name: &CStr, next: *mut c_void) -> *mut c_void {
    let ours = own_definition(name);
    let first = ptr::from_ref(first()).cast();
    if ours.is_null() || symbol::after(first, name) != next {
        ptr::null_mut()
    } else if ptr::eq(first, (&raw const netacc_exchange).cast()) {
        ours
    } else {
        symbol::in_object(first, name)
    }
}

/// The path of the library's file, as the loader has it.
fn path() -> Option<&'static CStr> {
    let known = PATH.load(Ordering::Relaxed);
    let path = if known.is_null() {
        linker::object_of((&raw const netacc_exchange).cast()).map_or(ptr::null(), |object| object.dli_fname)
    } else {
        known
    };
    // SAFETY: null, or the loader's text, which stays as long as the first copy does.
    (!path.is_null()).then(|| unsafe { CStr::from_ptr(path) })
}

/// Maps the library that is in the file now.
fn prepare() -> Result<(), Obstacle> {
    let path = path().ok_or((Upgraded::Unreadable, Errno::NOENT))?;
    // A relative path would lead to whatever lies in the folder that is the current one by now.
    if !path.to_bytes().starts_with(b"/") {
        return Err((Upgraded::RelativePath, Errno(0)));
    }
    let elsewhere = (Upgraded::Elsewhere, Errno(0));
    let origin = origin::noted().ok_or(elsewhere)?;
    let copy = Copy::map(&origin, path, c"netacc_exchange").map_err(|problem| match problem {
        Problem::Unreadable(e) => (Upgraded::Unreadable, e),
        Problem::Damaged => (Upgraded::Damaged, Errno(0)),
        Problem::NotMapped(e) => (Upgraded::NotMapped, e),
        Problem::Elsewhere => elsewhere,
    })?;
    // SAFETY: the symbol is an entrance, of which every version begins with these two words.
    let understands = |entrance: *const Entrance| unsafe {
        ((*entrance).version, (*entrance).line) == (VERSION, size_of::<Export>() as u32)
    };
    let Some(entrance) = copy.symbol::<Entrance>().filter(|entrance| understands(*entrance)) else {
        copy.discard();
        return Err((Upgraded::Damaged, Errno(0)));
    };
    MAPPED.iter().zip(copy.keep()).for_each(|(word, number)| word.store(number, Ordering::Relaxed));
    SUCCESSOR.store(entrance.cast_mut(), Ordering::Release);
    Ok(())
}

/// Unmaps the copy that was mapped, of which nothing was used.
fn discard() {
    if SUCCESSOR.swap(ptr::null_mut(), Ordering::AcqRel).is_null() {
        return;
    }
    Copy::kept(MAPPED.each_ref().map(|word| word.swap(0, Ordering::Relaxed))).discard();
}

/// Replaces this copy. Called by a thread that has just left the library, while an operator has asked for that.
fn replace() {
    let _signals = Blocked::all();
    let obstacle = match visits::close() {
        Ok(true) => exchange_now().err(),
        Ok(false) => return,
        Err(e) => Some((Upgraded::NoBarrier, e)),
    };
    match obstacle {
        None => visits::replaced(),
        Some(obstacle) => {
            exchange::refuse(obstacle);
            visits::open();
        }
    }
}

fn exchange_now() -> Result<(), Obstacle> {
    exchange::wait_until_empty()?;
    // SAFETY: null or the entrance of a copy that `prepare` has mapped, and that nobody unmaps while no thread is inside.
    let successor = unsafe { SUCCESSOR.load(Ordering::Acquire).as_ref() }.ok_or((Upgraded::Damaged, Errno(0)))?;
    let text = exchange::hand_over()?;
    // SAFETY: no thread is inside, and from here on none comes in again: each comes to the new copy, or waits until it can.
    unsafe { exchange::give_shared_memory_back() };
    let handover = Handover {
        first: first(),
        path: path().map_or(ptr::null(), CStr::as_ptr),
        searcher: symbol::searcher(),
        text: text.as_ptr(),
        length: text.len(),
    };
    // SAFETY: the other copy's function, called once, with what it is to be told.
    unsafe { (successor.begin)(&raw const handover) };
    first().lead_to(successor);
    if !ptr::eq(first(), &raw const netacc_exchange) {
        netacc_exchange.lead_to(successor);
    }
    // Its memory goes with all other.
    core::mem::forget(text);
    // SAFETY: as above; the exported functions lead elsewhere.
    unsafe { exchange::give_memory_back() };
    Ok(())
}

/// Begins in the place of another copy.
unsafe extern "C" fn begin(handover: *const Handover) {
    // SAFETY: the other copy's thread waits for this call, and keeps what it has passed as it is.
    let handover = unsafe { &*handover };
    // Relaxed: this copy's first call.
    FIRST.store(handover.first.cast_mut(), Ordering::Relaxed);
    PATH.store(handover.path.cast_mut(), Ordering::Relaxed);
    // SAFETY: a function of the first copy, which stays mapped.
    unsafe { symbol::search_from(handover.searcher) };
    freestanding::use_libc();
    if !libc_kind::is_known() {
        return;
    }
    start();
    // SAFETY: as above.
    let text = unsafe { core::slice::from_raw_parts(handover.text, handover.length) };
    exchange::take_over(core::str::from_utf8(text).unwrap_or_default());
    // A copy before this one that has not said what it knows has noted nothing.
    note_origin();
}
