//! The one table of keys, and the [`Config`] made from it.

use alloc::format;
use alloc::string::{String, ToString};
use core::time::Duration;

use crate::diagnostic::Source;
use crate::rules::Rules;
use crate::value::{Field, Kind, LogLevel, Value, cpu_ranges};

/// How a key's value must relate to the value of another key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// The value depends on no other key.
    None,
    /// The value is that of the named key times 1, 2, 4, 8 and so on.
    PowerOfTwoTimes(&'static str),
}

/// All facts about one key.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// The name in the file and in the environment.
    pub name: &'static str,
    /// The type and range.
    pub kind: Kind,
    /// The unit of a number; empty when it counts things.
    pub unit: &'static str,
    /// How the value depends on another key.
    pub relation: Relation,
    /// The option of `netacc_run` that sets the key.
    pub option: Option<char>,
    /// The meaning of the key, in one or more lines.
    pub help: &'static str,
    pub(crate) get: fn(&Config) -> Value,
    pub(crate) set: fn(&mut Config, Value),
}

impl Key {
    /// The value in `config`.
    pub fn value(&self, config: &Config) -> Value {
        (self.get)(config)
    }

    /// The default in canonical form.
    pub fn default_text(&self) -> String {
        self.value(&Config::default()).to_string()
    }

    /// Unit, range, relation and default, in one line.
    pub fn facts(&self) -> String {
        let mut facts = String::new();
        if !self.unit.is_empty() {
            facts.push_str(&format!("Unit: {}. ", self.unit));
        }
        facts.push_str(&format!("Allowed: {}", self.kind));
        if let Relation::PowerOfTwoTimes(base) = self.relation {
            facts.push_str(&format!(", {base} times 1, 2, 4, 8 and so on"));
        }
        let default = self.default_text();
        let default = if default.is_empty() { "\"\"" } else { &default };
        facts.push_str(&format!(". Default: {default}."));
        facts
    }
}

macro_rules! keys {
    ($(
        $field:ident: $type:ty = $default:expr,
        $name:literal, $kind:expr, $unit:literal, $relation:expr, $option:expr,
        $help:literal;
    )*) => {
        /// The number of keys.
        const KEY_COUNT: usize = [$($name),*].len();

        /// All keys, in the order of the manual. A key stands after the key that its relation names.
        pub static KEYS: [Key; KEY_COUNT] = [$(
            Key {
                name: $name,
                kind: $kind,
                unit: $unit,
                relation: $relation,
                option: $option,
                help: $help,
                get: |config| config.$field.value(),
                set: |config, value| config.$field.assign(value),
            }
        ),*];

        /// The values in force, and where each came from.
        ///
        /// The fields are only read; the `apply_` functions set them and keep them valid.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct Config {
            $(#[doc = $help] pub $field: $type,)*
            /// The source of each key's value, in the order of [`KEYS`].
            pub(crate) sources: [Source; KEY_COUNT],
            /// The name of the configuration file, for messages.
            pub(crate) file: String,
            /// The rules of the file, in its order.
            pub rules: Rules,
        }

        impl Default for Config {
            fn default() -> Self {
                Self {
                    $($field: $default,)*
                    sources: [Source::Default; KEY_COUNT],
                    file: String::new(),
                    rules: Rules::default(),
                }
            }
        }
    };
}

/// Former names of keys, with their present names. A former name is accepted wherever the key is.
const ALIASES: [(&str, &str); 1] = [("NACC_TCP_BASE", "NACC_TCP_COMPANION")];

/// The present name of a key: a former name is replaced, any other name is returned as it is.
pub(crate) fn canonical(name: &str) -> &str {
    ALIASES.iter().find(|(old, _)| *old == name).map_or(name, |(_, new)| new)
}

const MIB: i64 = 1 << 20;

keys! {
    msg_size: u32 = 16384,
    "NACC_SOR_MSG_SIZE", Kind::Int { min: 1024, max: 16 * MIB }, "bytes", Relation::None, Some('s'),
    "The size of a buffer. Larger buffers carry large blocks of data faster; smaller ones save memory.";

    mr_min_inc_size: u32 = 16384,
    "NACC_RDMA_MR_MIN_INC_SIZE", Kind::Int { min: 1024, max: 512 * MIB }, "bytes",
    Relation::PowerOfTwoTimes("NACC_SOR_MSG_SIZE"), None,
    "The size of the first memory region. Each further region is at most twice as large as the largest before.
Reduce it to save memory.";

    mr_max_inc_size: u32 = 8 << 20,
    "NACC_RDMA_MR_MAX_INC_SIZE", Kind::Int { min: MIB, max: 512 * MIB }, "bytes",
    Relation::PowerOfTwoTimes("NACC_RDMA_MR_MIN_INC_SIZE"), None,
    "The size beyond which memory regions stop growing. Reduce it to save memory.";

    conn_per_qp: u32 = 1,
    "NACC_SOR_CONN_PER_QP", Kind::Int { min: 1, max: 1024 }, "", Relation::None, Some('p'),
    "The number of connections that share a queue pair (QP). More of them make connecting cheaper
and save memory; with 1 every connection has a QP of its own.";

    io_threads: u32 = 1,
    "NACC_SOR_IO_THREADS", Kind::Int { min: 1, max: 64 }, "", Relation::None, Some('t'),
    "The number of NetACC threads. Increase it if the throughput is high.";

    empty_qp_expire_ms: i32 = 60_000,
    "NACC_EMPTY_QP_EXPIRE_MS", Kind::Int { min: -1, max: i32::MAX as i64 }, "milliseconds", Relation::None, None,
    "How long a QP without connections is kept for the next one. 0 means not at all, -1 for ever.";

    empty_qp_max_all: u32 = 100,
    "NACC_EMPTY_QP_MAX_ALL", Kind::Int { min: 0, max: 65535 }, "", Relation::None, None,
    "The number of empty QPs that are kept at most.";

    empty_qp_max_per: u32 = 10,
    "NACC_EMPTY_QP_MAX_PER", Kind::Int { min: 0, max: 65535 }, "", Relation::None, None,
    "The number of empty QPs that are kept at most for each destination address.";

    connect_rdma_percent: u32 = 100,
    "NACC_CONNECT_RDMA_PERCENT", Kind::Int { min: 0, max: 100 }, "percent", Relation::None, None,
    "The probability that a connection is accelerated. The others stay on TCP.";

    connect_rdma_ms: u32 = 300,
    "NACC_CONNECT_RDMA_MS", Kind::Int { min: 0, max: 60_000 }, "milliseconds", Relation::None, None,
    "How long a connect to another host waits at most to learn whether its destination is reached by RDMA,
where that is not known. Then it goes by TCP. One that must not block waits a sixth of that.";

    enable_rdma_default: bool = true,
    "NACC_ENABLE_RDMA_DEFAULT", Kind::Bool, "", Relation::None, None,
    "Whether connections are accelerated by default. With 0 everything stays on TCP.";

    enable_go: bool = true,
    "NACC_ENABLE_GO", Kind::Bool, "", Relation::None, None,
    "Whether connections of Go programs are accelerated. With 0 they stay on TCP; in the environment of a program,
0 also leaves the program's code as it is.";

    log_level: LogLevel = LogLevel::Warn,
    "NACC_LOG_LEVEL", Kind::Level, "", Relation::None, None,
    "The lowest level that is logged.
0: TRACE
1: DEBUG
2: INFO
3: WARN
4: ERROR
5: FATAL";

    log_path: String = "/tmp/netacc.log".to_string(),
    "NACC_LOG_PATH", Kind::Path, "", Relation::None, None,
    "The log file. With \"\" nothing is logged.";

    affinity: String = String::new(),
    "NACC_SOR_AFFINITY", Kind::CpuList, "", Relation::None, Some('A'),
    "The CPUs on which the NetACC threads run. With \"\" they run on any.";

    conn_tcp_first: bool = false,
    "NACC_CONN_TCP_FIRST", Kind::Bool, "", Relation::None, Some('T'),
    "Whether a connection is made by TCP first and accelerated afterwards.";

    fast_connect: bool = false,
    "NACC_FAST_CONNECT", Kind::Bool, "", Relation::None, Some('F'),
    "Fast connect mode: data may travel with the request to connect, without waiting for the answer.";

    tcp_companion: bool = true,
    "NACC_TCP_COMPANION", Kind::Bool, "", Relation::None, None,
    "Whether a TCP connection is made beside each QP, over which its connections go on if the QP fails.
With 0, or with fast connect mode, they are reset then.";

    host_dir: String = "/run/netacc".to_string(),
    "NACC_HOST_DIR", Kind::Path, "", Relation::None, None,
    "The directory by which programs in different network namespaces of this host (containers, pods) find each
other. It is used if it is there, belongs to root or to the program's user, and is writable by others only
with the sticky bit. Programs of one user find each other there. In a directory of mode 3770, which only its owner
and its group may enter, the programs of all members do. With \"\" no directory is used.";

    window_memory: u32 = 0,
    "NACC_WINDOW_MEMORY", Kind::Int { min: 0, max: 1_048_576 }, "MiB", Relation::None, None,
    "How much memory the windows of a process's connections in shared memory may use. Near it windows grow no more,
and when it is used up new connections stay on TCP. With 0 it is an eighth of the smallest limit that holds for
the process (its control groups, RLIMIT_AS, the host's memory), and 1024 MiB at most; less where little is left
of such a limit, which its processes share.";

    debug: bool = false,
    "NACC_DEBUG", Kind::Bool, "", Relation::None, Some('d'),
    "Debug mode: NetACC logs from level DEBUG on. A source of higher priority can still set another level.";

    poll_cq_ms: u32 = 0,
    "NACC_POLL_CQ_MS", Kind::Int { min: 0, max: 60_000 }, "milliseconds", Relation::None, Some('P'),
    "How long a NetACC thread polls a completion queue (CQ) before it sleeps. With 0 it sleeps at once.";

    comp_vector: u32 = 0,
    "NACC_COMP_VECTOR", Kind::Int { min: 0, max: 1023 }, "", Relation::None, Some('i'),
    "The completion vector of CQs, that is, which interrupt of the RDMA device wakes NetACC.
With several threads it is the first one's; each further one has the next.";
}

impl Config {
    /// How long an empty QP is kept; `None` means for ever.
    pub fn empty_qp_expire(&self) -> Option<Duration> {
        u64::try_from(self.empty_qp_expire_ms).ok().map(Duration::from_millis)
    }

    /// The CPUs of `NACC_SOR_AFFINITY` as written, in that order and possibly repeated; empty if any CPU may be used.
    pub fn affinity_cpus(&self) -> impl Iterator<Item = u32> + '_ {
        cpu_ranges(&self.affinity).flatten().flat_map(|(first, last)| first..=last)
    }

    /// The name of the configuration file that was applied; empty if none was.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Where the value of a key came from; `None` for an unknown key.
    pub fn source(&self, name: &str) -> Option<Source> {
        self.position(name).and_then(|at| self.sources.get(at)).copied()
    }

    /// All keys with their values and where these came from, for display.
    pub fn entries(&self) -> impl Iterator<Item = (&'static str, String, String)> + '_ {
        KEYS.iter()
            .zip(self.sources.iter())
            .map(|(key, source)| (key.name, key.value(self).to_string(), source.describe(&self.file)))
    }

    pub(crate) fn position(&self, name: &str) -> Option<usize> {
        let name = canonical(name);
        KEYS.iter().position(|key| key.name == name)
    }

    pub(crate) fn set_source(&mut self, at: usize, source: Source) {
        if let Some(slot) = self.sources.get_mut(at) {
            *slot = source;
        }
    }
}
