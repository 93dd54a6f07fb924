//! Go programs, whose runtime enters the kernel by functions of its own.
//!
//! All calls on sockets and epoll instances that a Go program makes go through one function of the runtime's
//! (`Syscall6`), and a program ends by another (`runtime.exit`). Both are written in assembly, so their bytes are the
//! same in every program that a release builds. They are recognised by those bytes alone: a symbol may be stripped and
//! can be wrong, and code that has exactly these bytes does exactly this. See docs/decisions/0023.
#![allow(unsafe_code)]

use crate::go_code::{EPOLL, EXIT, SETTLS, SETTLS_WITH_FRAME, SYSCALL6};
use crate::own_calls::{contains, position};
use crate::{static_program, symbol_tables};
use core::ffi::{CStr, c_int, c_void};
use core::ptr;

/// What the linker of Go puts at the beginning of a program's data.
pub(crate) const BUILD_INFO: &[u8] = b"\xff Go buildinf:";
/// The note that the linker of Go writes: the lengths of name and content, the type, the name.
const NOTE_TYPE: u32 = 4;
const NOTE_NAME: &[u8] = b"Go\0\0";

/// Why a Go program is not followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfollowed {
    /// It is for another machine than x86-64.
    Machine,
    /// It is dynamic, and its threads are not made by libc, so our code cannot run on them.
    WithoutLibc,
    /// It is static, and a C library is part of it.
    StaticLibc,
    /// The function is not there as it is known.
    NotFound,
    /// It is static, and the function by which its threads get their thread pointers is not there as it is known.
    ThreadPointers,
    /// More than one piece of code has the function's bytes.
    Ambiguous,
    /// It may load plugins, which have a function of their own that nothing redirects.
    Plugins,
    /// The function's code cannot be changed, or memory for it is missing.
    Refused,
}

impl Unfollowed {
    /// The end of the sentence "it is a Go program, ...".
    #[must_use]
    pub const fn why(self) -> &'static str {
        match self {
            Self::Machine => "which is followed on x86-64 only",
            Self::WithoutLibc => "built without cgo",
            Self::StaticLibc => "with a C library linked into it",
            Self::NotFound => "whose function for system calls is not a known one",
            Self::ThreadPointers => "whose function for thread pointers is not a known one",
            Self::Ambiguous => "whose function for system calls is there more than once",
            Self::Plugins => "which may load plugins",
            Self::Refused => "whose code cannot be changed here",
        }
    }
}

/// The functions of a Go program, as addresses or as offsets in its code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Functions {
    /// Of [`SYSCALL6`].
    pub syscall6: usize,
    /// Of [`EXIT`], if there is just one.
    pub exit: Option<usize>,
    /// Of [`EPOLL`], the first one's, in programs that have them.
    pub epoll: Option<usize>,
}

/// What the names of a dynamic program's symbols tell of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// It is a Go program with cgo, which shows this function of the runtime's to C code whatever else was stripped.
    pub has_cgo: bool,
    /// It takes `pthread_create` from libc. A linker may have made that the end of a longer name, such as cgo's own
    /// function that calls it.
    pub makes_threads: bool,
    /// It shows the functions of its runtime to others, as only a program does that loads plugins.
    pub shows_functions: bool,
}

impl Names {
    /// The length of the longest name that is looked for.
    pub const LONGEST: usize = CGO.count_bytes() + 1;

    /// Looks at a table of names, or at a part of one.
    #[must_use]
    pub fn of(table: &[u8]) -> Names {
        let has = |name: &CStr| contains(table, name.to_bytes_with_nul());
        Names { has_cgo: has(CGO), makes_threads: has(c"pthread_create"), shows_functions: has(c".Syscall6") }
    }

    /// What two parts of a table tell together.
    #[must_use]
    pub fn and(self, other: Names) -> Names {
        Names {
            has_cgo: self.has_cgo || other.has_cgo,
            makes_threads: self.makes_threads || other.makes_threads,
            shows_functions: self.shows_functions || other.shows_functions,
        }
    }
}

/// The function of the runtime that a program with cgo shows to C code, in all releases.
const CGO: &CStr = c"_cgo_topofstack";

/// Searches as [`search`] does, for a program whose threads are made by libc, and whose symbols have these names.
///
/// # Errors
/// Why the program is not followed.
pub fn search_dynamic<'a>(
    names: Names,
    pieces: impl Iterator<Item = (usize, &'a [u8])> + Clone,
) -> Result<Functions, Unfollowed> {
    if names.shows_functions {
        return Err(Unfollowed::Plugins);
    }
    if !names.makes_threads {
        return Err(Unfollowed::WithoutLibc);
    }
    search(pieces)
}

/// Searches pieces of code, each of which begins at the given address, for the functions.
///
/// # Errors
/// Why the program is not followed.
pub fn search<'a>(pieces: impl Iterator<Item = (usize, &'a [u8])> + Clone) -> Result<Functions, Unfollowed> {
    if cfg!(not(target_arch = "x86_64")) {
        return Err(Unfollowed::Machine);
    }
    let syscall6 = only(pieces.clone(), &SYSCALL6)?;
    let epoll = match only(pieces.clone(), &[&EPOLL]) {
        Err(Unfollowed::NotFound) => None,
        found => Some(found?),
    };
    Ok(Functions { syscall6, exit: only(pieces, &[&EXIT]).ok(), epoll })
}

/// Searches as [`search`] does, for a program whose threads have no libc.
///
/// # Errors
/// Why the program is not followed.
pub fn search_static<'a>(pieces: impl Iterator<Item = (usize, &'a [u8])> + Clone) -> Result<Functions, Unfollowed> {
    let functions = search(pieces.clone())?;
    let settls = match only(pieces.clone(), &SETTLS) {
        Err(Unfollowed::NotFound) => only(pieces, &[&SETTLS_WITH_FRAME]),
        found => found,
    };
    settls.map_or(Err(Unfollowed::ThreadPointers), |_| Ok(functions))
}

/// The most thread-local memory (bytes) of a static program without C code: one word, of Go's linker.
pub const MOST_THREAD_LOCAL: u64 = 8;

/// The address of the one piece of code that is one of `bodies`, at a multiple of 16 as each function of Go's.
fn only<'a>(pieces: impl Iterator<Item = (usize, &'a [u8])>, bodies: &[&[u8]]) -> Result<usize, Unfollowed> {
    // The code of a large program is searched once, for what the bodies begin with.
    let beginning = bodies.iter().copied().reduce(common).unwrap_or_default();
    let mut found = Err(Unfollowed::NotFound);
    for (start, code) in pieces {
        let mut from = 0;
        while let Some(at) = code.get(from..).and_then(|rest| position(rest, beginning)).map(|at| from + at) {
            from = at + 1;
            if !bodies.iter().any(|body| code.get(at..).is_some_and(|rest| rest.starts_with(body))) {
                continue;
            }
            if found.is_ok() {
                return Err(Unfollowed::Ambiguous);
            }
            found = Ok(start + at);
        }
    }
    found.and_then(|at| if at % 16 == 0 { Ok(at) } else { Err(Unfollowed::NotFound) })
}

/// What `a` and `b` begin with.
fn common<'a>(a: &'a [u8], b: &[u8]) -> &'a [u8] {
    let length = a.iter().zip(b).take_while(|(x, y)| x == y).count();
    a.get(..length).unwrap_or(a)
}

/// Whether a note segment is one that the linker of Go wrote.
#[must_use]
pub fn is_note(segment: &[u8]) -> bool {
    let word = |at: usize| segment.get(at..at + 4).and_then(|b| b.try_into().ok()).map(u32::from_ne_bytes);
    let mut at: usize = 0;
    while let (Some(name), Some(content), Some(kind)) = (word(at), word(at + 4), word(at + 8)) {
        if kind == NOTE_TYPE && segment.get(at + 12..at + 16) == Some(NOTE_NAME) {
            return true;
        }
        at += 12 + (name as usize).next_multiple_of(4) + (content as usize).next_multiple_of(4);
    }
    false
}

/// The program that is loaded into this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// Another one than Go's.
    Other,
    /// A Go program.
    Go(Result<Functions, Unfollowed>),
}

/// Looks at the program that is loaded into this process. For a program that is not Go's it reads a few lines of what
/// the loader has read just before.
#[must_use]
pub fn loaded() -> Program {
    let mut found = Program::Other;
    // SAFETY: the callback gets `found` back, and nobody else has it meanwhile.
    unsafe { symbol_tables::each_object(look, (&raw mut found).cast()) };
    found
}

unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _size: usize, data: *mut c_void) -> c_int {
    // SAFETY: the linker gives a valid description of a loaded object, and `data` is the `Program` of `loaded`.
    let (info, found) = unsafe { (&*info, &mut *data.cast::<Program>()) };
    if !info.dlpi_phdr.is_null() {
        // SAFETY: the program headers of an object that is loaded.
        let headers = unsafe { core::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
        *found = judge(info.dlpi_addr as usize, headers);
    }
    // The program itself comes first, and nothing else is looked at.
    1
}

/// The bytes that a segment has of the file.
fn bytes(base: usize, h: &libc::Elf64_Phdr) -> (usize, &'static [u8]) {
    let start = base.wrapping_add(h.p_vaddr as usize);
    // SAFETY: what a loaded segment has of its file stays mapped as long as the program runs; code, notes and the first
    // bytes of the data are not written by anybody yet.
    (start, unsafe { core::slice::from_raw_parts(ptr::with_exposed_provenance(start), h.p_filesz as usize) })
}

fn judge(base: usize, headers: &[libc::Elf64_Phdr]) -> Program {
    let loads = || headers.iter().filter(|h| h.p_type == libc::PT_LOAD && h.p_flags & libc::PF_R != 0);
    let is_mapped = |h: &&libc::Elf64_Phdr| loads().any(|l| rest(l, h.p_vaddr).is_some_and(|rest| h.p_filesz <= rest));
    let mut notes = headers.iter().filter(|h| h.p_type == libc::PT_NOTE).filter(is_mapped);
    // Where a loader has read it, it is right.
    let dynamic = headers.iter().find(|h| h.p_type == libc::PT_DYNAMIC && !static_program::is_one());
    let is_go = notes.any(|h| is_note(bytes(base, h).1))
        || loads().filter(|h| h.p_flags & libc::PF_W != 0).any(|h| bytes(base, h).1.starts_with(BUILD_INFO))
        || dynamic.is_some_and(|h| shows_cgo(base, h));
    if !is_go {
        return Program::Other;
    }
    let code = loads().filter(|h| h.p_flags & libc::PF_X != 0).map(|h| bytes(base, h));
    if static_program::is_one() {
        let has_libc = headers.iter().any(|h| h.p_type == libc::PT_TLS && h.p_memsz > MOST_THREAD_LOCAL);
        return Program::Go(if has_libc { Err(Unfollowed::StaticLibc) } else { search_static(code) });
    }
    let names = dynamic.and_then(|h| names(base, h, loads())).unwrap_or_default();
    Program::Go(search_dynamic(names, code))
}

/// Whether the program shows the function of cgo's. It is looked for by its hash, since the names of a large program
/// would take long to read at each start.
fn shows_cgo(base: usize, dynamic: &libc::Elf64_Phdr) -> bool {
    // SAFETY: the dynamic section of the loaded program.
    unsafe { !symbol_tables::definition_in(base, bytes(base, dynamic).0, CGO).is_null() }
}

/// What the names of the dynamic symbols tell. The loader does not read how long their table is, so that it may be wrong.
fn names<'a>(
    base: usize,
    dynamic: &libc::Elf64_Phdr,
    mut loads: impl Iterator<Item = &'a libc::Elf64_Phdr>,
) -> Option<Names> {
    const DT_STRTAB: u64 = 5;
    const DT_STRSZ: u64 = 10;
    let (_, table) = bytes(base, dynamic);
    let entry = |wanted: u64| {
        table.chunks_exact(16).find_map(|e| {
            let word = |at: usize| e.get(at..at + 8).and_then(|b| b.try_into().ok()).map(u64::from_ne_bytes);
            (word(0)? == wanted).then(|| word(8))?
        })
    };
    let (start, size) = (entry(DT_STRTAB)?, entry(DT_STRSZ)?);
    // glibc's loader has added the base of a program that may lie anywhere; musl's has not.
    let start = if (start as usize) < base { base.wrapping_add(start as usize) } else { start as usize };
    let rest = loads.find_map(|load| rest(load, start.wrapping_sub(base) as u64))?;
    // SAFETY: bytes of a loaded segment, which nobody writes: the loader has just read the names there.
    let names = unsafe {
        core::slice::from_raw_parts(ptr::with_exposed_provenance(start), usize::try_from(size.min(rest)).ok()?)
    };
    Some(Names::of(names))
}

/// How many bytes of the file a segment has from `address` on; `None` if the address is not in it.
fn rest(load: &libc::Elf64_Phdr, address: u64) -> Option<u64> {
    load.p_filesz.checked_sub(address.checked_sub(load.p_vaddr)?).filter(|rest| *rest > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::go_code::is_epolls;

    fn with(pieces: &[(usize, &[u8])]) -> Vec<u8> {
        let mut code = vec![0x90; 4096];
        for (at, bytes) in pieces {
            code[*at..at + bytes.len()].copy_from_slice(bytes);
        }
        code
    }
    fn found(code: &[u8]) -> Result<Functions, Unfollowed> {
        search([(0x1000, code)].into_iter())
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn the_function_has_to_be_there_once_and_whole() {
        assert_eq!(found(&with(&[])), Err(Unfollowed::NotFound));
        for body in SYSCALL6 {
            assert_eq!(found(&with(&[(64, body)])), Ok(Functions { syscall6: 0x1040, exit: None, epoll: None }));
            assert_eq!(
                found(&with(&[(64, body), (160, &EXIT)])),
                Ok(Functions { syscall6: 0x1040, exit: Some(0x10a0), epoll: None })
            );
            for second in SYSCALL6 {
                assert_eq!(found(&with(&[(64, body), (1024, second)])), Err(Unfollowed::Ambiguous));
            }
            assert_eq!(found(&with(&[(68, body)])), Err(Unfollowed::NotFound), "not where a function begins");
            assert_eq!(found(&body[..body.len() - 1]), Err(Unfollowed::NotFound));
            for at in 0..body.len() {
                let mut other = body.to_vec();
                other[at] ^= 1;
                assert_eq!(found(&with(&[(64, &other)])), Err(Unfollowed::NotFound), "{at}");
            }
            // Of two that are in different segments, too.
            let code = with(&[(0, body)]);
            assert_eq!(search([(0, &code[..]), (4096, &code[..])].into_iter()), Err(Unfollowed::Ambiguous));
        }
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn a_static_program_has_the_function_for_thread_pointers_too() {
        let code = |settls| with(&[(64, SYSCALL6[0]), (256, settls)]);
        for settls in SETTLS.into_iter().chain([&SETTLS_WITH_FRAME[..]]) {
            assert!(search_static([(0, &code(settls)[..])].into_iter()).is_ok());
        }
        assert_eq!(search_static([(0, &code(&EXIT)[..])].into_iter()), Err(Unfollowed::ThreadPointers));
        assert_eq!(search_static([(0, &with(&[(256, SETTLS[0])])[..])].into_iter()), Err(Unfollowed::NotFound));
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn names_tell_which_dynamic_programs_are_not_followed() {
        let code = with(&[(64, SYSCALL6[0])]);
        let found = |names: &[u8]| search_dynamic(Names::of(names), [(0, &code[..])].into_iter());
        assert!(found(b"\0_cgo_topofstack\0_cgo_try_pthread_create\0").is_ok());
        assert_eq!(found(b"\0pthread_create\0internal/runtime/syscall/linux.Syscall6\0"), Err(Unfollowed::Plugins));
        assert_eq!(found(b"\0dlopen\0pthread_create_\0"), Err(Unfollowed::WithoutLibc));
        assert!(!Names::of(b"\0_cgo_topofstack_\0").has_cgo);
        let (cgo, threads) = (Names::of(b"\0_cgo_topofstack\0"), Names::of(b"pthread_create\0"));
        assert_eq!(cgo.and(threads), Names { has_cgo: true, makes_threads: true, shows_functions: false });
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn functions_for_epoll_are_there_once_or_not_at_all() {
        let code = with(&[(64, SYSCALL6[1]), (512, &EPOLL)]);
        assert_eq!(found(&code), Ok(Functions { syscall6: 0x1040, exit: None, epoll: Some(0x1200) }));
        assert_eq!(found(&with(&[(64, SYSCALL6[1]), (512, &EPOLL), (1024, &EPOLL)])), Err(Unfollowed::Ambiguous));
        // Nothing else finds the calls that these functions make by themselves.
        assert_eq!(crate::own_calls::find(&code), None);
        for at in [9, 41, 86, 126] {
            assert_eq!(EPOLL[at..at + 2], [0x0f, 0x05]);
            assert!(is_epolls(&code, 512 + at) && !is_epolls(&code, 513 + at) && !is_epolls(&code, 1536 + at));
            let mut other = EPOLL;
            other[0] ^= 1;
            assert!(!is_epolls(&with(&[(512, &other)]), 512 + at));
        }
        let moved = with(&[(516, &EPOLL)]);
        assert!(crate::own_calls::find(&moved).is_some_and(|call| call.name == "epoll_ctl"));
    }

    #[test]
    fn notes() {
        let note = |kind: u32, name: &[u8; 4], content: &[u8]| {
            let mut note = Vec::new();
            [4, content.len() as u32, kind].iter().for_each(|w| note.extend(w.to_ne_bytes()));
            note.extend(name);
            note.extend(content);
            note.resize(note.len().next_multiple_of(4), 0);
            note
        };
        assert!(is_note(&note(4, b"Go\0\0", b"build")));
        assert!(is_note(&[note(3, b"GNU\0", b"12345"), note(4, b"Go\0\0", b"")].concat()));
        assert!(!is_note(&note(3, b"Go\0\0", b"")) && !is_note(&note(4, b"GNU\0", b"Go\0\0")) && !is_note(b"Go\0\0"));
        assert!(!is_note(&[0xff; 40]));
    }

    #[test]
    fn this_program_is_not_one() {
        assert_eq!(loaded(), Program::Other);
    }
}
