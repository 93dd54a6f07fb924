//! Runs `netacc_run` as a user does, with a harmless library in the place of the real one.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

const HELP: &str = "\
Usage: netacc_run [ OPTIONS ] COMMAND

Run COMMAND using NetACC for TCP sockets

OPTIONS:
   -f <path>   set config file, default /etc/netacc.conf
   -p <num>    set max connections per QP, default 1
   -t <num>    set netacc io threads, default 1
   -s <num>    set netacc message size, default 16384
   -F <num>    fast connect mode, default 0
   -d          enable debug mode
   -T          use TCP first in connect
   -P <num>    polling cq time ms
   -A <str>    affinity CPU list, 0 | 1-3 | 1,3,4
   -i <num>    set cq comp_vector, default 0
   -h          display this message
   -v          display version info
";

/// The directory with everything the tests need. All of it is written before anything is started: a program
/// that some thread still has open for writing while another forks cannot be executed.
fn bed() -> &'static Path {
    static BED: OnceLock<PathBuf> = OnceLock::new();
    BED.get_or_init(|| {
        let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("netacc_run");
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(root.join("bin")).unwrap();
        let root = root.canonicalize().unwrap();
        fs::copy(env!("CARGO_BIN_EXE_netacc_run"), root.join("bin/netacc_run")).unwrap();
        fs::copy(harmless_library(), root.join("bin/libnetacc-preload.so")).unwrap();
        put(&root.join("empty.conf"), b"[netacc]\n", 0o644);
        put(&root.join("plain"), b"text", 0o644);
        put(&root.join("lost"), b"#!/absent/interpreter\n", 0o755);
        fabricated::write(&root);
        root
    })
}

fn put(path: &Path, content: &[u8], mode: u32) {
    fs::write(path, content).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// A shared library that this process has mapped, so it is one of the right kind.
fn harmless_library() -> PathBuf {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let mut paths = maps.lines().filter_map(|line| line.find('/').map(|at| &line[at..]));
    paths.find(|path| path.contains("/libgcc_s")).unwrap().into()
}

fn netacc_run(words: &[&str]) -> Command {
    let bed = bed();
    let mut command = Command::new(bed.join("bin/netacc_run"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("NACC_") {
            command.env_remove(name);
        }
    }
    command.args(words).current_dir(bed).stdin(Stdio::null());
    command.env_remove("LD_PRELOAD").env("NACC_CONFIG_FILE", bed.join("empty.conf"));
    command
}

fn run(words: &[&str]) -> Output {
    netacc_run(words).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// The output of a command that must succeed in silence.
fn clean(output: Output) -> String {
    assert_eq!((stderr(&output).as_str(), output.status.code()), ("", Some(0)));
    stdout(&output)
}

fn library() -> String {
    bed().join("bin/libnetacc-preload.so").display().to_string()
}

#[test]
fn help_and_version() {
    assert_eq!(clean(run(&["-h"])), HELP);
    assert_eq!(clean(run(&["--help"])), HELP);
    assert_eq!(clean(run(&["-v"])), format!("netacc_run {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn wrong_usage() {
    for words in [&[][..], &["-t"], &["-z", "true"], &["-t", "1"], &["--threads", "true"]] {
        let output = run(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert_eq!(stdout(&output), "");
        assert!(stderr(&output).starts_with("error: "), "{words:?}");
        assert!(stderr(&output).contains("try '--help'"), "{words:?}");
    }
}

#[test]
fn wrong_values_name_option_value_and_what_is_allowed() {
    for (option, value, allowed) in [
        ("-t", "0", "1..=64"),
        ("-t", "-4", "1..=64"),
        ("-t", "x", "1..=64"),
        ("-t", "", "1..=64"),
        ("-p", "1025", "1..=1024"),
        ("-s", "16k", "1024..=16777216"),
        ("-F", "2", "0, 1"),
        ("-P", "-1", "0..=60000"),
        ("-A", "3-1", "CPUs 0..=8191 such as 0, 1-3 or 1,3,4"),
        ("-i", "99999999999999999999", "0..=1023"),
    ] {
        let output = run(&[option, value, "echo", "started"]);
        assert_eq!(output.status.code(), Some(2), "{option} {value}");
        assert_eq!(stdout(&output), "");
        let message = stderr(&output);
        assert!(message.starts_with(&format!("netacc_run: {option}: \"{value}\" is ")), "{message}");
        assert!(message.contains(&format!("allowed: {allowed}")), "{message}");
        assert_eq!(message.lines().count(), 1, "{message}");
    }
}

#[test]
fn options_reach_the_command() {
    let show = "echo $LD_PRELOAD; echo $NACC_CMDLINE; echo $NACC_CONFIG_FILE";
    let empty = bed().join("empty.conf").display().to_string();
    let library = library();
    assert_eq!(clean(run(&["sh", "-c", show])), format!("{library}\n\n{empty}\n"));
    let all = "-f empty.conf -p 4 -t 2 -s 32768 -F 1 -d -T -P 5 -A 0,2-3 -i 1";
    let words: Vec<&str> = all.split(' ').chain(["sh", "-c", show]).collect();
    let expected = "NACC_SOR_CONN_PER_QP=4;NACC_SOR_IO_THREADS=2;NACC_SOR_MSG_SIZE=32768;NACC_FAST_CONNECT=1;\
                    NACC_DEBUG=1;NACC_LOG_LEVEL=1;NACC_CONN_TCP_FIRST=1;NACC_POLL_CQ_MS=5;\
                    NACC_SOR_AFFINITY=0,2-3;NACC_COMP_VECTOR=1";
    let mut command = netacc_run(&words);
    command.env_remove("NACC_CONFIG_FILE");
    let output = command.output().unwrap();
    assert_eq!(clean(output), format!("{library}\n{expected}\n{empty}\n"), "-f is made absolute");
    let words = ["-dTt4", "-t5", "sh", "-c", "echo $NACC_CMDLINE"];
    let expected = "NACC_SOR_IO_THREADS=5;NACC_DEBUG=1;NACC_LOG_LEVEL=1;NACC_CONN_TCP_FIRST=1\n";
    assert_eq!(clean(run(&words)), expected, "grouped, and the later -t counts");
}

#[test]
fn arguments_behind_the_command_are_its_own() {
    let script = "for word; do echo \"[$word]\"; done";
    let words = ["-t", "2", "sh", "-c", script, "sh", "-t", "x", "--", "-h", "", "-z", "--version"];
    let expected = "[-t]\n[x]\n[--]\n[-h]\n[]\n[-z]\n[--version]\n";
    assert_eq!(clean(run(&words)), expected);
    assert_eq!(clean(run(&["--", "echo", "--", "-t"])), "-- -t\n");
    assert_eq!(clean(run(&["sh", "-c", "echo $0"])), "sh\n");
}

#[test]
fn environment_is_added_to() {
    let show = ["sh", "-c", "echo $LD_PRELOAD; echo $NACC_CMDLINE"];
    let other = harmless_library().display().to_string();
    let mut command = netacc_run(&show);
    command.env("LD_PRELOAD", format!("{other} {}", library()));
    assert_eq!(clean(command.output().unwrap()), format!("{}:{other}\n\n", library()));
    let own = bed().join("bin/netacc_run").display().to_string();
    let nested: Vec<&str> = ["-t", "2", &own, "-t", "3"].into_iter().chain(show).collect();
    let expected = format!("{}\nNACC_SOR_IO_THREADS=2;NACC_SOR_IO_THREADS=3\n", library());
    assert_eq!(clean(run(&nested)), expected);
}

#[test]
fn command_takes_the_place_of_the_process() {
    let child = netacc_run(&["sh", "-c", "echo $$; exit 7"]).stdout(Stdio::piped()).spawn().unwrap();
    let pid = child.id();
    let output = child.wait_with_output().unwrap();
    assert_eq!(stdout(&output), format!("{pid}\n"));
    assert_eq!(output.status.code(), Some(7));
}

#[test]
fn commands_that_cannot_be_run() {
    for (command, status, message) in [
        ("no-such-command", 127, "no-such-command: command not found"),
        ("./absent", 127, "./absent: no such file"),
        ("", 127, "\"\": command not found"),
        ("./plain", 126, "./plain: no permission to execute it"),
        ("./bin", 126, "./bin: it is a directory"),
        ("./lost", 127, "./lost: its interpreter or dynamic loader is missing: "),
    ] {
        let output = run(&[command]);
        assert_eq!(output.status.code(), Some(status), "{command}");
        let said = stderr(&output);
        assert!(said.starts_with(&format!("netacc_run: {message}")), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

#[test]
fn configuration_files() {
    for (file, error) in [
        ("absent.conf", "No such file or directory"),
        ("bin", "not a regular file"),
        ("/dev/zero", "not a regular file"),
        ("plain/x", "Not a directory"),
    ] {
        let output = run(&["-f", file, "echo", "started"]);
        assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(2), ""));
        assert!(stderr(&output).starts_with(&format!("netacc_run: -f: {file}: {error}")), "{output:?}");
    }
    let bad = bed().join("bad.conf");
    put(&bad, b"[netacc]\nNACC_SOR_IO_THREADS=x\n\xff\n", 0o644);
    let output = run(&["-f", "bad.conf", "sh", "-c", "echo started; exit 3"]);
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(3), "started\n"));
    assert_eq!(
        stderr(&output),
        "netacc_run: bad.conf:2: NACC_SOR_IO_THREADS: \"x\" is not a number; allowed: 1..=64; using 1\n\
         netacc_run: bad.conf:3: expected KEY=VALUE; ignored\n"
    );
    let mut command = netacc_run(&["echo", "started"]);
    let output = command.env("NACC_CONFIG_FILE", "bin").env("NACC_DEBUGG", "1").output().unwrap();
    assert_eq!(stdout(&output), "started\n", "only a file named by -f is insisted on");
    assert_eq!(
        stderr(&output),
        "netacc_run: bin: not a regular file; using defaults\n\
         netacc_run: environment: NACC_DEBUGG: unknown key; ignored; did you mean NACC_DEBUG?\n"
    );
}

#[test]
fn files_that_the_environment_names() {
    let output = netacc_run(&["echo", "started"]).env("NACC_CONFIG_FILE", "/absent.conf").output().unwrap();
    assert_eq!(stdout(&output), "started\n");
    assert_eq!(stderr(&output), "netacc_run: /absent.conf: No such file or directory (os error 2); using defaults\n");
    for (path, trouble) in [
        ("/absent/log", "there is no folder /absent"),
        ("/", "it is a folder"),
        ("/etc/passwd/log", "/etc/passwd is no folder"),
        ("/tmp/netacc.log", ""),
        ("", ""),
    ] {
        let output = netacc_run(&["echo", "started"]).env("NACC_LOG_PATH", path).output().unwrap();
        assert_eq!(stdout(&output), "started\n");
        let expected = match trouble {
            "" => String::new(),
            trouble => format!("netacc_run: NACC_LOG_PATH: {path}: {trouble}; nothing is logged\n"),
        };
        assert_eq!(stderr(&output), expected);
    }
}

#[test]
fn programs_that_cannot_be_accelerated_run_all_the_same() {
    if !fabricated::POSSIBLE {
        return;
    }
    const GO: &str = if cfg!(target_arch = "x86_64") {
        "it is a Go program, whose function for system calls is not a known one"
    } else {
        "it is a Go program, which is followed on x86-64 only"
    };
    bed();
    for (command, reason) in [
        ("./static", "it is statically linked"),
        ("./go", GO),
        ("./uclibc", "it uses neither glibc nor musl (its loader is ./ld-uClibc-test.so.0)"),
        ("./musl", "its C library is a musl older than 1.2.2"),
    ] {
        let output = run(&["-t", "2", command]);
        assert_eq!(output.status.code(), Some(fabricated::STATUS), "{output:?}");
        assert_eq!(stderr(&output), format!("netacc_run: {command} runs without NetACC: {reason}\n"));
    }
    let output = run(&["./script"]);
    assert_eq!(output.status.code(), Some(fabricated::STATUS), "{output:?}");
    let expected = "netacc_run: ./script (a script for ./static) runs without NetACC: it is statically linked\n";
    assert_eq!(stderr(&output), expected);
}

/// Tiny programs made by hand, so that no compiler is needed.
mod fabricated {
    use super::put;
    use std::path::Path;

    /// With what they all exit.
    pub const STATUS: i32 = 42;
    /// Whether they can be made for this machine.
    pub const POSSIBLE: bool = !CODE.is_empty();

    /// `exit(42)`
    const CODE: &[u8] = if cfg!(target_arch = "x86_64") {
        &[0xbf, 42, 0, 0, 0, 0xb8, 60, 0, 0, 0, 0x0f, 0x05]
    } else if cfg!(target_arch = "aarch64") {
        &[0x40, 0x05, 0x80, 0xd2, 0xa8, 0x0b, 0x80, 0xd2, 0x01, 0, 0, 0xd4]
    } else {
        &[]
    };
    const MACHINE: u16 = if cfg!(target_arch = "x86_64") { 62 } else { 183 };

    pub fn write(root: &Path) {
        let note = b"\x04\0\0\0\x04\0\0\0\x04\0\0\0Go\0\0abcd";
        put(&root.join("static"), &program(2, &[]), 0o755);
        put(&root.join("go"), &program(2, &[(4, note)]), 0o755);
        for (name, loader) in [("musl", "ld-musl-test.so.1"), ("uclibc", "ld-uClibc-test.so.0")] {
            put(&root.join(name), &program(2, &[(3, format!("./{loader}\0").as_bytes())]), 0o755);
            put(&root.join(loader), &program(3, &[]), 0o755);
        }
        put(&root.join("script"), b"#!./static\n", 0o755);
    }

    /// An ELF file of type `kind` (2 fixed, 3 relocatable) with program headers beside the one that loads it.
    fn program(kind: u16, segments: &[(u32, &[u8])]) -> Vec<u8> {
        const HEADER: usize = 64;
        const SEGMENT: usize = 56;
        let base: u64 = if kind == 2 { 0x40_0000 } else { 0 };
        let entry = HEADER + SEGMENT * (segments.len() + 1);
        let mut body = CODE.to_vec();
        let mut table = Vec::new();
        let mut add = |kind: u32, offset: usize, size: usize| {
            table.extend(kind.to_le_bytes());
            table.extend(5_u32.to_le_bytes());
            for number in [offset as u64, base + offset as u64, base + offset as u64] {
                table.extend(number.to_le_bytes());
            }
            for number in [size as u64, size as u64, if kind == 1 { 0x1000 } else { 4 }] {
                table.extend(number.to_le_bytes());
            }
        };
        // The interpreter must be named before anything is loaded.
        for (kind, content) in segments {
            body.resize(body.len().next_multiple_of(4), 0);
            add(*kind, entry + body.len(), content.len());
            body.extend_from_slice(content);
        }
        add(1, 0, entry + body.len());

        let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
        file.extend(kind.to_le_bytes());
        file.extend(MACHINE.to_le_bytes());
        file.extend(1_u32.to_le_bytes());
        for number in [base + entry as u64, HEADER as u64, 0] {
            file.extend(number.to_le_bytes());
        }
        file.extend(0_u32.to_le_bytes());
        for number in [HEADER, SEGMENT, segments.len() + 1, 64, 0, 0] {
            file.extend((number as u16).to_le_bytes());
        }
        assert_eq!(file.len(), HEADER);
        file.extend(table);
        file.extend(body);
        file
    }
}
