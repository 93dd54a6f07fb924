//! Runs a test in a process of its own, in a world that has two RDMA devices without having one: those of
//! `netacc-fabric`, in network and mount namespaces that end with the process.

use crate::chance;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The number of messages that a failure shows.
const LAST: usize = 60;
/// Only turns a hang into a failure.
const LIMIT: Duration = Duration::from_secs(120);
/// The exit status of a child in whose place no world can be made.
const NO_WORLD: i32 = 77;

/// The device by which the address of the tests' listener is reached, and the one that has that address: the client's
/// and the server's.
pub const DEVICES: [&str; 2] = ["near", "far"];

/// Removes the device of the client, so that all of its queue pairs fail.
pub const REMOVE: &str =
    "rm /run/netacc-fabric/devices/near && rm -r /sys/class/infiniband/near /sys/class/infiniband_verbs/uverbs_near";

/// The page of one of [`DEVICES`]: its counters and its faults.
pub fn page(device: &str) -> &'static netacc_fabric::device::Page {
    netacc_fabric::device::page(device).expect("the device's page")
}

/// Runs the ignored test `test` of this program in a world of its own, and fails if it fails. `environment` is added to
/// the child's.
pub fn run(test: &str, environment: &[(&str, &str)]) {
    let seed = chance::seed();
    let program = std::env::current_exe().unwrap();
    let library = program.with_file_name("libnetacc_fabric.so");
    assert!(library.exists(), "{} is not built", library.display());
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    let name = format!("netacc-{}-{}", std::process::id(), RUNS.fetch_add(1, Ordering::Relaxed));
    let [output, trace] = ["output", "trace"].map(|what| Scratch(std::env::temp_dir().join(format!("{name}.{what}"))));
    let file = File::create(&output.0).unwrap();
    // Only who is not root needs a user namespace.
    let enter: &[&str] = if rustix::process::geteuid().is_root() { &[] } else { &["--map-root-user"] };
    let mut command = Command::new("unshare");
    command.args(enter).args(["--net", "--mount", "sh", "-c"]);
    command.arg(format!("ip link set lo up 2>/dev/null || exit {NO_WORLD}\n{}", include_str!("world.sh")));
    command.arg("sh").arg(&library).arg(&program);
    command.args(["--exact", test, "--ignored", "--nocapture", "--test-threads=1"]);
    command.env(chance::VARIABLE, seed.to_string()).env("NETACC_FABRIC_TRACE", &trace.0);
    command.env("NACC_CONNECT_RDMA_MS", "1500").env("T_BREAK", REMOVE).envs(environment.iter().copied());
    command.stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file);
    let mut child = command.spawn().expect("unshare(1)");
    let status = ended(&mut child);
    let text = std::fs::read(&output.0).unwrap();
    let text = String::from_utf8_lossy(&text);
    if status == Some(NO_WORLD) || text.starts_with("unshare: ") {
        eprintln!("skipped: no namespaces of our own: {text}");
        return;
    }
    assert!(
        status == Some(0) && text.contains("test result: ok. 1 passed"),
        "{test} failed ({}), with {}={seed}:\n{text}\nThe last messages:\n{}",
        status.map_or("no end within the limit".into(), |code| format!("status {code}")),
        chance::VARIABLE,
        last_lines(&trace.0)
    );
    assert!(std::fs::read_to_string(&trace.0).is_ok_and(|lines| lines.contains(" Send ")), "RDMA has carried nothing");
}

/// A file that goes with its owner.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The exit status; `None` if the process did not end in time, and was killed. A process that a signal ended has -1.
fn ended(child: &mut Child) -> Option<i32> {
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status.code().unwrap_or(-1));
        }
        if began.elapsed() > LIMIT {
            child.kill().unwrap();
            child.wait().unwrap();
            return None;
        }
        // The parent has nothing else to do; what is tested does not depend on when it looks.
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn last_lines(path: &Path) -> String {
    // Enough for the lines that are shown, of a file that may be long.
    const ENOUGH: i64 = 32_768;
    let Ok(mut file) = File::open(path) else { return "none".into() };
    if file.seek(SeekFrom::End(-ENOUGH)).is_err() {
        file.rewind().unwrap();
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).unwrap();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LAST)..].join("\n")
}
