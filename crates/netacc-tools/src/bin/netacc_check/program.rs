//! Judges a program before it is run.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use netacc_sys::go_program::Unfollowed;
use netacc_tools::elf::{self, Elf};
use netacc_tools::mapping;
use netacc_tools::program::{self, Loader, Obstacle, Verdict};
use netacc_tools::sanitizer;

use crate::facts::live;
use crate::finding::{Level, Report};

/// The most libraries that are looked into.
const MAX_LIBRARIES: usize = 200;

/// Judges the program that a command runs. The words after it are the program's own.
pub(crate) fn judge(command: &OsString, report: &mut Report) {
    let subject = program::shown(command);
    let file = match program::find(command) {
        Ok(file) => file,
        Err(problem) => {
            report.add(Level::Fail, subject, "program", problem.to_string()).advice(
                "name a program in PATH or the path of an executable file; of a peer the answer is by HOST:PORT",
            );
            return;
        }
    };
    let verdict = program::judge(&file);
    if verdict.program == file {
        report.add(Level::Ok, &subject, "program", file.display().to_string());
    } else {
        let text = format!("{} is a script; what runs is {}", file.display(), verdict.program.display());
        report.add(Level::Ok, &subject, "program", text);
    }
    if let Some(obstacle) = &verdict.obstacle {
        report
            .add(Level::Warn, &subject, "acceleration", format!("{}: {obstacle}", prospect(obstacle)))
            .why("NetACC is a library that the dynamic loader puts before the C library of a program (LD_PRELOAD)")
            .advice(remedy(obstacle));
        return;
    }
    match look(&verdict) {
        Ok(elf) => accelerated(&subject, &verdict, &elf, report),
        Err((level, text, advice)) => {
            report.add(level, &subject, "acceleration", text).advice(advice);
        }
    }
}

/// Why nothing can be said of a program that nothing is known against, and what to do.
type Unclear = (Level, String, &'static str);

fn look(verdict: &Verdict) -> Result<Elf, Unclear> {
    let shown = verdict.program.display();
    // A script may name anything as its interpreter; opening a FIFO would hang.
    match fs::metadata(&verdict.program) {
        Err(error) => Err((
            Level::Fail,
            format!("its interpreter {shown}: {error}"),
            "install the interpreter, or correct the first line of the script",
        )),
        Ok(meta) if !meta.is_file() => {
            Err((Level::Fail, format!("its interpreter {shown} is not a file"), "correct the first line of the script"))
        }
        Ok(_) => {
            let file = File::open(&verdict.program).map_err(|error| {
                (
                    Level::Note,
                    format!("cannot be told: {shown}: {error}"),
                    "ask again as a user who may read it; it can often be accelerated all the same",
                )
            })?;
            let advice = "look at its first line and at what it names ('head -1', 'file')";
            elf::parse(&file).ok_or((
                Level::Warn,
                format!("cannot be told: {shown} is neither a program nor a script whose interpreter is to be found"),
                advice,
            ))
        }
    }
}

fn accelerated(subject: &str, verdict: &Verdict, elf: &Elf, report: &mut Report) {
    let mode = fs::metadata(&verdict.program).map(|meta| meta.mode()).unwrap_or_default();
    if mode & 0o4000 != 0 || mode & 0o2010 == 0o2010 {
        report
            .add(
                Level::Note,
                subject,
                "privileges",
                "it raises the privileges of its callers (set-user-ID or set-group-ID)",
            )
            .why("for you nothing is raised; for others the loader drops LD_PRELOAD")
            .advice("start it as the user whose rights it takes");
    }
    if let Some(way) = io_uring(elf) {
        report
            .add(Level::Note, subject, "io_uring", format!("it can use io_uring: {}", way.join(" needs ")))
            .why("sockets that it hands to io_uring go on over kernel TCP; files make no difference")
            .advice("switch io_uring off in the program if it uses it for its connections");
    }
    if let Some(runtime) = elf.needed.iter().find(|name| sanitizer::is_runtime(name)) {
        let runtime = String::from_utf8_lossy(runtime);
        report
            .add(Level::Note, subject, "sanitizer", format!("it is built with AddressSanitizer ({runtime})"))
            .why("its runtime refuses to start behind another library; netacc_run tells it not to look (ASAN_OPTIONS)")
            .advice("where you set LD_PRELOAD yourself, set ASAN_OPTIONS=verify_asan_link_order=0 as well");
    }
    let libc = if Loader::of(elf) == Some(Loader::Musl) {
        report
            .add(
                Level::Note,
                subject,
                "rdma",
                "not possible: its C library is musl; over shared memory it is accelerated",
            )
            .why("the libraries of RDMA (libibverbs, librdmacm) are glibc's")
            .advice("use a build of the program for glibc where it talks to other hosts by RDMA");
        "musl"
    } else {
        "glibc"
    };
    let kind = if elf.go {
        report
            .add(Level::Note, subject, "rdma", "not possible: it is a Go program; over shared memory it is accelerated")
            .why("it starts other programs and ends without the calls of the C library, on which queue pairs depend");
        "Go program"
    } else {
        "dynamic program"
    };
    if verdict.is_mapped
        && let Err(problem) = mapping::attempt()
    {
        report
            .add(Level::Warn, subject, "acceleration", format!("not possible here: it is a static {kind}, and {problem}"))
            .why("netacc_run traces a static program until its first instruction (ptrace)")
            .advice(
                "allow tracing (kernel.yama.ptrace_scope, the container's filter of system calls), or build the program \
                 with cgo",
            );
        return;
    }
    let text = if verdict.is_mapped {
        format!(
            "possible: a static {kind}; start it with netacc_run, or by a program that was started so (LD_PRELOAD alone does nothing to it)"
        )
    } else {
        format!("possible: a {kind} of {libc}; start it with netacc_run")
    };
    report.add(Level::Ok, subject, "acceleration", text);
}

/// The chain of libraries by which a program comes to liburing.
fn io_uring(elf: &Elf) -> Option<Vec<String>> {
    let cache: HashMap<String, String> = live::ldconfig().into_iter().rev().collect();
    let mut seen = HashSet::new();
    let mut queue: VecDeque<(Vec<u8>, Vec<String>)> =
        elf.needed.iter().map(|name| (name.clone(), vec!["it".to_owned()])).collect();
    while let Some((name, mut way)) = queue.pop_front() {
        let name = String::from_utf8_lossy(&name).into_owned();
        if seen.len() >= MAX_LIBRARIES || !seen.insert(name.clone()) {
            continue;
        }
        way.push(name.clone());
        if name.starts_with("liburing.so") || name.starts_with("liburing-ffi.so") {
            return Some(way);
        }
        let path = if name.contains('/') { Some(PathBuf::from(&name)) } else { cache.get(&name).map(PathBuf::from) };
        let needed = path.and_then(|path| library(&path)).map(|elf| elf.needed).unwrap_or_default();
        queue.extend(needed.into_iter().map(|next| (next, way.clone())));
    }
    None
}

fn library(path: &Path) -> Option<Elf> {
    let regular = fs::metadata(path).is_ok_and(|meta| meta.is_file());
    elf::parse(&regular.then(|| File::open(path).ok()).flatten()?)
}

/// What an obstacle does.
fn prospect(obstacle: &Obstacle) -> &'static str {
    if obstacle.is_certain() { "not possible" } else { "cannot be told" }
}

/// What to do about an obstacle.
fn remedy(obstacle: &Obstacle) -> &'static str {
    match obstacle {
        Obstacle::Static => {
            "use a dynamically linked build of the program; the other end may be accelerated, this connection stays on TCP"
        }
        Obstacle::Go(Unfollowed::StaticLibc) => {
            "build it without cgo (CGO_ENABLED=0), or dynamically linked; this one runs on TCP"
        }
        Obstacle::Packed => "unpack it (upx -d), and ask again",
        Obstacle::Go(Unfollowed::WithoutLibc) => {
            "build it with cgo, or static, without a package that asks for libraries; this one runs on TCP"
        }
        Obstacle::Go(Unfollowed::Plugins) => {
            "build it without the package plugin and without -linkshared if it needs neither; this one runs on TCP"
        }
        Obstacle::Go(_) => "build it with the Go project's own tool chain in a known release; this one runs on TCP",
        Obstacle::OwnCall(_) => {
            "use a build with an event loop that calls the C library (in Rust tokio or mio instead of smol and rustix; \
             liburing as a shared library); this one runs on TCP"
        }
        Obstacle::Loader(_) => "use a build of the program for glibc or musl",
        Obstacle::OldMusl => "use a newer image (Alpine 3.13 or newer)",
        Obstacle::Machine => "use a build of the program for this machine, or NetACC for that one",
        Obstacle::Privileged(_) => {
            "start it as a user for whom nothing is raised: as the file's owner, as root, or without the capability \
             (AmbientCapabilities= of its unit instead of 'setcap')"
        }
    }
}
