//! `netacc_ctl` from the outside, asking this very test process.

#![allow(clippy::expect_used, reason = "helpers of tests fail by panicking")]

use std::process::{Command, Output};
use std::sync::{LazyLock, Mutex};

use netacc_stats::{ControlCommand, ControlState, Reason, State, Transport};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use serde_json::Value;

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

#[test]
fn a_process_is_asked_and_answers() {
    let _one = PAGE.1.lock();
    let control = netacc_stats::page().control();
    assert_eq!(state(), "on");
    let text = said(&["off", &own(), "-w", "0"], 1);
    assert!(text.contains("has made no call on a socket since; it follows at its next one"), "{text}");
    assert_eq!(ControlCommand::of(control.request_now()), Some(ControlCommand::Off));
    assert_eq!(state(), "on, asked");
    // Some cannot go yet.
    control.set_state(ControlState::GoingOff, 1);
    let text = said(&["off", &own(), "-w", "0"], 1);
    assert!(text.contains("is going off: 1 connection has not reached kernel TCP"), "{text}");
    assert_eq!(state(), "going off");
    control.set_state(ControlState::Off, 0);
    control.set_done(control.request_now());
    assert_eq!(state(), "off");
    let table = ctl(&["status", &own()]);
    let table = String::from_utf8(table.stdout).expect("text");
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["Pid", "Program", "State", "Tcp", "Shm", "Rdma"]);
    assert_eq!(lines[1], [own().as_str(), "redis-server", "off", "0", "1", "0"]);
    let before = control.request_now();
    said(&["on", &own(), "-w", "0"], 1);
    assert_eq!(ControlCommand::of(control.request_now()), Some(ControlCommand::On));
    assert_ne!(control.request_now(), before);
    assert_eq!(state(), "off, asked");
    control.set_state(ControlState::On, 0);
    control.set_done(control.request_now());
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
