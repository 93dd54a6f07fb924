//! What carried the connections of this process, by its own stats page.

use std::collections::BTreeMap;

use netacc_stats::{Counter, Reason, State, Transport};
use netacc_stats_reader::{Error, Snapshot, open};
use serde::{Deserialize, Serialize};

/// Connections by transport, and why some were on no faster one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Paths {
    pub(crate) shm: u64,
    pub(crate) rdma: u64,
    pub(crate) tcp: u64,
    /// Reasons by name, as netacc_ss shows them.
    pub(crate) reasons: BTreeMap<String, u64>,
    /// Why the process that should have been accelerated was not.
    pub(crate) obstacle: Option<String>,
}

impl Paths {
    /// Those of a process without the library.
    pub(crate) fn plain(connections: u64) -> Self {
        Paths { tcp: connections, ..Paths::default() }
    }

    pub(crate) fn add(&mut self, other: &Paths) {
        self.shm += other.shm;
        self.rdma += other.rdma;
        self.tcp += other.tcp;
        for (reason, count) in &other.reasons {
            *self.reasons.entry(reason.clone()).or_default() += count;
        }
        if self.obstacle.is_none() {
            self.obstacle.clone_from(&other.obstacle);
        }
    }

    /// The transport in a word.
    pub(crate) fn via(&self) -> &'static str {
        match (self.shm > 0, self.rdma > 0, self.tcp > 0) {
            (true, false, false) => "SHM",
            (false, true, false) => "RDMA",
            (false, false, true) => "TCP",
            (false, false, false) => "?",
            _ => "mixed",
        }
    }

    /// Whether every connection was on something faster than TCP.
    pub(crate) fn accelerated(&self) -> bool {
        self.tcp == 0 && self.shm + self.rdma > 0
    }

    fn because(&mut self, reason: Reason, count: u64) {
        if reason != Reason::None && count > 0 {
            *self.reasons.entry(reason.name().into()).or_default() += count;
        }
    }
}

/// Why this process, started with the library, has no page; `None` if it has.
pub(crate) fn obstacle() -> Option<String> {
    own_page().err()
}

fn own_page() -> Result<Snapshot, String> {
    page_of(std::process::id())
}

fn page_of(pid: u32) -> Result<Snapshot, String> {
    open(pid).map_err(|error| match error {
        Error::NotAccelerated => "the library is not loaded: libnetacc-preload.so was found neither beside \
                                  netacc_bench, nor in the lib folders beside that, nor by the dynamic loader"
            .into(),
        other => format!("the measuring process {other}"),
    })
}

/// The connections to `port` that are open now; of a page that cannot be read, `connections` are taken to be TCP.
pub(crate) fn open_to(port: u16, connections: u64) -> Paths {
    let page = match own_page() {
        Ok(page) => page,
        Err(obstacle) => return Paths { obstacle: Some(obstacle), ..Paths::plain(connections) },
    };
    let mut paths = Paths::default();
    let ours = page.socks.iter().filter(|sock| sock.state.get() == Some(State::Established) && sock.peer.port == port);
    for sock in ours {
        match sock.transport.get() {
            Some(Transport::Shm) => paths.shm += 1,
            Some(Transport::Rdma) => paths.rdma += 1,
            _ => {
                paths.tcp += 1;
                paths.because(sock.reason.get().unwrap_or(Reason::None), 1);
            }
        }
    }
    paths
}

/// All connections that this process has made; where its page cannot be read, `connections` are taken to be TCP.
pub(crate) fn made(connections: u64) -> Paths {
    made_by(std::process::id())
        .unwrap_or_else(|obstacle| Paths { obstacle: Some(obstacle), ..Paths::plain(connections) })
}

/// All connections that a process has made so far; the error says why its page cannot be read.
pub(crate) fn made_by(pid: u32) -> Result<Paths, String> {
    let page = page_of(pid)?;
    let mut paths = Paths {
        shm: page.counter(Counter::ConnectsShm),
        rdma: page.counter(Counter::ConnectsRdma),
        tcp: page.counter(Counter::ConnectsTcp),
        ..Paths::default()
    };
    for reason in Reason::ALL {
        paths.because(*reason, page.fallback(*reason));
    }
    Ok(paths)
}

/// What netacc_ss says of a reason.
pub(crate) fn sentence(reason: &str) -> &'static str {
    Reason::ALL.iter().find(|known| known.name() == reason).map_or("The reason is not known here.", |r| r.sentence())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transports_in_a_word() {
        let mut paths = Paths::default();
        assert_eq!((paths.via(), paths.accelerated()), ("?", false));
        paths.shm = 2;
        assert_eq!((paths.via(), paths.accelerated()), ("SHM", true));
        paths.because(Reason::OtherHost, 3);
        paths.add(&Paths { tcp: 1, reasons: [("other-host".into(), 1)].into(), ..Paths::default() });
        assert_eq!((paths.via(), paths.accelerated()), ("mixed", false));
        assert_eq!(paths.reasons["other-host"], 4);
        assert!(sentence("other-host").contains("another host"));
        assert_eq!(sentence("nonsense"), "The reason is not known here.");
    }

    #[test]
    fn this_process_has_no_page() {
        let paths = made(3);
        assert_eq!((paths.tcp, paths.via()), (3, "TCP"));
        assert!(paths.obstacle.is_some_and(|why| why.contains("libnetacc-preload.so")));
    }
}
