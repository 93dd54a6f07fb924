//! The command line of `netacc_bench`.

use std::net::IpAddr;
use std::path::PathBuf;

use crate::bench_wire::{MAX_MESSAGE, Side, Waiting};
use clap::{ArgAction, Parser, Subcommand, ValueEnum, ValueHint};
use serde::{Deserialize, Serialize};

/// Default port of a server; the next two ports are for data.
pub const PORT: u16 = 5220;

/// The most clients of a measurement, and the most idle connections beside them.
const MOST_CONNECTIONS: i64 = 10_000;

/// Measure what acceleration brings on your own hosts
#[derive(Debug, Parser)]
#[command(
    name = "netacc_bench",
    version = crate::commit::version(),
    disable_version_flag = true,
    disable_help_flag = true,
    disable_help_subcommand = true,
    after_help = "On one host:    netacc_bench client\n\
                  In containers:  netacc_bench client --containers\n\
                  On two hosts:   netacc_bench server                 (there)\n                \
                  netacc_bench client HOST            (here)\n\
                  As the manual:  netacc_bench redis [HOST]\n\n\
                  Exit status: 0 measured, 1 it could not be measured (all of it), 2 wrong usage or the output \
                  could not be written. 'netacc_bench COMMAND -h' shows the options of a command."
)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,

    /// Display this help
    #[arg(short = 'h', long, action = ArgAction::HelpShort)]
    help: Option<bool>,

    /// Display the NetACC version
    ///
    /// This option comes before the command.
    #[arg(short = 'v', long, action = ArgAction::Version)]
    version: Option<bool>,
}

/// Arguments of `netacc_bench`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Wait for clients and be measured with
    Server(ServerArgs),
    /// Measure: both ends plain, one of them accelerated, both
    Client(ClientArgs),
    /// Run redis-benchmark as the manual does, on TCP, a UNIX socket and NetACC in turn
    Redis(RedisArgs),
    /// A server's measuring process
    #[command(hide = true)]
    Listener(ListenerArgs),
    /// A client's measuring process
    #[command(hide = true)]
    Worker,
    /// A program that ends with us
    #[command(hide = true)]
    Launch(LaunchArgs),
}

/// The options of `netacc_bench server`.
#[derive(Debug, clap::Args)]
#[command(
    disable_help_flag = true,
    after_help = "It takes whatever connects. Let it run only while you measure, or bind it to an address that only \
                  your hosts reach."
)]
pub struct ServerArgs {
    /// Listen on this port, and on the next two for data; 0: any
    ///
    /// The first of those two is the plain process's, the second the accelerated one's. With 0 the ports are printed.
    /// RDMA needs a port of at most 45535, since it uses the one 20000 above.
    #[arg(short = 'p', long, value_name = "PORT", default_value_t = PORT, value_parser = clap::value_parser!(u16).range(..=65533))]
    pub port: u16,

    /// Listen on this address only
    #[arg(short = 'B', long, value_name = "ADDRESS")]
    pub bind: Option<IpAddr>,

    /// Keep each measuring process of this end on this CPU
    #[arg(long, value_name = "N", value_parser = cpu())]
    pub cpu: Option<u16>,

    /// End after one client
    #[arg(short = '1', long)]
    pub one_off: bool,

    /// End with the process that started us
    #[arg(long, hide = true)]
    pub with_parent: bool,

    /// Display this help
    #[arg(short = 'h', long, action = ArgAction::HelpShort)]
    help: Option<bool>,
}

/// What a server tells its measuring processes.
#[derive(Debug, clap::Args)]
pub struct ListenerArgs {
    /// The address to listen on; without it all.
    #[arg(long)]
    pub bind: Option<IpAddr>,
    /// The port to listen on.
    #[arg(long)]
    pub port: u16,
}

/// What a program is started with that ends with us.
#[derive(Debug, clap::Args)]
pub struct LaunchArgs {
    /// Its command line.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    pub words: Vec<String>,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// One message there and back, then the next one
    RoundTrip,
    /// One connection, as many bytes as go through
    Stream,
    /// A connection, one round trip, an end; then the next one
    Connect,
    /// Several clients, each of which asks and waits for the answer
    Requests,
}

impl Workload {
    /// As it is written on the command line and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Workload::RoundTrip => "round-trip",
            Workload::Stream => "stream",
            Workload::Connect => "connect",
            Workload::Requests => "requests",
        }
    }
}

/// Which ends are accelerated: the latency study's matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ends {
    /// Neither
    Plain,
    /// The client only
    Client,
    /// The server only
    Server,
    /// Both
    Both,
}

impl Ends {
    /// What the client's end is.
    pub fn client(self) -> Side {
        if matches!(self, Ends::Client | Ends::Both) { Side::Netacc } else { Side::Plain }
    }

    /// What the server's end is.
    pub fn server(self) -> Side {
        if matches!(self, Ends::Server | Ends::Both) { Side::Netacc } else { Side::Plain }
    }

    /// As it is written on the command line and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Ends::Plain => "plain",
            Ends::Client => "client",
            Ends::Server => "server",
            Ends::Both => "both",
        }
    }

    /// As it is written in tables and charts.
    pub fn title(self) -> &'static str {
        match self {
            Ends::Plain => "both plain",
            Ends::Client => "client only",
            Ends::Server => "server only",
            Ends::Both => "both ends",
        }
    }
}

/// The options of `netacc_bench client`.
#[derive(Debug, clap::Args)]
#[command(
    disable_help_flag = true,
    after_help = "Times are SECONDS for each of the cells of the matrix, workloads and rounds: by default 100 seconds \
                  in all. SIZE may end in K or M (1024, 1024 x 1024)."
)]
pub struct ClientArgs {
    /// Where the server runs; without it one is started here
    #[arg(value_name = "HOST")]
    pub host: Option<String>,

    /// Start the server in another container than the client
    ///
    /// Two network namespaces with a cable to a bridge each, and a directory for both (`NACC_HOST_DIR`): as two
    /// containers of one host. Connections begin on TCP there, and go over to shared memory when they have lived for a
    /// while. It needs root, ip(8), nsenter(1) and unshare(1).
    #[arg(long, conflicts_with = "host")]
    pub containers: bool,

    /// The server's port
    #[arg(short = 'p', long, value_name = "PORT", default_value_t = PORT, requires = "host", value_parser = clap::value_parser!(u16).range(1..=65533))]
    pub port: u16,

    /// Measure these only, of round-trip,stream,connect,requests
    #[arg(
        hide_possible_values = true,
        hide_default_value = true,
        short = 'w',
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "round-trip,stream,connect,requests"
    )]
    pub workloads: Vec<Workload>,

    /// Accelerate these ends only, of plain,client,server,both
    ///
    /// With `plain` neither is accelerated.
    #[arg(
        hide_possible_values = true,
        hide_default_value = true,
        short = 'e',
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "plain,client,server,both"
    )]
    pub ends: Vec<Ends>,

    /// How long each measurement takes
    ///
    /// SECONDS is from 0.01 to 600. There is a measurement for each workload, kind of ends and round: with all defaults
    /// they take about 100 seconds.
    #[arg(short = 't', long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub time: f64,

    /// Rounds that count; one more comes first and does not
    #[arg(short = 'r', long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,

    /// Bytes of a round trip, in each direction
    ///
    /// Sizes may end in `K` or `M`, and go up to 16M.
    #[arg(short = 's', long, value_name = "SIZE", default_value = "64", value_parser = size)]
    pub size: u32,

    /// Wait for the bytes of a round trip in this call: recv, epoll, poll, select
    ///
    /// Both ends wait in it for each message, as a program does that serves one connection. By default the client waits
    /// in recv(2) and the server in its event loop.
    #[arg(hide_possible_values = true, long, value_name = "CALL", value_parser = waiting)]
    pub wait: Option<Waiting>,

    /// Bytes of a write of the stream
    #[arg(short = 'l', long, value_name = "SIZE", default_value = "128K", value_parser = size)]
    pub block: u32,

    /// Compare each byte of the stream when it arrives
    ///
    /// The bytes that are sent are known to the server. A wrong, lost or doubled byte ends the measurement with its
    /// position.
    #[arg(long)]
    pub verify: bool,

    /// Clients that make requests at the same time; 0: nobody asks
    ///
    /// N is at most 10,000. With 0 nothing is measured: to look at idle connections from outside, by netacc_ss(1) or
    /// top(1).
    #[arg(short = 'c', long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(..=MOST_CONNECTIONS))]
    pub clients: u32,

    /// Idle connections beside those of the clients
    ///
    /// They are in the same event loops, and say nothing after one request. N is at most 10,000. Both ends need a
    /// descriptor for each connection (`ulimit -Hn`).
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=MOST_CONNECTIONS))]
    pub idle: u32,

    /// Bytes of a request
    #[arg(long, value_name = "SIZE", default_value = "64", value_parser = size)]
    pub request: u32,

    /// Bytes of the answer to it
    #[arg(long, value_name = "SIZE", default_value = "512", value_parser = size)]
    pub reply: u32,

    /// Keep the measuring process of this end on this CPU
    #[arg(long, value_name = "N", value_parser = cpu())]
    pub cpu: Option<u16>,

    /// Keep the server that is started here on this CPU
    #[arg(long, value_name = "N", conflicts_with = "host", value_parser = cpu())]
    pub server_cpu: Option<u16>,

    /// Reckon for a request that makes N round trips
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub trips: u64,

    /// Reckon for N such requests a day
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000_000))]
    pub per_day: u64,

    /// Do not measure the kernel's ICMP echo
    #[arg(long)]
    pub no_icmp: bool,

    /// Print JSON instead of tables
    ///
    /// It has the host, the settings, every round, connections by transport, reasons, and the reckoning.
    #[arg(short = 'J', long)]
    pub json: bool,

    /// Draw a chart too
    ///
    /// It follows the light or dark scheme of the viewer.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub svg: Option<PathBuf>,

    /// Display this help
    #[arg(short = 'h', long, action = ArgAction::HelpShort)]
    help: Option<bool>,
}

/// The options of `netacc_bench redis`.
#[derive(Debug, clap::Args)]
#[command(
    disable_help_flag = true,
    after_help = "Without HOST the servers are started here, with --save '' --appendonly no; one of them is measured \
                  over a UNIX socket too. With HOST: 'netacc_run redis-server --protected-mode no' must run there, and \
                  10,000 of its keys are overwritten. The manual's figures are of 5,000,000 requests (-n)."
)]
pub struct RedisArgs {
    /// Where a redis-server runs; without it servers are started here
    #[arg(value_name = "HOST")]
    pub host: Option<String>,

    /// The port of that server
    #[arg(short = 'p', long, value_name = "PORT", default_value_t = 6379, requires = "host", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: u16,

    /// Requests of a round
    ///
    /// `redis-benchmark` with several threads looks only four times a second whether it has finished; a line says so if
    /// that makes a rate inexact.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 2_000_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub requests: u64,

    /// Rounds that count; one more comes first and does not
    #[arg(short = 'r', long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,

    /// Clients
    #[arg(short = 'c', long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub clients: u32,

    /// Threads of redis-benchmark
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=500))]
    pub threads: u32,

    /// Bytes of a value
    #[arg(short = 'd', long, value_name = "SIZE", default_value = "512", value_parser = size)]
    pub size: u32,

    /// The command that is measured, as redis-benchmark's -t has it
    #[arg(hide_possible_values = true, long, value_name = "NAME", default_value = "set", value_parser = ["set", "get", "incr", "lpush", "lpop", "sadd", "hset", "spop", "zadd", "ping_mbulk"])]
    pub test: String,

    /// Print JSON instead of a table
    #[arg(short = 'J', long)]
    pub json: bool,

    /// Display this help
    #[arg(short = 'h', long, action = ArgAction::HelpShort)]
    help: Option<bool>,
}

/// A number that fits into the kernel's set of CPUs.
fn cpu() -> clap::builder::RangedI64ValueParser<u16> {
    clap::value_parser!(u16).range(..1024)
}

fn waiting(text: &str) -> Result<Waiting, String> {
    match text {
        "recv" => Ok(Waiting::Recv),
        "epoll" => Ok(Waiting::Epoll),
        "poll" => Ok(Waiting::Poll),
        "select" => Ok(Waiting::Select),
        _ => Err("expected recv, epoll, poll or select".into()),
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| format!("{text:?} is not a number"))?;
    if (0.01..=600.0).contains(&value) { Ok(value) } else { Err(format!("{text} is not allowed: 0.01 to 600")) }
}

fn size(text: &str) -> Result<u32, String> {
    let (digits, unit) = match text.strip_suffix(['k', 'K']) {
        Some(digits) => (digits, 1 << 10),
        None => text.strip_suffix(['m', 'M']).map_or((text, 1), |digits| (digits, 1 << 20)),
    };
    let value = digits.parse::<u32>().ok().and_then(|number| number.checked_mul(unit));
    match value {
        Some(value) if (1..=MAX_MESSAGE).contains(&value) => Ok(value),
        _ => Err(format!("{text:?} is not allowed: 1 to {}M", MAX_MESSAGE >> 20)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_holds_together() {
        Args::command().debug_assert();
    }

    #[test]
    fn sizes_and_seconds() {
        assert_eq!((size("64"), size("128K"), size("16m")), (Ok(64), Ok(131_072), Ok(MAX_MESSAGE)));
        for wrong in ["", "0", "K", "17M", "-1", "4294967295K", "1G"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
        assert_eq!(seconds("0.5"), Ok(0.5));
        for wrong in ["0", "nan", "inf", "601", "x"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_a_client_measures() {
        let Command::Client(all) = Args::try_parse_from(["x", "client"]).unwrap().command else { panic!() };
        assert_eq!((all.workloads.len(), all.ends.len(), all.block), (4, 4, 131_072));
        let line = ["x", "client", "h", "-w", "stream,connect", "-e", "both", "-p", "1"];
        let Command::Client(some) = Args::try_parse_from(line).unwrap().command else { panic!() };
        assert_eq!((some.workloads, some.ends), (vec![Workload::Stream, Workload::Connect], vec![Ends::Both]));
        for wrong in
            [&["x"][..], &["x", "client", "-p", "1"], &["x", "client", "-w", "ping"], &["x", "server", "-p", "65534"]]
        {
            assert!(Args::try_parse_from(wrong).is_err(), "{wrong:?}");
        }
    }
}
