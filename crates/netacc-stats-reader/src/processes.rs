//! The processes of the host that have a page, or hold one.

use std::fs;
use std::io;
use std::path::Path;

use crate::{Error, Process, Snapshot, has_library, is_page, open, read_page};

/// The accelerated processes that [`list_processes`] found.
#[derive(Debug, Default)]
pub struct Listing {
    /// Their pages, in the order of the process numbers.
    pub processes: Vec<Snapshot>,
    /// Processes with a page that could not be read, and why.
    pub unreadable: Vec<(u32, Error)>,
    /// How many processes could not be examined because they belong to other users.
    pub hidden: usize,
}

/// Copies the pages of all accelerated processes that the caller may examine.
///
/// # Errors
///
/// Fails if `/proc` itself cannot be read.
pub fn list_processes() -> io::Result<Listing> {
    let mut listing = Listing::default();
    for pid in pids()? {
        match open(pid) {
            Ok(page) => listing.processes.push(page),
            Err(Error::Denied) => listing.hidden += 1,
            Err(
                Error::NoProcess
                | Error::Exited
                | Error::NotAccelerated
                | Error::Unused
                | Error::Inherited(_)
                | Error::Starting,
            ) => {}
            Err(error) => listing.unreadable.push((pid, error)),
        }
    }
    Ok(listing)
}

/// The processes that have NetACC loaded but no page, because they have not opened a TCP socket yet.
///
/// # Errors
///
/// Fails if `/proc` itself cannot be read.
pub fn list_unused() -> io::Result<Vec<u32>> {
    let all = pids()?.into_iter();
    Ok(all
        .filter(|pid| {
            Process::open(*pid).is_ok_and(|process| has_library(&process)) && matches!(open(*pid), Err(Error::Unused))
        })
        .collect())
}

/// A page that outlives its process, because another process holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leftover {
    /// The number in its own PID namespace of the process whose page it was.
    pub owner: u32,
    /// The name of its program.
    pub program: String,
    /// The process that holds the page.
    pub holder: u32,
}

/// Finds the pages of processes that have ended.
///
/// # Errors
///
/// Fails if `/proc` itself cannot be read.
pub fn leftovers() -> io::Result<Vec<Leftover>> {
    let mut found = Vec::new();
    for holder in pids()? {
        let fds = fs::read_dir(format!("/proc/{holder}/fd")).into_iter().flatten().flatten();
        for path in fds.map(|fd| fd.path()).filter(|path| is_page(path)) {
            // The holder's own page, whose number is that of the holder's PID namespace, is the one that `open` finds.
            if let Ok((_, page)) = read_page(&path)
                && !Path::new(&format!("/proc/{}", page.pid)).exists()
                && open(holder).map_or(true, |own| own.start_ns != page.start_ns)
            {
                found.push(Leftover { owner: page.pid, program: page.program, holder });
            }
        }
    }
    Ok(found)
}

/// The numbers of all processes, in rising order.
fn pids() -> io::Result<Vec<u32>> {
    let mut pids: Vec<u32> =
        fs::read_dir("/proc")?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    Ok(pids)
}
