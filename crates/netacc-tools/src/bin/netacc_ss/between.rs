//! `--explain` for a connection on TCP that could be between two containers of this host: what of the way by the host
//! directory (`NACC_HOST_DIR`) is missing, as far as can be seen from here.

use std::fs;
use std::os::unix::fs::MetadataExt;

use netacc_stats::{Reason, Transport};
use netacc_stats_reader::{Snapshot, Sock};
use netacc_tools::place::Directory;
use netacc_transport::shm::host_access::Unfit;

use crate::other_end::{OtherEnd, Processes};

const KEY: &str = "NACC_HOST_DIR";

/// Why the connection is not over shared memory between containers, and what is to be done. `None`: that way has nothing
/// to do with this connection, or nothing is known beyond its reason.
pub(crate) fn look(page: &Snapshot, sock: &Sock, reason: Reason, processes: &Processes) -> Option<(String, String)> {
    use Reason::{
        GoOtherHost, Musl, NoNeighbour, NoTimeStamps, OtherHost, PeerPlain, PeerUid, ShortLived, TcpFirst, Translated,
        Unproven,
    };
    let concerned = matches!(
        reason,
        OtherHost
            | PeerPlain
            | TcpFirst
            | Musl
            | GoOtherHost
            | ShortLived
            | NoNeighbour
            | NoTimeStamps
            | PeerUid
            | Translated
            | Unproven
    );
    if !concerned || sock.transport.get() != Some(Transport::Tcp) {
        return None;
    }
    let (cause, remedy) = reason.why_and_remedy();
    let own = View::of(page);
    let Some(end) = processes.elsewhere(page, sock) else {
        // Without a directory nobody is looked for.
        let missing = own.missing().filter(|_| matches!(reason, OtherHost | Musl | GoOtherHost))?;
        let why = format!(
            "{cause}. Nor is a program in another container of this host looked for: {} of this process {missing}.",
            own.name()
        );
        return Some((
            why,
            format!("{}, or, if the other end is in a container of this host, {}", upper(remedy, '.'), MOUNT),
        ));
    };
    let head = format!("The other end is {}", end.described());
    let (why, remedy) = missing_between(&own, &end, processes).unwrap_or_else(|| {
        // Both ends are in order, so it is what the process itself has noted.
        (format!(", which has NetACC and the same directory. {cause}."), upper(remedy, '\0'))
    });
    Some((format!("{head}{why}"), remedy))
}

const MOUNT: &str = "mount one directory of the host at NACC_HOST_DIR (/run/netacc) into both containers.";

/// What keeps two ends on one host from each other; `None`: nothing that can be seen.
fn missing_between(own: &View, end: &OtherEnd, processes: &Processes) -> Option<(String, String)> {
    // What the process says of itself comes before what can be seen of its surroundings.
    if let Some(standing) = end.standing.as_ref().filter(|standing| standing.is_kept() && !standing.is_without()) {
        let remedy = upper(&format!("{}.", standing.remedy()), '\0');
        return Some((format!(", which {}.", standing.text()), remedy));
    }
    let other = processes.page(end.pid).map(View::of).filter(|_| end.accelerated);
    let Some(other) = other else {
        let remedy = "Start that program with netacc_run too, with the same directory mounted (NACC_HOST_DIR).";
        return Some((", which runs without NetACC.".into(), remedy.into()));
    };
    if let Some(missing) = own.missing() {
        return Some((format!(", but {} of this process {missing}.", own.name()), upper(MOUNT, '\0')));
    }
    if let Some(missing) = other.missing() {
        return Some((format!(", but {} of that process {missing}.", other.name()), upper(MOUNT, '\0')));
    }
    match (own.directory, other.directory) {
        (Directory::Usable(device, inode), Directory::Usable(its_device, its_inode))
            if (device, inode) != (its_device, its_inode) =>
        {
            let text = format!(", but the two have different directories at {} and {}.", own.dir, other.dir);
            Some((text, upper(MOUNT, '\0')))
        }
        _ => None,
    }
}

/// What a process sees of the host directory.
struct View {
    dir: String,
    directory: Directory,
}

impl View {
    fn of(page: &Snapshot) -> Self {
        let dir = page.cfg.iter().find(|line| line.key == KEY).map_or("", |line| line.value.as_str()).to_owned();
        let uid = fs::metadata(format!("/proc/{}", page.pid)).map_or(0, |found| found.uid());
        let directory = if dir.is_empty() { Directory::Unseen } else { Directory::of(page.pid, &dir, uid) };
        Self { dir, directory }
    }

    fn name(&self) -> String {
        if self.dir.is_empty() { KEY.to_owned() } else { format!("the directory {}", self.dir) }
    }

    /// Why the directory is not used, after its name.
    fn missing(&self) -> Option<String> {
        match self.directory {
            _ if self.dir.is_empty() => Some("is empty".into()),
            Directory::Unfit(Unfit::Absent) => Some("is not there".into()),
            Directory::Unfit(why) => Some(format!("is not used: {why}")),
            Directory::Usable(..) | Directory::Unseen => None,
        }
    }
}

/// The text with a capital letter, and without `end`.
fn upper(text: &str, end: char) -> String {
    let text = text.trim_end_matches(end);
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}
