//! The command line of `netacc_ss`.

use std::net::{SocketAddr, ToSocketAddrs};
use std::str::FromStr;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{ArgAction, CommandFactory, Parser, ValueEnum, ValueHint};

use super::who::Who;
use crate::filter::{self, Filter};

/// A group of metrics that `-s` can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Group {
    /// Everything.
    All,
    /// The configuration in effect.
    Cfg,
    /// Counters; the default.
    Cnt,
    /// Shared memory.
    Mem,
    /// Queue pairs and links.
    Qp,
    /// Sockets.
    Sock,
}

/// Argument of `--explain`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// The process.
    pub pid: u32,
    /// One descriptor of it; `None` for all.
    pub fd: Option<u32>,
}

impl FromStr for Question {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (pid, fd) = text.split_once(':').map_or((text, None), |(pid, fd)| (pid, Some(fd)));
        let number = |text: &str| text.parse::<u32>().ok().filter(|_| !text.starts_with('+'));
        let pid = number(pid).filter(|pid| *pid > 0);
        let fd = fd.map(|fd| number(fd).ok_or(())).transpose().ok();
        match (pid, fd) {
            (Some(pid), Some(fd)) => Ok(Self { pid, fd }),
            _ => Err("PID or PID:FD, as 6653 or 6653:8".into()),
        }
    }
}

/// The help of `-s`.
const METRICS: &str = "Display specified monitoring metrics, separated by commas:
all: all monitoring information
cfg: configuration information
cnt: counter information [default]
mem: memory information
qp: queue pair information
sock: socket information";

/// What the manual page says of the option.
const METRICS_AT_LENGTH: &str = "\
What to show, one or more of `all`, `cfg`, `cnt`, `mem`, `qp` and `sock`, separated by commas. The default is `cnt`. \
Without a PID that of every accelerated process is shown; `sock` alone is one table of all sockets. See `METRICS`.";

/// Show monitoring information of a NetACC process, or list all of them
#[derive(Debug, Parser)]
#[command(
    name = "netacc_ss",
    version = crate::commit::version(),
    disable_version_flag = true,
    disable_help_flag = true,
    override_usage = "netacc_ss [-p] <PID|NAME> [OPTIONS] [FILTER]\n       netacc_ss [OPTIONS] [FILTER]",
    after_help = "Without a PID or NAME all accelerated processes are shown.\n\n\
                  Examples:\n  netacc_ss\n  netacc_ss -s sock\n  netacc_ss 12345\n  netacc_ss redis-server -s mem,cnt\n  \
                  netacc_ss -s sock state established dport = :6379\n  \
                  netacc_ss -w 2\n  netacc_ss --explain 12345:8\n  netacc_ss --serve :9467"
)]
pub struct Args {
    /// Processes to show: a number, the name of a program (`*` at its end for any further letters), or all; then which
    /// sockets, see `FILTER` in netacc_ss(1)
    #[arg(value_name = "PID|NAME|all", value_hint = ValueHint::Other)]
    words: Vec<String>,

    /// Process to show
    ///
    /// The number, or the name of a program, may also stand alone. A name that begins a filter is written here.
    #[arg(short = 'p', long, value_name = "PID|NAME", value_parser = Who::parse)]
    pid: Option<Who>,

    #[arg(short = 's', long, value_name = "METRICS", value_delimiter = ',')]
    #[arg(hide_possible_values = true, help = METRICS, long_help = METRICS_AT_LENGTH)]
    show: Vec<Group>,

    /// Clear unused sock files: sockets of ended processes in the host directory
    ///
    /// A process that is killed leaves its sockets in the host directory (`NACC_HOST_DIR`), by which programs in other
    /// containers reach it. Everything else is memory without a name and abstract sockets, which end with the last
    /// process that uses them. If another process still holds the page of one that has ended, as `netacc_ss -w` does,
    /// the option says which, and leaves it alone.
    #[arg(short = 'c', long)]
    pub clear: bool,

    /// Watch: show rates per second, anew every SECONDS; on a terminal with keys (? names them)
    ///
    /// SECONDS is from 0.1 to 86400. On a terminal this takes the whole screen until `q`; see `KEYS`. Elsewhere a table
    /// is printed each time, or with --json a line, which has the rates under `per_second`.
    #[arg(short = 'w', long, value_name = "SECONDS", value_parser = interval)]
    #[arg(conflicts_with_all = ["clear", "openmetrics", "serve", "explain"])]
    pub watch: Option<Duration>,

    /// With -w: end after this number of intervals
    #[arg(long, value_name = "TIMES", requires = "watch", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,

    /// Print JSON
    ///
    /// Names and meanings are those of the tables. What is not known is `null`; points in time are UTC.
    #[arg(long)]
    pub json: bool,

    /// Print metrics in the format of OpenMetrics
    ///
    /// It is the text format of OpenMetrics 1.0; see `OPENMETRICS`.
    #[arg(long, conflicts_with_all = ["json", "clear"])]
    pub openmetrics: bool,

    /// Serve these metrics at http://ADDR:PORT/metrics
    ///
    /// ADDR is an address of this host in numbers, a name such as localhost, or nothing for all addresses. At `/healthz` it
    /// answers whether it works, without looking at any process. It serves until it is ended by a signal. Port 0 stands for any free port, which is then printed on standard
    /// error. There is neither a password nor encryption: everybody that can connect sees which programs run, and with
    /// `-s sock` what they are connected to. The service sees what its user may see. A client may take five seconds for
    /// its request, and five for taking the answer. Of more than 64 clients at once the oldest one that has its answer
    /// or keeps silent is disconnected.
    #[arg(long, value_name = "ADDR:PORT", value_parser = place)]
    #[arg(conflicts_with_all = ["json", "clear", "openmetrics"])]
    pub serve: Option<Place>,

    /// Say why connections are on TCP, and what would change it
    ///
    /// It says in words, for one descriptor or for all, which transport a connection uses, why it does not use a faster
    /// one, and what would change that. Without FD it also says what happened to connections that have ended.
    #[arg(long, value_name = "PID[:FD]")]
    #[arg(conflicts_with_all = ["words", "pid", "show", "clear", "openmetrics", "serve"])]
    pub explain: Option<Question>,

    /// Display this help
    #[arg(short = 'h', long, action = ArgAction::HelpShort)]
    help: Option<bool>,

    /// Display the NetACC version
    #[arg(short = 'v', long, action = ArgAction::Version)]
    version: Option<bool>,

    /// The processes among the words, and behind -p.
    #[arg(skip)]
    whom: Vec<Who>,

    /// The rest of the words.
    #[arg(skip)]
    filter: Option<Filter>,
}

impl Args {
    /// Reads the command line; on a mistake says so and exits with status 2.
    pub fn read() -> Self {
        let mut args: Self = crate::help::parse();
        if let Err((kind, text)) = args.understand() {
            crate::help::refuse(&Self::command().error(kind, text));
        }
        args
    }

    /// Tells the processes from the filter among the words.
    fn understand(&mut self) -> Result<(), (ErrorKind, String)> {
        let invalid = |text: String| (ErrorKind::ValueValidation, text);
        let begin = self.words.iter().position(|word| filter::begins(word)).unwrap_or(self.words.len());
        let expression = self.words.split_off(begin);
        let named = self.words.iter().map(|word| Who::parse(word).map_err(|text| invalid(format!("'{word}': {text}"))));
        self.whom = named.chain(self.pid.clone().map(Ok)).collect::<Result<_, _>>()?;
        if self.pid.is_some() && !self.words.is_empty() {
            return Err((ErrorKind::ArgumentConflict, "processes stand behind -p, or alone".into()));
        }
        if self.watch.is_some() && !self.show.is_empty() && self.whom.is_empty() {
            return Err((ErrorKind::MissingRequiredArgument, "-s with -w needs the PID of a process".into()));
        }
        if expression.is_empty() {
            return Ok(());
        }
        self.filter = Some(filter::parse(&expression).map_err(|mistake| invalid(mistake.to_string()))?);
        if self.clear || self.serve.is_some() || self.openmetrics {
            return Err((ErrorKind::ArgumentConflict, "a filter is for -s sock and -w".into()));
        }
        if self.watch.is_none() && self.show.is_empty() {
            self.show.push(Group::Sock);
        }
        if !self.show.is_empty() && !self.groups().contains(&Group::Sock) {
            return Err((ErrorKind::ArgumentConflict, "a filter is for -s sock and -w".into()));
        }
        Ok(())
    }

    /// Whether groups are requested by name.
    pub fn names_groups(&self) -> bool {
        !self.show.is_empty()
    }

    /// The requested processes; none stands for all.
    pub fn whom(&self) -> &[Who] {
        &self.whom
    }

    /// Which sockets are requested.
    pub fn filter(&self) -> Option<&Filter> {
        self.filter.as_ref()
    }

    /// The groups asked for as metrics. What there is for each single socket has to be asked for: a scraper would
    /// keep a time series of every connection.
    pub fn metrics(&self) -> Vec<Group> {
        if self.show.is_empty() { vec![Group::Cnt, Group::Mem, Group::Qp] } else { self.groups() }
    }

    /// The requested groups, each once, in the order of the manual; `cnt` if none.
    pub fn groups(&self) -> Vec<Group> {
        let asked = |group: &Group| self.show.contains(group) || self.show.contains(&Group::All);
        let mut groups = Group::value_variants().to_vec();
        groups.retain(|group| *group != Group::All && asked(group));
        if groups.is_empty() {
            groups.push(Group::Cnt);
        }
        groups
    }
}

/// Where to listen: one address, or some that a name stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// As it was written.
    pub text: String,
    /// At least one; the first that can be listened at is used.
    pub addresses: Vec<SocketAddr>,
}

/// Reads `ADDR:PORT`, `NAME:PORT` or `:PORT`.
fn place(text: &str) -> Result<Place, String> {
    let allowed =
        "allowed: an address of this host with a port, as 127.0.0.1:9467, [::1]:9467, localhost:9467 or :9467";
    let all = |port: u16| {
        // The first takes IPv4 as well; the second is for a host without IPv6.
        vec![SocketAddr::new([0_u16; 8].into(), port), SocketAddr::new([0_u8; 4].into(), port)]
    };
    let digits = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit()).then(|| port.parse().ok()).flatten();
    let (host, port) = text.rsplit_once(':').and_then(|(host, port)| Some((host, digits(port)?))).ok_or(allowed)?;
    let addresses = match host {
        "" | "*" => all(port),
        _ => text.to_socket_addrs().map_err(|error| format!("{error}; {allowed}"))?.collect(),
    };
    if addresses.is_empty() { Err(allowed.into()) } else { Ok(Place { text: text.to_owned(), addresses }) }
}

/// An interval from a tenth of a second to a day.
fn interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.1..=86_400.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "allowed: 0.1 to 86400".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups(line: &[&str]) -> Vec<Group> {
        Args::try_parse_from(line).unwrap().groups()
    }

    #[test]
    fn the_definition_holds_together() {
        Args::command().debug_assert();
    }

    #[test]
    fn questions() {
        let ask = |text: &str| text.parse::<Question>().ok();
        assert_eq!(ask("12"), Some(Question { pid: 12, fd: None }));
        assert_eq!(ask("12:0"), Some(Question { pid: 12, fd: Some(0) }));
        for wrong in ["", "0", "12:", ":3", "a", "12:a", "-1", "+1", "12:+1", "12:3:4", "99999999999"] {
            assert_eq!(ask(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn groups_come_once_and_in_order() {
        assert_eq!(groups(&["netacc_ss", "1"]), [Group::Cnt]);
        assert_eq!(groups(&["netacc_ss", "-p", "1", "-s", "mem,cnt,mem"]), [Group::Cnt, Group::Mem]);
        assert_eq!(groups(&["netacc_ss", "-s", "all", "-p", "1"]).len(), 5);
    }

    #[test]
    fn intervals_have_bounds() {
        let watch = |text| Args::try_parse_from(["netacc_ss", "-w", text]).ok().and_then(|args| args.watch);
        assert_eq!(watch("0.5"), Some(Duration::from_millis(500)));
        for wrong in ["0", "-1", "0.05", "nan", "inf", "1e9", "x", ""] {
            assert_eq!(watch(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn what_does_not_go_together() {
        for wrong in [
            &["--json", "--openmetrics"][..],
            &["--serve", "127.0.0.1:0", "--json"],
            &["--serve", "nowhere"],
            &["--explain", "1", "-p", "1"],
            &["--explain", "1", "-s", "cnt"],
            &["-w", "1", "--openmetrics"],
            &["-w", "1", "-c"],
            &["--count", "3"],
        ] {
            let line = std::iter::once(&"netacc_ss").chain(wrong);
            assert!(Args::try_parse_from(line).is_err(), "{wrong:?}");
        }
    }

    fn understood(line: &[&str]) -> Result<Args, (ErrorKind, String)> {
        let line = std::iter::once(&"netacc_ss").chain(line);
        let mut args = Args::try_parse_from(line).map_err(|error| (error.kind(), error.to_string()))?;
        args.understand().map(|()| args)
    }

    #[test]
    fn a_pid_is_given_once_and_positive() {
        assert!(understood(&["-p", "1", "2"]).is_err());
        for wrong in ["0", "+1", "4294967296", ""] {
            assert!(understood(&[wrong]).is_err(), "{wrong}");
            assert!(understood(&["-p", wrong]).is_err(), "{wrong}");
        }
        assert_eq!(understood(&["-p", "7"]).unwrap().whom(), [Who::Pid(7)]);
        assert_eq!(understood(&["7", "redis", "all"]).unwrap().whom().len(), 3);
    }

    #[test]
    fn words_behind_the_processes_are_a_filter() {
        let args = understood(&["redis", "state", "listening"]).unwrap();
        assert_eq!((args.whom(), args.groups()), ([Who::Name("redis".into())].as_slice(), vec![Group::Sock]));
        assert!(args.filter().is_some() && understood(&["redis"]).unwrap().filter().is_none());
        assert!(understood(&["-w", "1", "sport", ":80"]).unwrap().show.is_empty());
        assert_eq!(understood(&["-p", "state"]).unwrap().whom(), [Who::Name("state".into())]);
        for (line, words) in [
            (&["state", "open"][..], "expected a state"),
            (&["-s", "cnt", "state", "listening"], "for -s sock"),
            (&["--openmetrics", "sport", "80"], "for -s sock"),
        ] {
            let (_, text) = understood(line).map(|_| ()).unwrap_err();
            assert!(text.contains(words), "{line:?}: {text}");
        }
    }

    #[test]
    fn places_to_listen_at() {
        let at = |text| place(text).map(|place| place.addresses);
        assert_eq!(at("127.0.0.1:1"), Ok(vec!["127.0.0.1:1".parse().unwrap()]));
        assert_eq!(at("[::1]:0"), Ok(vec!["[::1]:0".parse().unwrap()]));
        assert_eq!(at(":9467"), Ok(vec!["[::]:9467".parse().unwrap(), "0.0.0.0:9467".parse().unwrap()]));
        assert!(at("localhost:9467").unwrap().iter().all(|addr| addr.ip().is_loopback()));
        for wrong in ["", ":", "9467", "127.0.0.1", ":65536", ":+1", "no-such-name.invalid:80"] {
            assert!(at(wrong).is_err(), "{wrong}");
        }
    }
}
