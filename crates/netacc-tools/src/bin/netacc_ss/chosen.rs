//! The processes that the command line means.

use std::io;

use netacc_stats_reader::{self as reader, Error, Listing, Snapshot};
use netacc_tools::args::who::Who;

/// What is shown of which processes.
#[derive(Clone, Debug)]
pub(crate) struct Chosen {
    whom: Vec<Who>,
}

impl Chosen {
    /// Those that the words stand for; without a word all of them.
    pub(crate) fn new(whom: &[Who]) -> Self {
        Self { whom: whom.to_vec() }
    }

    /// The process, if it is named by its number alone.
    pub(crate) fn pid(&self) -> Option<u32> {
        match self.whom.as_slice() {
            [Who::Pid(pid)] => Some(*pid),
            _ => None,
        }
    }

    /// Whether a process is meant.
    pub(crate) fn has(&self, page: &Snapshot) -> bool {
        self.whom.is_empty() || self.whom.iter().any(|who| who.means(page.pid, &page.program))
    }

    /// Leaves the processes that are meant.
    pub(crate) fn keep(&self, listing: &mut Listing) {
        listing.processes.retain(|page| self.has(page));
        if !self.is_everybody() {
            listing.unreadable.retain(|(pid, _)| self.whom.iter().any(|who| who.means(*pid, "")));
            listing.hidden = 0;
        }
    }

    fn is_everybody(&self) -> bool {
        self.whom.is_empty() || self.whom.contains(&Who::All)
    }

    /// Checks that there is a process for each word; if they stand for a single process, it is chosen by its number.
    pub(crate) fn resolved(self) -> Result<Self, String> {
        let is_alone = matches!(self.whom.as_slice(), [Who::Pid(_)]);
        if is_alone || self.is_everybody() {
            return Ok(self);
        }
        let no_proc = |error: io::Error| format!("/proc cannot be read: {error}");
        let listing = reader::list_processes().map_err(no_proc)?;
        let mut found: Vec<u32> = Vec::new();
        for who in &self.whom {
            let known = found.len();
            let pages = listing.processes.iter().filter(|page| who.means(page.pid, &page.program)).map(|page| page.pid);
            found.extend(pages);
            found.extend(listing.unreadable.iter().map(|(pid, _)| *pid).filter(|pid| who.means(*pid, "")));
            // Of a process without a page there is nothing to show, but to say.
            if found.len() == known {
                found.extend(reader::list_unused().map_err(no_proc)?.into_iter().filter(|pid| who.means(*pid, "")));
            }
            match who {
                _ if found.len() > known => {}
                Who::Pid(pid) => {
                    let error = reader::open(*pid).err().unwrap_or(Error::NoProcess);
                    return Err(crate::complaint::of(*pid, &error));
                }
                Who::Name(name) => return Err(nobody(name, listing.hidden)),
                Who::All => {}
            }
        }
        found.sort_unstable();
        found.dedup();
        match found.as_slice() {
            [pid] => Ok(Self { whom: vec![Who::Pid(*pid)] }),
            _ => Ok(self),
        }
    }
}

fn nobody(name: &str, hidden: usize) -> String {
    let others = match hidden {
        0 => String::new(),
        n => format!("; {n} processes of other users cannot be looked into, root can"),
    };
    format!("no process with NetACC has the name {}{others}", netacc_tools::text::clean(name))
}
