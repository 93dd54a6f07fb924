//! `netacc_ctl` from the outside, asking this very test process.

#![allow(clippy::expect_used, reason = "helpers of tests fail by panicking")]

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{LazyLock, Mutex};

use netacc_stats::{ControlCommand, ControlRequest, ControlState, Reason, Reloaded, State, Transport};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use serde_json::{Value, json};

/// The page of this process. It is filled once; the descriptor stays open. Only one test asks at a time.
static PAGE: LazyLock<(rustix::fd::OwnedFd, Mutex<()>)> = LazyLock::new(|| {
    let made = netacc_stats::init(b"redis-server", std::process::id()).expect("a page");
    let entry = netacc_stats::page().sock(7).expect("an entry");
    entry.open(State::Established, Transport::Shm, Reason::None, 1_000_000_000);
    (made, Mutex::new(()))
});

fn ctl(args: &[&str]) -> Output {
    LazyLock::force(&PAGE);
    Command::new(env!("CARGO_BIN_EXE_netacc_ctl")).args(args).output().expect("netacc_ctl runs")
}

/// What a call that ends with `status` says on standard error.
fn said(args: &[&str], status: i32) -> String {
    let output = ctl(args);
    let text = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(status), "{args:?}: {text}");
    text
}

fn own() -> String {
    std::process::id().to_string()
}

fn state() -> Value {
    let output = ctl(&["status", &own(), "--json"]);
    assert_eq!(output.status.code(), Some(0));
    let all: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    all.pointer("/0/state").expect("one process").clone()
}

/// What is asked of this process.
fn request() -> ControlRequest {
    ControlRequest::of_word(netacc_stats::page().control().request_now())
}

/// A file that this process says to have its rules from.
fn rules_file(text: &str, rules: &[&str]) -> PathBuf {
    let file = std::env::temp_dir().join(format!("netacc_ctl-{}.conf", std::process::id()));
    fs::write(&file, text).expect("a file");
    let name = file.display();
    let mut cfg = format!("NACC_CONFIG_FILE\t{name}\tenvironment\nNACC_LOG_LEVEL\t3\t{name}:2\n");
    rules.iter().for_each(|rule| cfg += &format!("rule\t{rule}\t{name}:4\n"));
    static SETS: AtomicU32 = AtomicU32::new(0);
    let set = SETS.fetch_add(1, Ordering::Relaxed) + 1;
    netacc_stats::page().replace_rules(set, 1_000_000_000, cfg.as_bytes(), || {});
    file
}

/// Calls `netacc_ctl reload`, gives this answer, and returns what was printed and said.
fn reload(answer: Reloaded, detail: u32) -> (Output, Value) {
    let before = request();
    let mut command = Command::new(env!("CARGO_BIN_EXE_netacc_ctl"));
    let asking =
        command.args(["reload", &own(), "--json", "-w", "60"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut asking = asking.expect("netacc_ctl runs");
    while request().reload == before.reload {
        assert!(asking.try_wait().expect("a child").is_none(), "nothing was asked");
        std::thread::yield_now();
    }
    assert_eq!(request().switch, before.switch);
    netacc_stats::page().rules().answer(request().reload, answer, detail);
    let output = asking.wait_with_output().expect("it ends");
    let shown: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    (output, shown.pointer("/0/rules").expect("one process").clone())
}

#[test]
fn rules_are_loaded_anew() {
    let _one = PAGE.1.lock();
    netacc_stats::page().replace_rules(0, 0, b"", || {});
    let text = said(&["reload", &own()], 1);
    assert!(text.contains("runs an older NetACC, which loads its rules only when it starts"), "{text}");
    assert_eq!(request().reload, 0, "an older library is not asked");

    // A mistake is found before any process is asked.
    let file = rules_file("[netacc]\nNACC_LOG_LEVEL=3\n[rules]\nuse=tcp\nuse=udp\n", &["use=tcp"]);
    let text = said(&["reload", &own()], 1);
    assert!(text.contains(&format!("{}:5: use=\"udp\" names no transports", file.display())), "{text}");
    assert!(text.contains("no process was asked to load its rules anew"), "{text}");
    fs::remove_file(&file).expect("it is there");
    let text = said(&["reload", &own()], 1);
    assert!(text.contains("No such file") && text.contains(&own()), "{text}");
    assert_eq!(request().reload, 0);

    // The process answers.
    let file = rules_file("[netacc]\nNACC_LOG_LEVEL=4\n[rules]\nuse=tcp\n", &["use=tcp", "use=shm listen=80"]);
    let (output, rules) = reload(Reloaded::Mistaken, 7);
    let text = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains(&format!("keeps the rules that it has: {}:7 has a mistake", file.display())), "{text}");
    assert!(text.contains("keeps its values of NACC_LOG_LEVEL until it is restarted"), "{text}");
    assert_eq!(rules, json!({ "count": 2, "loaded": "1970-01-01T00:00:01Z", "reloaded": false }));
    let (output, _) = reload(Reloaded::Unreadable, 13);
    let text = String::from_utf8(output.stderr).expect("text");
    assert!(text.contains("Permission denied") && output.status.code() == Some(1), "{text}");
    let (output, _) = reload(Reloaded::Loaded, 0);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = said(&["reload", &own(), "-w", "0"], 1);
    assert!(text.contains("has made no call on a socket since; it follows at its next one"), "{text}");
    netacc_stats::page().rules().answer(request().reload, Reloaded::Loaded, 0);
    fs::remove_file(file).expect("it is there");
}

#[test]
fn a_process_is_asked_and_answers() {
    let _one = PAGE.1.lock();
    let control = netacc_stats::page().control();
    assert_eq!(state(), "on");
    let text = said(&["off", &own(), "-w", "0"], 1);
    assert!(text.contains("has made no call on a socket since; it follows at its next one"), "{text}");
    assert_eq!(ControlCommand::of(request().switch), Some(ControlCommand::Off));
    assert_eq!(state(), "on, asked");
    // Some cannot go yet.
    control.set_state(ControlState::GoingOff, 1);
    let text = said(&["off", &own(), "-w", "0"], 1);
    assert!(text.contains("is going off: 1 connection has not reached kernel TCP"), "{text}");
    assert_eq!(state(), "going off");
    control.set_state(ControlState::Off, 0);
    control.set_done(request());
    assert_eq!(state(), "off");
    let table = ctl(&["status", &own()]);
    let table = String::from_utf8(table.stdout).expect("text");
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["Pid", "Program", "State", "Tcp", "Shm", "Rdma", "Rules", "Loaded"]);
    assert_eq!(lines[1][..6], [own().as_str(), "redis-server", "off", "0", "1", "0"]);
    let before = request();
    said(&["on", &own(), "-w", "0"], 1);
    assert_eq!(ControlCommand::of(request().switch), Some(ControlCommand::On));
    assert_ne!(request(), before);
    assert_eq!(state(), "off, asked");
    control.set_state(ControlState::On, 0);
    control.set_done(request());
    assert_eq!(state(), "on");
}

#[test]
fn two_controllers_do_not_meet() {
    let _one = PAGE.1.lock();
    let path = format!("/proc/self/fd/{}", number());
    let page = open(path.as_str(), OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).expect("the page");
    flock(&page, FlockOperation::LockExclusive).expect("a lock");
    let text = said(&["off", &own(), "-w", "0"], 1);
    assert!(text.contains("is being switched by another netacc_ctl"), "{text}");
    assert_eq!(state(), "on", "a look needs no lock");
}

fn number() -> i32 {
    use rustix::fd::AsRawFd;
    PAGE.0.as_raw_fd()
}

#[test]
fn what_cannot_be_asked_is_named() {
    assert!(said(&["off", "4194304"], 1).contains("process 4194304 does not exist"));
    let mut other = Command::new("sleep").arg("60").spawn().expect("sleep runs");
    // Until exec(2) is over the child has our page.
    let text = loop {
        let text = said(&["off", &other.id().to_string()], 1);
        if !text.contains("was forked from process") {
            break text;
        }
    };
    other.kill().and_then(|()| other.wait()).expect("it ends");
    assert!(text.contains("does not have NetACC loaded; nothing of it is accelerated"), "{text}");
    assert!(said(&["on", "no-such-program"], 1).contains("no process with NetACC has the name no-such-program"));
}

#[test]
fn wrong_command_lines_end_with_2() {
    for wrong in [&[][..], &["away"], &["off", "0"], &["off", "-w", "x"], &["off", "--force"]] {
        assert!(!said(wrong, 2).is_empty());
    }
    assert_eq!(ctl(&["-h"]).status.code(), Some(0));
    assert_eq!(ctl(&["--version"]).status.code(), Some(0));
}
