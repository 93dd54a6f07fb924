//! The facts of the machine that we run on.

use std::collections::BTreeSet;
use std::ffi::{CStr, OsString, c_char};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use netacc_conf::{DEFAULT_PATH, ENV_CMDLINE, ENV_CONFIG_FILE};
use netacc_tools::conf_file::{self, Unreadable};
use netacc_tools::{environment, library};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::process::{Resource, getrlimit};

use super::{Config, Host, Limits, interface, rdma, record};

/// Where files are looked for: the root of this machine, or, in tests, of a made-up one.
pub(super) struct System {
    root: PathBuf,
}

impl System {
    pub(super) fn path(&self, absolute: &str) -> PathBuf {
        self.root.join(absolute.trim_start_matches('/'))
    }
}

/// A file's content without the space around it; `None` if it cannot be read.
pub(super) fn text(path: &Path) -> Option<String> {
    let bytes = fs::read(path).ok()?;
    Some(String::from_utf8_lossy(&bytes).trim().to_owned())
}

/// A file that holds a number.
pub(super) fn number(path: &Path) -> Option<u32> {
    text(path)?.parse().ok()
}

/// Looks at everything. `config` is the configuration file if one was named.
pub(crate) fn host(config: Option<&Path>) -> Host {
    let system = System { root: "/".into() };
    let mut problems = Vec::new();
    let names = rustix::system::uname();
    let kernel = names.release().to_string_lossy().into_owned();
    let kernels = folders(&system.path("/lib/modules"));
    Host {
        format: record::FORMAT,
        machine: names.machine().to_string_lossy().into_owned(),
        cmdline: text(&system.path("/proc/cmdline")).map(|line| naming_words(&line)),
        platform: platform(&system),
        glibc: glibc(),
        memfd: Some(memfd()),
        cpus: std::thread::available_parallelism().ok().and_then(|count| u32::try_from(count.get()).ok()),
        container: container(&system),
        udev: system.path("/run/udev/control").exists(),
        ipv6_disabled: match number(&system.path("/proc/sys/net/ipv6/conf/all/disable_ipv6")) {
            Some(disabled) => Some(disabled != 0),
            // Without IPv6 in the kernel there is no such file.
            None => Some(true).filter(|_| !system.path("/proc/sys/net/ipv6").exists()),
        },
        limits: limits(&system),
        dev_shm: rustix::fs::statvfs("/dev/shm").ok().map(|fs| fs.f_blocks.saturating_mul(fs.f_frsize)),
        listeners: listeners(&system, &mut problems),
        libraries: libraries(),
        found_by_name: found_by_name(),
        beside_library: library::find_file().is_some_and(|file| {
            std::env::current_exe().is_ok_and(|own| own.canonicalize().is_ok_and(|own| own.parent() == file.parent()))
        }),
        config: configuration(config),
        interfaces: interface::all(&system, &kernel, &kernels, &mut problems),
        rdma: rdma::all(&system),
        kernel,
        kernels,
        problems,
    }
}

/// What the kernel's command line says of interface names. The rest is nobody's business, least of all a recording's.
fn naming_words(cmdline: &str) -> String {
    let words = cmdline.split_ascii_whitespace();
    words
        .filter(|word| word.starts_with("net.ifnames=") || word.starts_with("biosdevname="))
        .collect::<Vec<_>>()
        .join(" ")
}

fn folders(parent: &Path) -> Vec<String> {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter(|entry| entry.path().join("modules.dep").exists())
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}

/// The names by which clouds can be told.
fn platform(system: &System) -> Vec<String> {
    let dmi = ["sys_vendor", "product_name", "product_version", "bios_vendor", "bios_version", "chassis_asset_tag"];
    let files = dmi.iter().map(|name| format!("/sys/class/dmi/id/{name}"));
    let files = files.chain(["/sys/hypervisor/type", "/sys/hypervisor/version/extra"].map(str::to_owned));
    files.filter_map(|file| text(&system.path(&file))).filter(|name| !name.is_empty()).collect()
}

#[allow(unsafe_code)]
fn glibc() -> Option<String> {
    unsafe extern "C" {
        safe fn gnu_get_libc_version() -> *const c_char;
    }
    let version = gnu_get_libc_version();
    // SAFETY: glibc returns a static NUL-terminated string (gnu_get_libc_version(3)).
    (!version.is_null()).then(|| unsafe { CStr::from_ptr(version) }.to_string_lossy().into_owned())
}

/// Whether there are memfds that can be sealed, in this kernel and in this sandbox.
fn memfd() -> bool {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    memfd_create(c"netacc-check", flags).is_ok_and(|fd| fcntl_add_seals(fd, SealFlags::SHRINK).is_ok())
}

fn container(system: &System) -> Option<String> {
    let marks = [("/.dockerenv", "Docker"), ("/run/.containerenv", "Podman"), ("/.flatpak-info", "Flatpak")];
    let mark = marks.iter().find(|(file, _)| system.path(file).exists()).map(|(_, name)| (*name).to_owned());
    let group = || {
        let group = text(&system.path("/proc/self/cgroup"))?;
        [("kubepods", "Kubernetes"), ("docker", "Docker"), ("libpod", "Podman"), ("lxc", "LXC")]
            .iter()
            .find(|(part, _)| group.contains(part))
            .map(|(_, name)| (*name).to_owned())
    };
    text(&system.path("/run/systemd/container")).or(mark).or_else(group)
}

fn limits(system: &System) -> Limits {
    let soft = |resource| getrlimit(resource).current;
    Limits {
        memlock: soft(Resource::Memlock),
        nofile: soft(Resource::Nofile),
        nofile_hard: getrlimit(Resource::Nofile).maximum,
        address_space: soft(Resource::As),
        memory: memory_limit(system),
    }
}

/// The smallest limit of memory on the way up from our control group.
fn memory_limit(system: &System) -> Option<u64> {
    let groups = text(&system.path("/proc/self/cgroup"))?;
    let mut least = None;
    for line in groups.lines() {
        // NUMBER:CONTROLLERS:PATH, without controllers in version 2.
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let (base, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            some if some.split(',').any(|name| name == "memory") => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            _ => continue,
        };
        let base = system.path(base);
        let mut folder = base.join(path.trim_start_matches('/'));
        while folder.starts_with(&base) {
            let limit = text(&folder.join(file)).and_then(|limit| limit.parse::<u64>().ok());
            // Version 1 says "none" by a number near 2 to the 63.
            if let Some(limit) = limit.filter(|limit| *limit < 1 << 60) {
                least = Some(least.map_or(limit, |other: u64| other.min(limit)));
            }
            if !folder.pop() {
                break;
            }
        }
    }
    least
}

/// The ports of listeners that other hosts could reach, from /proc/net/tcp and tcp6.
fn listeners(system: &System, problems: &mut Vec<String>) -> Vec<u16> {
    let mut ports = BTreeSet::new();
    for file in ["/proc/net/tcp", "/proc/net/tcp6"] {
        match fs::read_to_string(system.path(file)) {
            Ok(table) => ports.extend(table.lines().skip(1).filter_map(listening)),
            // A kernel without IPv6.
            Err(error) if error.kind() == ErrorKind::NotFound && file.ends_with('6') => {}
            Err(error) => problems.push(format!("listeners: {file}: {error}")),
        }
    }
    ports.into_iter().collect()
}

/// `N: ADDRESS:PORT ADDRESS:PORT STATE ...`, all in hexadecimal; 0A is a listener.
fn listening(line: &str) -> Option<u16> {
    let mut words = line.split_ascii_whitespace().skip(1);
    let (address, port) = words.next()?.split_once(':')?;
    let is_listener = words.nth(1)? == "0A";
    // In the byte order of the machine: 127.x.y.z, and ::1.
    let loopback = match address.len() {
        8 => address.ends_with("7F"),
        _ => address == "00000000000000000000000001000000",
    };
    u16::from_str_radix(port, 16).ok().filter(|_| is_listener && !loopback)
}

/// The library beside this program, and those that the dynamic linker finds by its name.
fn libraries() -> Vec<String> {
    let near = library::find();
    let near = (near != *library::NAME).then(|| near.to_string_lossy().into_owned());
    near.into_iter()
        .chain(ldconfig().into_iter().filter_map(|(name, path)| (name == library::NAME).then_some(path)))
        .collect()
}

/// Whether the dynamic linker finds the library by its name. Only the linker itself knows where it looks, so a program is
/// started that does nothing: the linker complains about what it does not find, and goes on.
fn found_by_name() -> Option<bool> {
    let mut command = Command::new("/bin/true");
    command.env_clear().env("LD_PRELOAD", library::NAME).env("NACC_LOG_PATH", "");
    let output = command.stdin(Stdio::null()).stdout(Stdio::null()).output().ok()?;
    output.status.success().then_some(output.stderr.is_empty())
}

/// The libraries in the linker's cache, as (name, path).
pub(crate) fn ldconfig() -> Vec<(String, String)> {
    // A user's PATH often leaves sbin out.
    let output = ["ldconfig", "/sbin/ldconfig", "/usr/sbin/ldconfig"].iter().find_map(|program| {
        let run =
            Command::new(program).arg("-p").env("LC_ALL", "C").stdin(Stdio::null()).stderr(Stdio::null()).output();
        run.ok().filter(|output| output.status.success())
    });
    let listing = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    // \tNAME (KIND) => PATH
    let entry = |line: &str| {
        let (left, path) = line.trim().split_once(" => ")?;
        Some((left.split(' ').next()?.to_owned(), path.to_owned()))
    };
    listing.lines().filter_map(entry).collect()
}

/// The configuration as it is written; `named` is the file if one was named.
pub(crate) fn configuration(named: Option<&Path>) -> Config {
    let inherited = environment::var_os(ENV_CONFIG_FILE).filter(|name| !name.is_empty());
    let named = named.map(PathBuf::from).or_else(|| inherited.map(PathBuf::from));
    let usual = named.is_none();
    let path = named.unwrap_or_else(|| DEFAULT_PATH.into());
    let (text, error) = match conf_file::read(&path) {
        Ok(text) => (Some(String::from_utf8_lossy(&text).into_owned()), None),
        Err(Unreadable::Os(error)) if error.kind() == ErrorKind::NotFound && usual => (None, None),
        Err(error) => (None, Some(error.to_string())),
    };
    let ours =
        |(key, value): (OsString, OsString)| Some((key.into_string().ok()?, value.to_string_lossy().into_owned()));
    let environment = environment::vars_os()
        .filter_map(ours)
        .filter(|(key, _)| key.starts_with("NACC_") && key != ENV_CONFIG_FILE || key == ENV_CMDLINE)
        .collect();
    Config { path: path.display().to_string(), text, error, environment }
}

#[cfg(test)]
#[path = "live_tests.rs"]
pub(super) mod tests;
