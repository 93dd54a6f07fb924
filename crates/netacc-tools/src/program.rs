//! Finds the program a command names, as `execvp` does, and judges whether NetACC can accelerate it.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD};

use netacc_sys::go_program::{self, Unfollowed};
use netacc_sys::{libc_kind, own_calls};

use crate::elf::{self, Elf};

/// Why a command cannot be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotRunnable {
    /// No folder of `PATH` has it.
    NotFound,
    /// It is a path, and there is nothing.
    NoFile,
    /// There is a folder of that name.
    Directory,
    /// There is something that is neither file nor folder.
    NotExecutable,
    /// There is a file, and it must not be executed, or not even be looked at.
    NoPermission,
}

impl NotRunnable {
    /// Whether there is nothing at all, for which shells have an exit status of its own.
    pub fn is_absent(self) -> bool {
        matches!(self, Self::NotFound | Self::NoFile)
    }
}

impl fmt::Display for NotRunnable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NotRunnable::NotFound => "command not found",
            NotRunnable::NoFile => "no such file",
            NotRunnable::Directory => "it is a directory",
            NotRunnable::NotExecutable => "not an executable file",
            NotRunnable::NoPermission => "no permission to execute it",
        })
    }
}

/// A command as messages name it, be it empty or full of what a terminal would obey.
pub fn shown(command: &OsStr) -> String {
    if command.is_empty() { "\"\"".into() } else { command.to_string_lossy().escape_debug().to_string() }
}

/// Finds the file that `execvp` would run for `command`.
pub fn find(command: &OsStr) -> Result<PathBuf, NotRunnable> {
    // The fallback is that of glibc.
    let path = env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    find_in(command, &path)
}

fn find_in(command: &OsStr, path: &OsStr) -> Result<PathBuf, NotRunnable> {
    if command.is_empty() {
        return Err(NotRunnable::NotFound);
    }
    if command.as_bytes().contains(&b'/') {
        let file = PathBuf::from(command);
        return check_executable(&file).map(|()| file);
    }
    let mut error = NotRunnable::NotFound;
    for directory in path.as_bytes().split(|b| *b == b':') {
        // An empty entry is the current directory.
        let directory = if directory.is_empty() { b"." } else { directory };
        let file = Path::new(OsStr::from_bytes(directory)).join(command);
        match check_executable(&file) {
            Ok(()) => return Ok(file),
            Err(problem) if problem.is_absent() => {}
            // A later directory may still have one that can be run.
            Err(problem) => error = problem,
        }
    }
    Err(error)
}

fn check_executable(file: &Path) -> Result<(), NotRunnable> {
    match fs::metadata(file) {
        Ok(meta) if meta.is_dir() => return Err(NotRunnable::Directory),
        Ok(meta) if !meta.is_file() => return Err(NotRunnable::NotExecutable),
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            return Err(NotRunnable::NoPermission);
        }
        Err(_) => return Err(NotRunnable::NoFile),
    }
    rustix::fs::accessat(CWD, file.as_os_str().as_bytes(), Access::EXEC_OK, AtFlags::EACCESS)
        .map_err(|_| NotRunnable::NoPermission)
}

/// Why a program cannot be accelerated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// It asks for no dynamic loader, so nothing can be preloaded.
    Static,
    /// It is packed, and asks for no dynamic loader. What is in it may ask for one.
    Packed,
    /// It is a Go program, which makes its system calls itself, and these cannot be followed.
    Go(Unfollowed),
    /// It asks for a dynamic loader that is neither that of glibc nor that of musl.
    Loader(OsString),
    /// The musl that it asks for is older than those that are known.
    OldMusl,
    /// It is for another kind of machine than NetACC.
    Machine,
    /// It enters the kernel by instructions of its own, for this call.
    OwnCall(&'static str),
    /// The loader ignores preloading in programs that run with more rights than their caller.
    Privileged(&'static str),
}

impl Obstacle {
    /// Whether the library should be left out of `LD_PRELOAD`, for the loader would complain or fail.
    ///
    /// Elsewhere it does nothing to the program, and is kept for those that the program starts.
    pub fn forbids_preload(&self) -> bool {
        matches!(self, Obstacle::Loader(_) | Obstacle::Machine | Obstacle::Privileged(_))
    }

    /// Whether the program is not accelerated for sure.
    pub fn is_certain(&self) -> bool {
        !matches!(self, Obstacle::Packed)
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Obstacle::Static => f.write_str("it is statically linked"),
            Obstacle::Packed => f.write_str("it is packed by UPX, and what is in it cannot be seen"),
            Obstacle::Go(why) => write!(f, "it is a Go program, {}", why.why()),
            Obstacle::Loader(loader) => {
                let loader = Path::new(loader).display().to_string();
                write!(f, "it uses neither glibc nor musl (its loader is {})", loader.escape_debug())
            }
            Obstacle::OldMusl => f.write_str("its C library is a musl older than 1.2.2"),
            Obstacle::OwnCall(name) => {
                write!(f, "it calls {name} by an instruction of its own, which bypasses the C library")
            }
            Obstacle::Machine => f.write_str("it is built for another architecture than NetACC"),
            Obstacle::Privileged(how) => write!(f, "it runs with raised privileges ({how})"),
        }
    }
}

/// What [`judge`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The program whose code will run: the file itself, or the interpreter of a script.
    pub program: PathBuf,
    /// Why it cannot be accelerated; `None` if nothing is known to stand in the way.
    pub obstacle: Option<Obstacle>,
    /// Whether nothing can be preloaded into it, so that `netacc_run` maps the library into it.
    pub is_mapped: bool,
}

impl Verdict {
    fn unknown(program: PathBuf) -> Verdict {
        Verdict { program, obstacle: None, is_mapped: false }
    }
}

/// How many scripts may stand behind each other; the kernel gives up at about as many.
const MAX_SCRIPTS: usize = 5;

/// Judges an executable file. A script is judged by its interpreter.
pub fn judge(file: &Path) -> Verdict {
    let mut program = file.to_path_buf();
    for _ in 0..MAX_SCRIPTS {
        // What cannot be read can often still be run, and then preloading works.
        // A script may name anything as its interpreter; opening a FIFO would hang.
        let regular = fs::metadata(&program).is_ok_and(|meta| meta.is_file());
        let Some(opened) = regular.then(|| File::open(&program).ok()).flatten() else {
            return Verdict::unknown(program);
        };
        if let Some(elf) = elf::parse(&opened) {
            // musl's loader is musl, which makes its system calls itself.
            let is_loader = Loader::named(program.as_os_str().as_bytes()).is_some();
            let own_call = || if is_loader { None } else { own_call(&elf, &opened) };
            let obstacle = privileges(&program)
                .or_else(|| judge_elf(&elf, &program))
                .or_else(|| go(&elf, &opened))
                .or_else(own_call);
            return Verdict { program, obstacle, is_mapped: is_static_go(&elf) };
        }
        match interpreter(&opened) {
            Some(next) => program = next,
            None => {
                return Verdict::unknown(program);
            }
        }
    }
    Verdict::unknown(program)
}

/// Whether it is a Go program without libraries. Without cgo it asks for none even where it asks for a loader
/// (`-buildmode=pie`).
fn is_static_go(elf: &Elf) -> bool {
    elf.go && elf.needed.is_empty()
}

fn judge_elf(elf: &Elf, file: &Path) -> Option<Obstacle> {
    let own_class =
        elf.is_64 == cfg!(target_pointer_width = "64") && elf.little_endian == cfg!(target_endian = "little");
    let own_machine = OWN_MACHINE.is_none_or(|own| own == elf.machine);
    if !own_class || !own_machine {
        return Some(Obstacle::Machine);
    }
    if is_static_go(elf) {
        let has_libc = elf.thread_local > go_program::MOST_THREAD_LOCAL;
        return has_libc.then_some(Obstacle::Go(Unfollowed::StaticLibc));
    }
    match &elf.interpreter {
        // The loader itself, run with a program as its argument, does preload.
        None => match Loader::named(file.as_os_str().as_bytes()) {
            None if elf.packed => Some(Obstacle::Packed),
            None => Some(Obstacle::Static),
            Some(Loader::Glibc) => None,
            Some(Loader::Musl) => old_musl(file),
        },
        Some(path) => match Loader::named(path) {
            None => Some(Obstacle::Loader(OsString::from_vec(path.clone()))),
            Some(Loader::Glibc) => None,
            Some(Loader::Musl) => old_musl(Path::new(OsStr::from_bytes(path))),
        },
    }
}

/// A dynamic loader that puts the library before the C library of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loader {
    /// That of glibc.
    Glibc,
    /// That of musl, which is the C library as well.
    Musl,
}

impl Loader {
    /// The loader whose file has this path.
    pub fn named(path: &[u8]) -> Option<Loader> {
        let name = path.rsplit(|b| *b == b'/').next().unwrap_or(path);
        if libc_kind::is_musls_loader(path) {
            return Some(Loader::Musl);
        }
        // On most machines it is `ld-linux*.so.N`, on a few `ld64.so.N`.
        (name.starts_with(b"ld-linux") || name.starts_with(b"ld64.so")).then_some(Loader::Glibc)
    }

    /// The loader of a program; `None` for one without, or with another.
    pub fn of(elf: &Elf) -> Option<Loader> {
        elf.interpreter.as_deref().and_then(Loader::named)
    }
}

/// Whether this is a musl that the library does not know, by what the library looks at. What cannot be read is not
/// judged.
fn old_musl(loader: &Path) -> Option<Obstacle> {
    const NAMES_OF_1_2_2: &[u8] = b"\0_Fork\0";
    let code = File::open(loader).ok().map(|file| piece(&file, 0, MAX_CODE))?;
    let known = code.windows(NAMES_OF_1_2_2.len()).any(|bytes| bytes == NAMES_OF_1_2_2);
    (code.starts_with(b"\x7fELF") && !known).then_some(Obstacle::OldMusl)
}

/// The most code that is read. The library looks for itself in what is loaded.
const MAX_CODE: u64 = 1 << 28;

/// Why the calls of a Go program cannot be followed, by what the library looks at.
fn go(elf: &Elf, file: &File) -> Option<Obstacle> {
    if !elf.go {
        return None;
    }
    let code: Vec<_> = elf.code.iter().map(|(offset, size)| (*offset as usize, piece(file, *offset, *size))).collect();
    let code = code.iter().map(|(at, bytes)| (*at, &bytes[..]));
    let found = match is_static_go(elf) {
        true => go_program::search_static(code),
        false => go_program::search_dynamic(elf.names, code),
    };
    found.err().map(Obstacle::Go)
}

/// Whether the program enters the kernel by itself, for what NetACC has to answer.
fn own_call(elf: &Elf, file: &File) -> Option<Obstacle> {
    let found = elf.code.iter().find_map(|(offset, size)| {
        own_calls::find(&piece(file, *offset, *size)).map(|call| Obstacle::OwnCall(call.name))
    })?;
    (!is_linked(file)).then_some(found)
}

/// Whether the program is one of ours, which makes its connections through the C library whatever else it calls.
fn is_linked(file: &File) -> bool {
    own_calls::is_linked(&piece(file, 0, MAX_CODE))
}

/// What there is of a piece of a file. It ends where the file does, or where that cannot be read.
fn piece(mut file: &File, offset: u64, size: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    if file.seek(SeekFrom::Start(offset)).is_ok() {
        let _ = file.take(size.min(MAX_CODE)).read_to_end(&mut bytes);
    }
    bytes
}

/// The `EM_` number of the machine this is built for, where we know it.
const OWN_MACHINE: Option<u16> = if cfg!(target_arch = "x86_64") {
    Some(62)
} else if cfg!(target_arch = "aarch64") {
    Some(183)
} else if cfg!(target_arch = "riscv64") {
    Some(243)
} else {
    None
};

/// Whether the kernel will start the file in secure-execution mode, in which the loader drops `LD_PRELOAD`.
fn privileges(file: &Path) -> Option<Obstacle> {
    let meta = fs::metadata(file).ok()?;
    let uid = rustix::process::getuid().as_raw();
    let gid = rustix::process::getgid().as_raw();
    if meta.mode() & 0o4000 != 0 && meta.uid() != uid {
        return Some(Obstacle::Privileged("set-user-ID"));
    }
    // Without the group's execute bit it once meant mandatory locking, and the kernel ignores it.
    if meta.mode() & 0o2010 == 0o2010 && meta.gid() != gid {
        return Some(Obstacle::Privileged("set-group-ID"));
    }
    // Root has the capabilities anyway, so nothing is raised.
    let mut value = [0_u8; 64];
    let path = file.as_os_str().as_bytes();
    if uid != 0 && rustix::fs::getxattr(path, c"security.capability", &mut value).is_ok_and(|size| size > 0) {
        return Some(Obstacle::Privileged("file capabilities"));
    }
    None
}

/// The interpreter of a script; `/bin/sh` for a text without `#!`, as `execvp` does it.
fn interpreter(file: &File) -> Option<PathBuf> {
    let head = piece(file, 0, 4096);
    let Some(rest) = head.strip_prefix(b"#!") else {
        return Some(PathBuf::from("/bin/sh"));
    };
    let line = rest.split(|b| *b == b'\n').next()?;
    let mut words = line.split(|b| matches!(b, b' ' | b'\t')).filter(|word| !word.is_empty());
    let path = Path::new(OsStr::from_bytes(words.next()?));
    if path.file_name() != Some(OsStr::new("env")) {
        return Some(path.to_path_buf());
    }
    // `env -S NAME=value program`: the program is the first word that is neither option nor assignment.
    let program = words.find(|word| !word.starts_with(b"-") && !word.contains(&b'='));
    program.and_then(|word| find(OsStr::from_bytes(word)).ok())
}

#[cfg(test)]
#[path = "program_tests.rs"]
mod tests;
