//! The devices: each is a file in a folder, which lists its addresses, and a page of counters and faults.
//!
//! The folder is always `/run/netacc-fabric`, since servers clear the environment in which another one could be named.
//! `devices/NAME` has one word per line: `ib` or `iwarp`, then the addresses. `pages/NAME` is the device's [`Page`],
//! which every process that opens the device maps.

use core::net::IpAddr;
use core::sync::atomic::{AtomicU64, Ordering};
use rustix::fs::{Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Counters to which the processes that use a device add, and faults that a test requests. All accesses are Relaxed,
/// since no word depends on another.
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
    /// A fault: the time (ms) for which an acknowledgement is held back, so that sends complete late.
    pub late_acks: AtomicU64,
    /// A fault: the time (ms) for which arrived messages are held back.
    pub late_messages: AtomicU64,
    /// A fault: each posted message counts this down, and the queue pair whose message brings it to 0 fails. 0: none
    /// does.
    pub fail_after: AtomicU64,
    /// A fault: the number of completions of sends that will be lost.
    pub lost_completions: AtomicU64,
    /// A fault: the time (ms) for which the connection manager holds back `ESTABLISHED`, so that the first messages
    /// come before it.
    pub late_established: AtomicU64,
    /// A fault: nonzero if no message leaves the device.
    pub silent: AtomicU64,
    /// A fault: each arriving message counts this down, and the queue pair whose message brings it to 0 fails after the
    /// device has acknowledged the message, which the program never gets. 0: none does.
    pub fail_receive_after: AtomicU64,
    /// A fault: nonzero if no queue pair fails for lack of acknowledgements, as on iWARP.
    pub endless_retries: AtomicU64,
    /// From what the random faults below follow.
    pub seed: AtomicU64,
    /// How many random choices there were.
    pub choices: AtomicU64,
    /// A fault: the longest time (ms) for which a completion is held back; how long each is, is random. Completions of
    /// one queue of a queue pair stay in order, as the manual promises.
    pub late_completions: AtomicU64,
    /// A fault: nonzero if completions of different queues of queue pairs change places at random before they are polled.
    pub mixed_completions: AtomicU64,
    /// A fault: one completion event in this many, at random, comes twice. 0: none does.
    pub doubled_events: AtomicU64,
}

impl Page {
    /// Takes one from a number of faults that are still to happen, and returns whether there was one.
    pub fn takes_one(word: &AtomicU64) -> bool {
        word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok()
    }

    /// The next random number; it follows from the seed and from how many there were before.
    pub fn draw(&self) -> u64 {
        let n = self.choices.fetch_add(1, Ordering::Relaxed);
        crate::chance::at(self.seed.load(Ordering::Relaxed).wrapping_add(n.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    /// Whether no queue pair fails for lack of acknowledgements.
    pub fn retries_for_ever(&self) -> bool {
        self.endless_retries.load(Ordering::Relaxed) != 0
    }

    /// Counts down to a fault, and returns whether it has to happen now.
    pub fn comes_due(word: &AtomicU64) -> bool {
        word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)) == Ok(1)
    }
}

/// A device as the folder describes it.
#[derive(Debug)]
pub struct Described {
    /// The device's name.
    pub name: String,
    /// Whether the device behaves as iWARP, which has no immediate data.
    pub iwarp: bool,
    /// The device's addresses.
    pub addresses: Vec<IpAddr>,
}

/// The folder that describes the devices.
pub fn folder() -> PathBuf {
    PathBuf::from("/run/netacc-fabric")
}

/// All devices, ordered by name.
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

/// Maps the page of a device, for the life of the process.
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
    // SAFETY: the kernel chooses free addresses, so the mapping replaces nothing.
    let start = unsafe {
        rustix::mm::mmap(core::ptr::null_mut(), size, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &file, 0)
    }
    .ok()?;
    // SAFETY: the mapping is never unmapped, is aligned to a page, and is larger than the structure, which consists of
    // atomics.
    Some(unsafe { &*start.cast::<Page>() })
}

/// Whether the device's file exists.
pub fn exists(name: &str) -> bool {
    folder().join("devices").join(name).exists()
}

/// A file that notes an object of this process on a device, for the tests' program `rdma`. It is removed when this is
/// dropped.
#[derive(Debug)]
pub struct Note(PathBuf);

impl Note {
    /// Notes an object of type `what`, which is `qp` or `cm_id`. `fields` has further members of the JSON object.
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
