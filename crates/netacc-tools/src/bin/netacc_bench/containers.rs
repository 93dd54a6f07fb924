//! Two containers of this host, as far as a measurement needs them: network namespaces, each with a cable to a bridge in
//! a third one, and a directory that both see (`NACC_HOST_DIR`).

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use netacc_tools::bench_wire::Side;
use netacc_tools::text::clean;
use rustix::fd::AsFd;
use rustix::fs::{Mode, OFlags, open};
use rustix::process::geteuid;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::child::{Child, on_side, ourselves};

/// How long a namespace may take to be made.
const PATIENCE: Duration = Duration::from_secs(10);
const OWN: &str = "/proc/self/ns/net";
/// Where the server is, and where the client: addresses of the two containers alone.
pub(crate) const SERVER: &str = "10.99.0.2";
const CLIENT: &str = "10.99.0.3";

/// The directory of the present measurement.
static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();

/// The host directory for the processes that measure, if they are in containers.
pub(crate) fn directory() -> Option<&'static Path> {
    DIRECTORY.get().map(PathBuf::as_path)
}

pub(crate) struct Containers {
    server: Namespace,
    client: Namespace,
    _bridge: Namespace,
}

/// A network namespace. It ends with the process that holds it.
struct Namespace {
    holder: Child,
    path: String,
}

impl Namespace {
    fn make() -> Result<Self, String> {
        let mut command = Command::new("unshare");
        // A measuring process that is told nothing waits until it is to end.
        let waiting = ourselves(&["worker"])?;
        command.arg("--net").arg(waiting.get_program()).args(waiting.get_args());
        on_side(&mut command, Side::Plain);
        let mut holder = Child::spawn("process of a network namespace", command)?;
        let path = format!("/proc/{}/ns/net", holder.pid());
        let (own, end) = (fs::read_link(OWN).ok(), Instant::now() + PATIENCE);
        while fs::read_link(&path).ok() == own {
            if !holder.runs() {
                return Err(holder.ended());
            }
            if Instant::now() > end {
                return Err(holder.failure("has made none"));
            }
            thread::sleep(Duration::from_millis(1));
        }
        let made = Self { holder, path };
        made.ip(&["link", "set", "lo", "up"])?;
        Ok(made)
    }

    /// The command, run in the namespace.
    fn within(&self, command: &Command) -> Command {
        let mut inside = Command::new("nsenter");
        inside.arg(format!("--net={}", self.path)).arg(command.get_program()).args(command.get_args());
        for (key, value) in command.get_envs() {
            match value {
                Some(value) => inside.env(key, value),
                None => inside.env_remove(key),
            };
        }
        inside
    }

    /// Runs ip(8) in the namespace.
    fn ip(&self, words: &[&str]) -> Result<(), String> {
        let mut command = Command::new("ip");
        command.args(words);
        on_side(&mut command, Side::Plain);
        let done = self.within(&command).output().map_err(|error| format!("nsenter: {error}"))?;
        if done.status.success() {
            return Ok(());
        }
        Err(format!("ip {}: {}", words.join(" "), clean(String::from_utf8_lossy(&done.stderr).trim())))
    }
}

impl Containers {
    pub(crate) fn make() -> Result<Self, String> {
        if !geteuid().is_root() {
            return Err("containers can be made by root only".into());
        }
        let (server, client, bridge) = (Namespace::make()?, Namespace::make()?, Namespace::make()?);
        bridge.ip(&["link", "add", "bridge", "type", "bridge"])?;
        bridge.ip(&["link", "set", "bridge", "up"])?;
        for (end, port, address) in [(&server, "port-s", SERVER), (&client, "port-c", CLIENT)] {
            let holder = end.holder.pid().to_string();
            bridge.ip(&["link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", &holder])?;
            bridge.ip(&["link", "set", port, "master", "bridge", "up"])?;
            end.ip(&["address", "add", &format!("{address}/24"), "dev", "eth0"])?;
            end.ip(&["link", "set", "eth0", "up"])?;
        }
        let made = Self { server, client, _bridge: bridge };
        let path = std::env::temp_dir().join(format!("netacc_bench-{}", std::process::id()));
        DirBuilder::new().mode(0o700).create(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let _ = DIRECTORY.set(path);
        Ok(made)
    }

    /// The command, run in the server's container.
    pub(crate) fn at_server(&self, command: &Command) -> Command {
        self.server.within(command)
    }

    /// Enters the client's container with this thread, and so with the processes that it starts.
    pub(crate) fn enter(&self) -> Result<(), String> {
        let path = &self.client.path;
        let namespace = open(path.as_str(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        let namespace = namespace.map_err(|error| format!("{path}: {error}"))?;
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(|error| format!("setns: {error}"))
    }
}

impl Drop for Containers {
    fn drop(&mut self) {
        if let Some(path) = directory() {
            let _ = fs::remove_dir_all(path);
        }
    }
}
