//! Whether a server on another host is reached by RDMA. Nobody but the server can tell, so it is asked the way a
//! connection would: a queue pair is connected to it, and ended again.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use netacc_conf::Config;
use netacc_sys::Errno;
use netacc_transport::rdma::{Device, QpConn, Sizes, port_of};
use netacc_verbs::{CmEvent, CmEventType, CmId, Error, EventChannel};
use netacc_wire::companion::CompanionOffer;
use netacc_wire::qp_hello::{QpHello, Stranger};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::BorrowedFd;

use crate::beside;
use crate::facts::Host;
use crate::finding::Level;

/// How long (ms) the network is asked for a neighbour, as the library does it.
const RESOLVE: [u32; 3] = [100, 300, 1_000];
const ROUTE: u32 = 2_000;
/// Number of local ports in a row that may be taken; more than that are no accident.
const PORTS: usize = 8;
/// No step takes longer than this where the kernel keeps its own limits.
const PATIENCE: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };
/// How long a connect that may block waits for the first answer of a destination before it goes by TCP.
const WAITED: Duration = Duration::from_millis(300);

/// What would become of a connection: how good that is, in words, and what to do about it.
#[derive(Debug)]
pub(crate) struct Verdict {
    pub(crate) level: Level,
    pub(crate) text: String,
    pub(crate) advice: Option<String>,
}

fn tcp(text: impl Into<String>, advice: impl Into<String>) -> Verdict {
    Verdict { level: Level::Warn, text: format!("TCP: {}", text.into()), advice: Some(advice.into()) }
}

/// Judges a destination that is not of this host: the transport; and, where that is RDMA, what else the server's host
/// has to let in, each with the name of its check.
pub(crate) fn judge(target: SocketAddr, config: &Config, host: &Host) -> (Verdict, Vec<(&'static str, Verdict)>) {
    let (verdict, port, beside) = match reach(target, config, host) {
        Ok((verdict, port, beside)) => (verdict, port, beside),
        Err(verdict) => return (verdict, Vec::new()),
    };
    let question = beside::question(SocketAddr::new(target.ip(), port));
    (verdict, [("question", question)].into_iter().chain(beside.map(|beside| ("failover", beside))).collect())
}

/// A server that is reached by RDMA, its port for that, and what becomes of the TCP connection beside a queue pair.
fn reach(target: SocketAddr, config: &Config, host: &Host) -> Result<(Verdict, u16, Option<Verdict>), Verdict> {
    if host.rdma.is_empty() {
        return Err(tcp(
            "the address is of another host, and this one has no RDMA device",
            "between hosts both need an RDMA device; shared memory needs both programs on one host (network namespace)",
        ));
    }
    let Some(port) = port_of(target.port()) else {
        return Err(tcp(
            format!("the server's port for RDMA would be {}, which is none", u32::from(target.port()) + 20_000),
            "have the server listen at a port up to 45535",
        ));
    };
    match ask_from_some_port(target, port, config) {
        Ok(reply) => Ok((reached(port, &reply.device, reply.took, config), port, reply.beside)),
        Err(obstacle) => Err(missed(port, obstacle)),
    }
}

/// A server that has answered.
struct Reply {
    /// The device that it is reached by.
    device: String,
    took: Duration,
    /// What became of the TCP connection beside the queue pair; `None`: this host's configuration has none.
    beside: Option<Verdict>,
}

fn reached(port: u16, device: &str, took: Duration, config: &Config) -> Verdict {
    let begins = if config.conn_tcp_first { ", after a beginning on TCP (NACC_CONN_TCP_FIRST)" } else { "" };
    let text = format!("RDMA by {device}{begins}: a program with NetACC answers at port {port}");
    // One that begins on TCP waits for nothing.
    let late = took > WAITED && !config.conn_tcp_first;
    Verdict {
        level: if late { Level::Note } else { Level::Ok },
        text: if late { format!("{text}, after {} ms", took.as_millis()) } else { text },
        advice: late.then(|| {
            format!(
                "connections wait {} ms for the first answer; those that come before it go by TCP, later ones by RDMA",
                WAITED.as_millis()
            )
        }),
    }
}

/// Why a queue pair could not be connected.
enum Obstacle {
    /// The peer has another version of the protocol.
    Version,
    /// A program that is not NetACC accepted.
    Stranger,
    Failed(Error),
}

impl From<Error> for Obstacle {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

fn missed(port: u16, obstacle: Obstacle) -> Verdict {
    let error = match obstacle {
        Obstacle::Version => {
            return tcp(
                format!("the NetACC that answers at port {port} has another version of the protocol"),
                "install the same version of NetACC on both hosts, and restart the programs",
            );
        }
        Obstacle::Stranger => {
            return tcp(
                format!("what answers at the server's port for RDMA, {port}, is no NetACC"),
                "free that port there, or have the server listen at another one",
            );
        }
        Obstacle::Failed(error) => error,
    };
    match error {
        // With iWARP a refusal is an errno.
        error if error.errno() == Errno::CONNREFUSED => tcp(
            format!("nobody listens for RDMA at port {port} there"),
            "start the server with netacc_run on a host with an RDMA device; it listens once it waits for connections, \
             and 'netacc_ss -s sock' there shows its RDMA port",
        ),
        Error::Cm { event: CmEventType::ADDR_ERROR | CmEventType::ROUTE_ERROR, .. } => tcp(
            format!("no RDMA device of this host leads there ({error})"),
            "look at 'rdma link' and 'ip route get ADDRESS': the route's interface needs a device that is ACTIVE",
        ),
        Error::Cm { event: CmEventType::UNREACHABLE | CmEventType::CONNECT_ERROR, .. } => tcp(
            format!("that host does not answer at port {port} for RDMA ({error})"),
            format!(
                "the server's host needs an RDMA device on that address, and firewalls must let in TCP and UDP port {port} (RoCE: UDP port 4791)"
            ),
        ),
        Error::Memlock { .. } => tcp(
            format!("this process may not register the memory: {error}"),
            "raise the limit for the client: 'ulimit -l', or LimitMEMLOCK= of its systemd unit",
        ),
        error => tcp(
            format!("this host cannot make a queue pair: {error}"),
            "netacc_check without arguments looks at the devices",
        ),
    }
}

/// Asks, and once more from another port of this host if it had one that is somebody else's, as the library does.
fn ask_from_some_port(target: SocketAddr, port: u16, config: &Config) -> Result<Reply, Obstacle> {
    for _ in 1..PORTS {
        match ask(target, port, config) {
            Err(Obstacle::Failed(error)) if error.is_port_taken() => {}
            answer => return answer,
        }
    }
    ask(target, port, config)
}

/// Connects a queue pair to the server's `port` for RDMA, tries its companion, and ends both.
fn ask(server: SocketAddr, port: u16, config: &Config) -> Result<Reply, Obstacle> {
    let began = Instant::now();
    let target = SocketAddr::new(server.ip(), port);
    let events = EventChannel::create()?;
    events.set_nonblocking(true)?;
    let id = CmId::create(&events, 0)?;
    let mut tries = RESOLVE.into_iter();
    while let Some(time) = tries.next() {
        id.resolve_addr(None, target, time)?;
        match next(&events)?.check() {
            Ok(()) => break,
            // The kernel misses an answer that comes while it asks.
            Err(Error::Cm { event: CmEventType::ADDR_ERROR, .. }) if tries.len() > 0 => {}
            Err(error) => return Err(error.into()),
        }
    }
    id.resolve_route(ROUTE)?;
    next(&events)?.check()?;
    let sizes = Sizes {
        message: config.msg_size as usize,
        first: config.mr_min_inc_size as usize,
        largest: config.mr_max_inc_size as usize,
    };
    let mut device = Device::open(&id, sizes, config.comp_vector, 0)?;
    let mut pipe = QpConn::new(id, &mut device, 0)?;
    let wants = config.tcp_companion && !config.fast_connect;
    pipe.connect(if wants { CompanionOffer::Wanted } else { CompanionOffer::None })?;
    let answer = next(&events)?;
    let hello = QpHello::decode(answer.private_data.as_slice());
    let result = match (answer.check(), hello) {
        (Ok(()), Ok(hello)) => {
            let took = began.elapsed();
            pipe.start(hello);
            let beside = wants.then(|| beside::companion(&mut pipe, &mut device, hello.companion, server));
            Ok(Reply { device: device.name().to_owned(), took, beside })
        }
        (_, Err(Stranger::Version)) => Err(Obstacle::Version),
        (Ok(()), Err(Stranger::Garbage)) => Err(Obstacle::Stranger),
        (Err(error), _) => Err(error.into()),
    };
    pipe.disconnect();
    pipe.end(&mut device);
    result
}

/// The next event of the connection manager.
fn next(events: &EventChannel) -> Result<CmEvent, Error> {
    let silent = Error::Cm { event: CmEventType::UNREACHABLE, status: -rustix::io::Errno::TIMEDOUT.raw_os_error() };
    let began = Instant::now();
    loop {
        if let Some(event) = events.get_event()? {
            return Ok(event);
        }
        if began.elapsed().as_secs() >= PATIENCE.tv_sec.cast_unsigned() {
            return Err(silent);
        }
        #[allow(unsafe_code)]
        // SAFETY: the channel keeps its descriptor open while it is borrowed.
        let fd = unsafe { BorrowedFd::borrow_raw(events.fd()) };
        // An interrupted wait, or one in vain, is seen above.
        let _ = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&PATIENCE));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Rdma;

    fn judged(port: u16, config: &Config, host: &Host) -> String {
        judge(SocketAddr::from(([192, 0, 2, 1], port)), config, host).0.text
    }

    #[test]
    fn what_is_known_without_asking() {
        let with = Host { rdma: vec![Rdma { name: "mlx5_0".into(), ..Rdma::default() }], ..Host::default() };
        let config = Config::default();
        assert!(judged(80, &config, &Host::default()).contains("has no RDMA device"));
        assert!(judged(50_000, &config, &with).contains("would be 70000"));
        let mut first = Config::default();
        first.conn_tcp_first = true;
        assert!(reached(20_080, "mlx5_0", Duration::from_secs(9), &first).text.contains("NACC_CONN_TCP_FIRST"));
    }

    #[test]
    fn each_obstacle_has_a_remedy() {
        let cm = |event| Obstacle::Failed(Error::Cm { event, status: -110 });
        for (obstacle, wanted) in [
            (cm(CmEventType::REJECTED), "nobody listens for RDMA at port 26379"),
            (
                Obstacle::Failed(Error::Verb { verb: "rdma_connect", errno: Errno::CONNREFUSED }),
                "nobody listens for RDMA",
            ),
            (cm(CmEventType::ADDR_ERROR), "no RDMA device of this host leads there"),
            (cm(CmEventType::UNREACHABLE), "does not answer"),
            (Obstacle::Version, "another version"),
            (Obstacle::Stranger, "is no NetACC"),
            (Obstacle::Failed(Error::Memlock { wanted: 9, limit: 8 }), "RLIMIT_MEMLOCK is 8"),
            (Obstacle::Failed(Error::NoKernelSupport), "ib_uverbs"),
        ] {
            let found = missed(26_379, obstacle);
            assert!(found.text.starts_with("TCP: ") && found.text.contains(wanted), "{}", found.text);
            assert!(found.advice.is_some() && found.level == Level::Warn);
        }
        let late = reached(1, "mlx5_0", Duration::from_secs(1), &Config::default());
        assert!(late.level == Level::Note && late.text.contains("1000 ms") && late.advice.is_some());
    }
}
