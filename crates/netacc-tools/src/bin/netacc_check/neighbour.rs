//! Whether a connection to another network namespace would go over to shared memory by the host directory
//! (`NACC_HOST_DIR`).

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use netacc_conf::Config;
use netacc_stats::Reason;
use netacc_tools::place::{Container, network_of};
use netacc_transport::shm::host_access::{self, Unfit};
use netacc_transport::shm::host_dir;
use netacc_transport::shm::rendezvous::NoLink;
use netacc_wire::Entrance;

use crate::finding::Level;
use crate::rdma_probe::Verdict;

/// Largest number of sockets in the directory that are connected to.
const ASKED: usize = 64;

/// What the host directory has for a destination.
#[derive(Debug)]
pub(crate) enum Prospect {
    /// It decides about the transport.
    Way(Verdict),
    /// It does not, and why.
    None(Verdict),
    /// It is not to be used.
    Off,
}

/// What is known of the process behind a socket in the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Behind {
    /// It has the destination's address: its number and the container.
    Address(u32, String),
    /// It cannot be seen from here.
    Unseen,
    /// It has other addresses.
    Other,
    /// It belongs to another user.
    Stranger,
}

fn verdict(level: Level, text: String, advice: Option<&str>) -> Verdict {
    Verdict { level, text, advice: advice.map(|advice| advice.trim_end_matches('.').to_owned()) }
}

/// Judges the way to a destination that is not in this network namespace.
pub(crate) fn judge(target: SocketAddr, config: &Config) -> Prospect {
    let dir = config.host_dir.as_str();
    if dir.is_empty() {
        return Prospect::Off;
    }
    match host_access::check(dir) {
        Ok(_) => {}
        Err(why @ Unfit::Absent) => {
            let text = format!("no program in another container is looked for: {dir}: {why} (NACC_HOST_DIR)");
            return Prospect::None(verdict(Level::Note, text, None));
        }
        // That is said of the configuration already.
        Err(why) => {
            let text = format!("no program in another container is looked for: {dir}: {why}");
            return Prospect::None(verdict(Level::Note, text, None));
        }
    }
    let (mut entrances, mut names) = (Vec::new(), u32::MAX);
    if let Err(error) = host_dir::each(dir, &mut names, |found| entrances.push(found.entrance)) {
        return Prospect::None(verdict(Level::Note, format!("{dir} cannot be read: {error}"), None));
    }
    let behind = |entrances: &[Entrance]| -> Vec<Behind> {
        let asked = entrances.iter().take(ASKED);
        asked.filter_map(|entrance| look(host_dir::ask(dir, *entrance), target.ip())).collect()
    };
    let (same, others): (Vec<Entrance>, Vec<Entrance>) =
        entrances.into_iter().partition(|entrance| entrance.port == target.port());
    let (same, others) = (behind(&same), behind(&others));
    conclude(target, dir, &same, others.len(), random_time_stamps())
}

/// What an answer says; `None`: nobody is there.
fn look(answer: Result<(u32, u32), NoLink>, ip: IpAddr) -> Option<Behind> {
    match answer {
        Ok((0, _)) => Some(Behind::Unseen),
        Ok((pid, _)) => match (network_of(pid), addresses(pid)) {
            // It is beside us, where the destination is not.
            (Some(network), _) if network_of(std::process::id()) == Some(network) => None,
            (Some(_), Some(own)) if own.contains(&ip) => {
                let container = Container::of(pid).map_or_else(|| "another".into(), |container| container.to_string());
                Some(Behind::Address(pid, container))
            }
            (Some(_), Some(_)) => Some(Behind::Other),
            _ => Some(Behind::Unseen),
        },
        Err(NoLink::Stranger) => Some(Behind::Stranger),
        Err(_) => None,
    }
}

fn conclude(target: SocketAddr, dir: &str, same: &[Behind], others: usize, random: bool) -> Prospect {
    const LIVES: &str = "once it has lived for some 20 requests";
    let port = target.port();
    let there = same.iter().find_map(|behind| match behind {
        Behind::Address(pid, container) => Some((pid, container)),
        _ => None,
    });
    let is = |wanted: &Behind| same.contains(wanted);
    let known = there.is_some() || is(&Behind::Unseen) || is(&Behind::Other) || others > 0;
    if known && !random {
        let text = "TCP: connections between containers are recognised by random TCP time stamps, which are off here";
        return Prospect::Way(verdict(Level::Warn, text.into(), Some(Reason::NoTimeStamps.why_and_remedy().1)));
    }
    if let Some((pid, container)) = there {
        let text = format!(
            "TCP at first, shared memory {LIVES}: process {pid} in container {container} has that address, and listens \
             at port {port} with NetACC and {dir}"
        );
        return Prospect::Way(verdict(Level::Ok, text, None));
    }
    if is(&Behind::Unseen) {
        let text = format!(
            "TCP at first, probably shared memory {LIVES}: a program in another container listens at port {port} with \
             NetACC and {dir}, but its addresses cannot be seen from here"
        );
        return Prospect::Way(verdict(Level::Note, text, None));
    }
    if is(&Behind::Stranger) {
        let text = format!("TCP: the program at port {port} in {dir} belongs to another user");
        return Prospect::Way(verdict(Level::Warn, text, Some(Reason::PeerUid.why_and_remedy().1)));
    }
    if is(&Behind::Other) || others > 0 {
        let text = format!(
            "no program in {dir} has that address and port; if the network leads there to one of the {} that it has (a \
             published port, a service), the connection goes over to shared memory {LIVES}",
            others + same.len()
        );
        return Prospect::None(verdict(Level::Note, text, None));
    }
    let text = format!(
        "no program in another container is there: {dir} has none at all; start the server with netacc_run and that directory mounted"
    );
    Prospect::None(verdict(Level::Note, text, None))
}

/// Whether the kernel moves TCP's time stamps by a random number.
fn random_time_stamps() -> bool {
    fs::read_to_string("/proc/sys/net/ipv4/tcp_timestamps").is_ok_and(|text| text.trim() == "1")
}

/// The addresses of the network namespace in which a process is; `None` if they cannot be seen.
fn addresses(pid: u32) -> Option<BTreeSet<IpAddr>> {
    let mut found = BTreeSet::new();
    let trie = fs::read_to_string(format!("/proc/{pid}/net/fib_trie")).ok()?;
    let mut last = None;
    for line in trie.lines() {
        let line = line.trim_start();
        if let Some(ip) = line.strip_prefix("|-- ") {
            last = ip.parse::<Ipv4Addr>().ok();
        } else if line == "/32 host LOCAL" {
            found.extend(last.map(IpAddr::V4));
        }
    }
    let six = fs::read_to_string(format!("/proc/{pid}/net/if_inet6")).unwrap_or_default();
    let words = six.lines().filter_map(|line| line.split_ascii_whitespace().next());
    found.extend(words.filter_map(|hex| u128::from_str_radix(hex, 16).ok()).map(|bits| IpAddr::V6(bits.into())));
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_concluded() {
        let there = Behind::Address(7, "docker-5eed".into());
        let judged = |same: &[Behind], others, random| match conclude(
            "10.0.0.1:80".parse().unwrap(),
            "/run/netacc",
            same,
            others,
            random,
        ) {
            Prospect::Way(found) => (true, found.level, found.text),
            Prospect::None(found) => (false, found.level, found.text),
            Prospect::Off => unreachable!(),
        };
        for (same, others, random, way, level, words) in [
            (vec![Behind::Unseen, there.clone()], 3, true, true, Level::Ok, "process 7 in container docker-5eed"),
            (vec![there], 0, false, true, Level::Warn, "time stamps"),
            (vec![Behind::Stranger, Behind::Unseen], 0, true, true, Level::Note, "probably"),
            (vec![Behind::Stranger], 1, true, true, Level::Warn, "another user"),
            (vec![Behind::Other], 1, true, false, Level::Note, "one of the 2"),
            (vec![], 0, false, false, Level::Note, "none at all"),
        ] {
            let found = judged(&same, others, random);
            assert_eq!((found.0, found.1), (way, level), "{same:?} {others}: {}", found.2);
            assert!(found.2.contains(words), "{same:?} {others}: {}", found.2);
        }
    }

    #[test]
    fn our_own_addresses() {
        let own = addresses(std::process::id()).unwrap();
        assert!(own.contains(&IpAddr::from([127, 0, 0, 1])), "{own:?}");
        assert_eq!(addresses(u32::MAX), None);
    }
}
