//! The command line.

use clap::error::ErrorKind;
use clap::{ArgAction, CommandFactory, Parser, ValueEnum};

/// A group of metrics that `-s` can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Group {
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

/// The help of `-s`.
const METRICS: &str = "Display specified monitoring metrics, separated by commas:
all: all monitoring information
cfg: configuration information
cnt: counter information [default]
mem: memory information
qp: queue pair information
sock: socket information";

/// Show monitoring information of a NetACC process, or list all of them
#[derive(Debug, Parser)]
#[command(
    name = "netacc_ss",
    version,
    disable_version_flag = true,
    disable_help_flag = true,
    override_usage = "netacc_ss [-p] <PID> [OPTIONS]\n       netacc_ss [--json]",
    after_help = "Without a PID all accelerated processes are listed.\n\n\
                  Examples:\n  netacc_ss\n  netacc_ss 12345\n  netacc_ss -p 12345 -s mem,cnt\n  \
                  netacc_ss -p 12345 -s all --json"
)]
pub(crate) struct Args {
    /// Process to show
    #[arg(value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    bare_pid: Option<u32>,

    /// Process to show
    #[arg(short = 'p', long, value_name = "PID", conflicts_with = "bare_pid")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pid: Option<u32>,

    #[arg(short = 's', long, value_name = "METRICS", value_delimiter = ',')]
    #[arg(hide_possible_values = true, help = METRICS)]
    show: Vec<Group>,

    /// Clear unused sock files (there are none: nothing is left behind)
    #[arg(short = 'c', long)]
    pub(crate) clear: bool,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// Display this help
    #[arg(short = 'h', long, action = ArgAction::HelpShort)]
    help: Option<bool>,

    /// Display the NetACC version
    #[arg(short = 'v', long, action = ArgAction::Version)]
    version: Option<bool>,
}

impl Args {
    /// Reads the command line; on a mistake says so and exits with status 2.
    pub(crate) fn read() -> Self {
        let args = Self::parse();
        if !args.show.is_empty() && args.pid().is_none() && !args.clear {
            Self::command().error(ErrorKind::MissingRequiredArgument, "-s needs the PID of a process").exit();
        }
        args
    }

    /// The process asked for.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.pid.or(self.bare_pid)
    }

    /// The groups asked for, each once, in the order of the manual.
    pub(crate) fn groups(&self) -> Vec<Group> {
        let asked = |group: &Group| self.show.contains(group) || self.show.contains(&Group::All);
        let mut groups = Group::value_variants().to_vec();
        groups.retain(|group| *group != Group::All && asked(group));
        if groups.is_empty() {
            groups.push(Group::Cnt);
        }
        groups
    }
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
    fn groups_come_once_and_in_order() {
        assert_eq!(groups(&["netacc_ss", "1"]), [Group::Cnt]);
        assert_eq!(groups(&["netacc_ss", "-p", "1", "-s", "mem,cnt,mem"]), [Group::Cnt, Group::Mem]);
        assert_eq!(groups(&["netacc_ss", "-s", "all", "-p", "1"]).len(), 5);
    }

    #[test]
    fn a_pid_is_given_once_and_positive() {
        assert!(Args::try_parse_from(["netacc_ss", "-p", "1", "2"]).is_err());
        assert!(Args::try_parse_from(["netacc_ss", "0"]).is_err());
        assert!(Args::try_parse_from(["netacc_ss", "redis"]).is_err());
    }
}
