//! The devices: files of a folder, each with the addresses that are its own, and a page of counters and faults for each.
//!
//! The folder is `/run/netacc-fabric`: not a setting, since servers clear the environment. `devices/NAME` has one word a line: `ib` or `iwarp`, then the
//! addresses. `pages/NAME` is the device's [`Page`], which every process that opens the device maps.

use core::net::IpAddr;
use core::sync::atomic::{AtomicU64, Ordering};
use rustix::fs::{Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Counters that the processes of a device add to, and faults that a test asks for. Relaxed throughout: each word stands for
/// itself.
#[repr(C)]
#[derive(Debug)]
pub struct Page {
    /// Messages sent.
    pub sends: AtomicU64,
    /// Messages received.
    pub receives: AtomicU64,
    /// Bytes of the messages sent.
    pub bytes_sent: AtomicU64,
    /// Bytes of the messages received.
    pub bytes_received: AtomicU64,
    /// Messages that found no receive, or one that was too short. A sender that keeps to its credits causes none.
    pub without_receive: AtomicU64,
    /// Asked for by a test: time (ms) for which an acknowledgement is kept back, so that sends complete late.
    pub late_acks: AtomicU64,
    /// Asked for by a test: time (ms) for which arrived messages are kept back.
    pub late_messages: AtomicU64,
    /// Asked for by a test: the queue pair that posts a message while this counts down to 0 fails. 0: none does.
    pub fail_after: AtomicU64,
    /// Asked for by a test: number of completions of sends that are lost.
    pub lost_completions: AtomicU64,
    /// Asked for by a test: time (ms) for which the connection manager keeps `ESTABLISHED` back, so that the first messages
    /// come before it.
    pub late_established: AtomicU64,
    /// Asked for by a test: nonzero if no message leaves the device.
    pub silent: AtomicU64,
    /// Asked for by a test: the queue pair that gets a message while this counts down to 0 fails; the device has acknowledged
    /// the message, and the program never gets it. 0: none does.
    pub fail_receive_after: AtomicU64,
    /// Asked for by a test: nonzero if no queue pair fails for want of acknowledgements, as on iWARP.
    pub endless_retries: AtomicU64,
}

impl Page {
    /// Takes one from a number of faults that are still to happen. True if there was one.
    pub fn takes_one(word: &AtomicU64) -> bool {
        word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok()
    }

    /// Whether no queue pair fails for want of acknowledgements.
    pub fn retries_for_ever(&self) -> bool {
        self.endless_retries.load(Ordering::Relaxed) != 0
    }

    /// Counts down to a fault. True if it is to happen now.
    pub fn comes_due(word: &AtomicU64) -> bool {
        word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)) == Ok(1)
    }
}

/// A device as the folder describes it.
#[derive(Debug)]
pub struct Described {
    /// Its name.
    pub name: String,
    /// Whether it is iWARP's kind: no immediate data.
    pub iwarp: bool,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
}

/// The folder.
pub fn folder() -> PathBuf {
    PathBuf::from("/run/netacc-fabric")
}

/// The devices that there are.
pub fn all() -> Vec<Described> {
    let Ok(entries) = std::fs::read_dir(folder().join("devices")) else { return Vec::new() };
    let mut found: Vec<Described> = entries
        .flatten()
        .filter_map(|entry| {
            let text = std::fs::read_to_string(entry.path()).ok()?;
            let name = entry.file_name().into_string().ok()?;
            let addresses = text.split_whitespace().skip(1).filter_map(|word| word.parse().ok()).collect();
            Some(Described { name, iwarp: text.starts_with("iwarp"), addresses })
        })
        .collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

/// Maps the page of a device. It stays mapped as long as the process lives.
pub fn page(name: &str) -> Option<&'static Page> {
    let path = folder().join("pages").join(name);
    let file = rustix::fs::open(
        path.as_os_str().as_bytes(),
        OFlags::RDWR | OFlags::CLOEXEC | OFlags::CREATE,
        Mode::from_raw_mode(0o666),
    )
    .ok()?;
    let size = 4096;
    rustix::fs::ftruncate(&file, size as u64).ok()?;
    // SAFETY: a fresh mapping; nothing else is there.
    let start = unsafe {
        rustix::mm::mmap(core::ptr::null_mut(), size, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &file, 0)
    }
    .ok()?;
    // SAFETY: mapped for good, aligned, larger than the page's structure, which is made of atomics.
    Some(unsafe { &*start.cast::<Page>() })
}

/// Whether the device's file is there.
pub fn exists(name: &str) -> bool {
    folder().join("devices").join(name).exists()
}

/// What a process has on a device, noted down in a file for the tests' program `rdma`, and gone with this.
#[derive(Debug)]
pub struct Note(PathBuf);

impl Note {
    /// `what`: `qp` or `cm_id`; `fields`: more members of the JSON object.
    pub fn write(what: &str, number: u64, device: &str, fields: &str) -> Note {
        let pid = std::process::id();
        let path = folder().join(what).join(format!("{pid}.{number}"));
        let _ = std::fs::write(&path, format!("{{\"ifname\": \"{device}\", \"pid\": {pid}{fields}}}"));
        Note(path)
    }
}

impl Drop for Note {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
