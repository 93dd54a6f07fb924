//! Which metrics there are: from what was seen of processes to OpenMetrics.

use std::collections::BTreeMap;

use netacc_stats::{Counter, Kind, Transport};
use netacc_stats_reader::{Listing, QueuePair};

use crate::args::Group;
use crate::openmetrics::Type::{Counter as Sum, Gauge, Info};
use crate::openmetrics::{Label, Metrics};
use crate::show::Seen;
use netacc_tools::time;

use crate::{cnt, list, qp, rdma, reasons, sock};

/// The metrics of the processes found; those that end meanwhile are left out.
pub(crate) fn text(listing: Listing, groups: &[Group]) -> String {
    let mut metrics = Metrics::default();
    let unreadable = listing.unreadable.len() + listing.hidden;
    let seen: Vec<Seen> = listing.processes.into_iter().filter_map(|page| Seen::new(page, groups).ok()).collect();
    metrics.add("netacc_processes", Gauge, "Accelerated processes that were seen.", &[], seen.len());
    let help = "Processes that could not be looked into: of other users, or with a page that cannot be read.";
    metrics.add("netacc_processes_unreadable", Gauge, help, &[], unreadable);
    for seen in &seen {
        One::new(seen, &mut metrics).all(groups);
    }
    metrics.text()
}

/// The metrics of one process, labelled as its own.
struct One<'a> {
    seen: &'a Seen,
    pid: String,
    out: &'a mut Metrics,
}

impl<'a> One<'a> {
    fn new(seen: &'a Seen, out: &'a mut Metrics) -> Self {
        Self { seen, pid: seen.page.pid.to_string(), out }
    }

    fn add(
        &mut self,
        name: &str,
        kind: crate::openmetrics::Type,
        help: &str,
        more: &[Label<'_>],
        value: impl ToString,
    ) {
        let mut labels = vec![("pid", self.pid.as_str()), ("program", self.seen.page.program.as_str())];
        labels.extend_from_slice(more);
        self.out.add(name, kind, help, &labels, value);
    }

    fn all(&mut self, groups: &[Group]) {
        let page = &self.seen.page;
        let version = [("version", page.library_version.as_str())];
        self.add("netacc_process", Info, "An accelerated process and its version of NetACC.", &version, 1);
        let start = time::seconds(page.start_ns);
        self.add("netacc_process_start_time_seconds", Gauge, "When the process began to count.", &[], start);
        for group in groups {
            match group {
                Group::All => {}
                Group::Cfg => self.cfg(),
                Group::Cnt => self.cnt(),
                Group::Mem => self.mem(),
                Group::Qp => self.qp(),
                Group::Sock => self.sock(),
            }
        }
    }

    fn cfg(&mut self) {
        let seen = self.seen;
        for line in &seen.page.cfg {
            let labels = [("key", line.key.as_str()), ("value", &line.value), ("source", &line.source)];
            self.add("netacc_setting", Info, "A setting in effect, and where it comes from.", &labels, 1);
        }
    }

    fn cnt(&mut self) {
        let page = &self.seen.page;
        let open = list::Summary::of(page);
        for (transport, count) in [("tcp", open.tcp), ("shm", open.shm), ("rdma", open.rdma)] {
            let labels = [("transport", transport)];
            self.add("netacc_connections", Gauge, "Open connections, by what carries them now.", &labels, count);
        }
        self.add("netacc_listeners", Gauge, "Listening sockets.", &[], open.listeners);
        let mut left: BTreeMap<String, usize> = BTreeMap::new();
        for sock in page.socks.iter().filter(|sock| sock::listens(sock)) {
            if let Some(reason) = reasons::of(sock) {
                *left.entry(reason.to_string()).or_default() += 1;
            }
        }
        for (reason, count) in left {
            let help = "Listening sockets that no accelerated connection reaches, by the reason.";
            self.add("netacc_listeners_on_tcp", Gauge, help, &[("reason", &reason)], count);
        }
        for counter in Counter::ALL {
            self.counter(*counter);
        }
        for (transport, volume) in cnt::moved(page) {
            for (what, value) in cnt::figures(volume) {
                let (name, help) = match what {
                    "msgs_in" => ("netacc_received_messages", "Messages received."),
                    "bytes_in" => ("netacc_received_bytes", "Bytes received."),
                    "msgs_out" => ("netacc_sent_messages", "Messages sent."),
                    _ => ("netacc_sent_bytes", "Bytes sent."),
                };
                self.add(name, Sum, help, &[("transport", transport)], value);
            }
        }
        let avoided = cnt::avoided(page);
        let help = "System calls that the program would have made by TCP beyond those made for it, at least.";
        self.add("netacc_syscalls_avoided", Gauge, help, &[], avoided);
        let help = "Listeners and connects about which a rule of the configuration file decided.";
        for (rule, count) in page.rules() {
            self.add("netacc_rule_decisions", Sum, help, &[("rule", &rule.source)], count);
        }
        let causes = [
            ("netacc_fallbacks", "Connections and listeners that stayed on TCP or fell back to it.", &page.fallbacks),
            ("netacc_promotions", "Connections moved to a faster transport, by what had kept them.", &page.promotions),
            ("netacc_demotions", "Connections moved back to a kernel socket.", &page.demotions),
        ];
        for (name, help, counts) in causes {
            for (number, count) in reasons::occurred(counts) {
                self.add(name, Sum, help, &[("reason", &reasons::name(number))], count);
            }
        }
    }

    fn counter(&mut self, counter: Counter) {
        let value = self.seen.page.counter(counter);
        let connects = "Outgoing connections, by what they began on.";
        let accepts = "Accepted connections, by what they began on.";
        let (name, help, transport) = match counter {
            Counter::ConnectsTcp => ("connects", connects, Some("tcp")),
            Counter::ConnectsShm => ("connects", connects, Some("shm")),
            Counter::ConnectsRdma => ("connects", connects, Some("rdma")),
            Counter::AcceptsTcp => ("accepts", accepts, Some("tcp")),
            Counter::AcceptsShm => ("accepts", accepts, Some("shm")),
            Counter::AcceptsRdma => ("accepts", accepts, Some("rdma")),
            // By reason, below.
            Counter::Promotions | Counter::Demotions => return,
            other => (other.name(), other.help(), None),
        };
        let name = format!("netacc_{name}");
        let labels: Vec<Label<'_>> = transport.map(|transport| ("transport", transport)).into_iter().collect();
        match counter.kind() {
            Kind::Total => self.add(&name, Sum, help, &labels, value),
            // A gauge that was read between its ups and downs may be below zero.
            Kind::Gauge => self.add(&name, Gauge, help, &labels, value.cast_signed().max(0)),
        }
    }

    fn mem(&mut self) {
        let seen = self.seen;
        let Some(memory) = &seen.memory else { return };
        for (name, used) in memory.by_name() {
            let area = [("area", name.strip_prefix("netacc-").unwrap_or(name))];
            let sizes = [
                ("netacc_memory_size_bytes", "Address space of NetACC's memory.", used.size),
                ("netacc_memory_resident_bytes", "What of it the process has touched.", used.rss),
                (
                    "netacc_memory_proportional_bytes",
                    "The same, shared out among the processes that have it.",
                    used.pss,
                ),
            ];
            for (name, help, kib) in sizes {
                self.add(name, Gauge, help, &area, kib.saturating_mul(1024));
            }
        }
        if let Some(bytes) = memory.per_connection(&seen.page) {
            let help = "Resident memory of links, per connection.";
            self.add("netacc_connection_memory_bytes", Gauge, help, &[], bytes);
        }
        self.add("netacc_pinned_bytes", Gauge, "Memory pinned for devices.", &[], memory.pinned);
        let limit = memory.memlock.map_or_else(|| "+Inf".into(), |bytes| bytes.to_string());
        self.add("netacc_memlock_limit_bytes", Gauge, "Limit of locked memory.", &[], limit);
    }

    fn qp(&mut self) {
        let seen = self.seen;
        self.add("netacc_links", Gauge, "Links and queue pairs that are open.", &[], qp::open(&seen.page));
        for row in qp::rows(&seen.page) {
            let (id, peer) = (row.id.to_string(), row.peer_pid.to_string());
            let kind = row.kind.to_ascii_lowercase();
            let labels = [("link", id.as_str()), ("kind", &kind), ("peer_pid", &peer)];
            let connections = row.connections();
            self.add("netacc_link_connections", Gauge, "Connections on a link.", &labels, connections);
            if let Some(link) = row.link {
                let help = "Connections that a link ever had.";
                self.add("netacc_link_carried_connections", Sum, help, &labels, link.ever);
                let opened = time::seconds(link.opened_ns);
                self.add("netacc_link_start_time_seconds", Gauge, "When a link was set up.", &labels, opened);
                let idle = if link.in_use == 0 { seen.now.saturating_sub(link.idle_ns) } else { 0 };
                let help = "For how long a link has had no connection.";
                self.add("netacc_link_idle_seconds", Gauge, help, &labels, time::seconds(idle));
            }
            if let Some(qp) = row.qp() {
                self.queue_pair(&qp, &id, row.expires(seen.now));
            }
        }
        for (device, counts) in rdma::devices(&seen.page) {
            for (counter, count) in counts.into_iter().flatten() {
                let help = "What RDMA devices count of repeated messages, for all their queue pairs.";
                self.add("netacc_device_retries", Sum, help, &[("device", &device), ("counter", &counter)], count);
            }
        }
    }

    fn queue_pair(&mut self, qp: &QueuePair, link: &str, expires: Option<u64>) {
        let (device, peer) = (qp.device.to_string(), qp.peer.to_string());
        let number = qp.number.to_string();
        let about = [("link", link), ("device", device.as_str()), ("number", &number), ("peer", &peer)];
        self.add("netacc_queue_pair", Info, "A queue pair: its device, its number there, the other host.", &about, 1);
        let labels = [("link", link), ("device", device.as_str())];
        let credits = "Receives of the other side that are free.";
        self.add("netacc_queue_pair_credits", Gauge, credits, &labels, qp.credits);
        let sums = [
            ("netacc_queue_pair_posted_sends", "Sends posted to a queue pair.", qp.posted),
            ("netacc_queue_pair_completed_sends", "Sends of a queue pair that have completed.", qp.completed),
            ("netacc_queue_pair_received_messages", "Messages that came by a queue pair.", qp.received),
        ];
        for (name, help, value) in sums {
            self.add(name, Sum, help, &labels, value);
        }
        if let Some(left) = expires {
            let help = "When an idle queue pair ends, from now.";
            self.add("netacc_queue_pair_expires_seconds", Gauge, help, &labels, time::seconds(left));
        }
    }

    fn sock(&mut self) {
        let seen = self.seen;
        for sock in seen.page.socks.iter().filter(|sock| !sock::listens(sock)) {
            let transport = match sock.transport.get() {
                None | Some(Transport::None) => "none".into(),
                Some(known) => known.name().to_ascii_lowercase(),
            };
            let reason = reasons::of(sock).map_or_else(|| "none".into(), |reason| reason.to_string());
            let (fd, local, peer) = (sock.fd.to_string(), sock.local.to_string(), sock.peer.to_string());
            let labels = [("fd", fd.as_str()), ("local", &local), ("peer", &peer)];
            let about = [labels.as_slice(), &[("transport", &transport), ("reason", &reason)]].concat();
            self.add("netacc_socket", Info, "An open connection.", &about, 1);
            for (what, value) in cnt::figures(sock.volume()) {
                let (name, help) = match what {
                    "msgs_in" => ("netacc_socket_received_messages", "Messages received by a socket."),
                    "bytes_in" => ("netacc_socket_received_bytes", "Bytes received by a socket."),
                    "msgs_out" => ("netacc_socket_sent_messages", "Messages sent by a socket."),
                    _ => ("netacc_socket_sent_bytes", "Bytes sent by a socket."),
                };
                self.add(name, Sum, help, &labels, value);
            }
        }
    }
}
