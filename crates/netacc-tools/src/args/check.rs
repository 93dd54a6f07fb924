//! The command line of `netacc_check`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{ArgAction, Parser, ValueEnum, ValueHint};

/// How a finding is to be taken; a later one is worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Level {
    /// As it should be.
    Ok,
    /// Good to know; nothing has to be done.
    Note,
    /// It works, but not as well as it could.
    Warn,
    /// It does not work.
    Fail,
}

impl Level {
    /// All of them, the best first.
    pub const ALL: [Level; 4] = [Level::Ok, Level::Note, Level::Warn, Level::Fail];

    /// As it is written in the output and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Level::Ok => "ok",
            Level::Note => "note",
            Level::Warn => "warn",
            Level::Fail => "fail",
        }
    }

    /// As it is written in the output and on the command line.
    /// The level of that name.
    pub fn named(name: &str) -> Option<Level> {
        Level::ALL.into_iter().find(|level| level.name() == name)
    }
}

/// When lines are coloured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Colour {
    /// On a terminal, unless NO_COLOR is set.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// Say whether this host, a program or a peer is ready for acceleration, and what to do
#[derive(Debug, Parser)]
#[command(
    name = "netacc_check",
    version = crate::commit::version(),
    disable_version_flag = true,
    disable_help_flag = true,
    override_usage = "netacc_check [OPTIONS]\n       netacc_check [OPTIONS] PROGRAM [ARGS]\n       netacc_check [OPTIONS] HOST:PORT\n       netacc_check [OPTIONS] --rules PROGRAM HOST:PORT",
    after_help = "Lines begin with ok, note, warn or fail. Exit status: 0 ready (ok and notes only), 1 something \
                  is to be done (warn or fail; see --fail-on), 2 wrong usage or a file that cannot be read.\n\n\
                  Examples:\n  netacc_check\n  netacc_check -q -i eth0\n  netacc_check redis-server\n  \
                  netacc_check localhost:6379\n  netacc_check --rules redis-cli 10.0.0.7:6379\n  netacc_check --record > host.json; netacc_check --facts host.json"
)]
pub struct Args {
    /// A program (looked up as the shell does), or HOST:PORT; without it this host is checked
    #[arg(value_name = "PROGRAM", trailing_var_arg = true, value_hint = ValueHint::CommandWithArguments)]
    pub words: Vec<OsString>,

    /// Look at this interface only
    #[arg(short = 'i', long, value_name = "NAME", conflicts_with = "words")]
    pub interface: Option<String>,

    /// Look at interfaces without a device (bridges, veth) too
    #[arg(short = 'a', long, conflicts_with = "words")]
    pub all: bool,

    /// Check this configuration file [default: /etc/netacc.conf]
    ///
    /// Without this option it is the file that programs would read: the one that `NACC_CONFIG_FILE` names, else the
    /// default.
    #[arg(short = 'f', long = "config", value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub config: Option<PathBuf>,

    /// Use this table of drivers instead of the built-in one
    ///
    /// See `TABLE OF DRIVERS`.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub drivers: Option<PathBuf>,

    /// Say which rule of the configuration file decides for PROGRAM, when it connects to HOST:PORT and when it listens
    /// there
    ///
    /// With `:PORT` it listens at every address. Nothing is connected, and whether a peer is there is not looked at.
    #[arg(long, conflicts_with_all = ["facts", "record", "interface", "all", "drivers"])]
    pub rules: bool,

    /// Check a recorded host; - is standard input
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with_all = ["words", "config"])]
    pub facts: Option<PathBuf>,

    /// Print what is known of this host, to be checked elsewhere with --facts
    ///
    /// It is JSON, and holds names, versions, limits, the addresses of network cards, ports that are listened on, the
    /// configuration file and `NACC_*` variables.
    #[arg(long, conflicts_with_all = ["words", "facts", "interface", "json"])]
    pub record: bool,

    /// Print JSON
    ///
    /// It is an object with `worst` (a level), `counts` (by level) and `findings`, a list of objects with `level`,
    /// `subject`, `check`, `text`, `why` and `do`, the last two possibly `null`.
    #[arg(long)]
    pub json: bool,

    /// Show only what is to be done (warn and fail)
    #[arg(short = 'q', long)]
    pub quiet: bool,

    /// Show reasons with every line
    #[arg(long, conflicts_with = "quiet")]
    pub verbose: bool,

    /// Exit with status 1 from this level on
    #[arg(long, value_name = "LEVEL", default_value = "warn")]
    pub fail_on: Level,

    /// Colour the lines
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub color: Colour,

    /// Display this help
    #[arg(short = 'h', long, action = ArgAction::HelpShort)]
    help: Option<bool>,

    /// Display the NetACC version
    #[arg(short = 'v', long, action = ArgAction::Version)]
    version: Option<bool>,
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
    fn what_follows_the_program_is_its_own() {
        let args = Args::try_parse_from(["netacc_check", "-q", "redis-server", "--port", "1", "-v"]).unwrap();
        assert_eq!(args.words, ["redis-server", "--port", "1", "-v"]);
        assert!(args.quiet);
    }

    #[test]
    fn what_does_not_go_together() {
        for line in
            [&["x", "--facts", "a", "ls"][..], &["x", "--fail-on", "bad"], &["x", "-Z"], &["x", "--record", "--json"]]
        {
            assert!(Args::try_parse_from(line).is_err(), "{line:?}");
        }
    }
}
