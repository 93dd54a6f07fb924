//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{ArgAction, Parser, ValueEnum, ValueHint};

use crate::finding::Level;

/// When lines are coloured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Colour {
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
    version,
    disable_version_flag = true,
    disable_help_flag = true,
    override_usage = "netacc_check [OPTIONS]\n       netacc_check [OPTIONS] PROGRAM [ARGS]\n       netacc_check [OPTIONS] HOST:PORT",
    after_help = "Lines begin with ok, note, warn or fail. Exit status: 0 ready (ok and notes only), 1 something\n\
                  is to be done (warn or fail; see --fail-on), 2 wrong usage or a file that cannot be read.\n\n\
                  Examples:\n  netacc_check\n  netacc_check -q -i eth0\n  netacc_check redis-server\n  \
                  netacc_check localhost:6379\n  netacc_check --record > host.json; netacc_check --facts host.json"
)]
pub(crate) struct Args {
    /// A program (looked up as the shell does), or HOST:PORT; without it this host is checked
    #[arg(value_name = "PROGRAM", trailing_var_arg = true, value_hint = ValueHint::CommandWithArguments)]
    pub(crate) words: Vec<OsString>,

    /// Look at this interface only
    #[arg(short = 'i', long, value_name = "NAME", conflicts_with = "words")]
    pub(crate) interface: Option<String>,

    /// Look at interfaces without a device (bridges, veth) too
    #[arg(short = 'a', long, conflicts_with = "words")]
    pub(crate) all: bool,

    /// Check this configuration file [default: /etc/netacc.conf]
    #[arg(short = 'f', long = "config", value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub(crate) config: Option<PathBuf>,

    /// Use this table of drivers instead of the built-in one
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) rules: Option<PathBuf>,

    /// Check a recorded host; - is standard input
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with_all = ["words", "config"])]
    pub(crate) facts: Option<PathBuf>,

    /// Print what is known of this host, to be checked elsewhere with --facts
    #[arg(long, conflicts_with_all = ["words", "facts", "interface", "json"])]
    pub(crate) record: bool,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// Show only what is to be done (warn and fail)
    #[arg(short = 'q', long)]
    pub(crate) quiet: bool,

    /// Show reasons with every line
    #[arg(long, conflicts_with = "quiet")]
    pub(crate) verbose: bool,

    /// Exit with status 1 from this level on
    #[arg(long, value_name = "LEVEL", default_value = "warn")]
    pub(crate) fail_on: Level,

    /// Colour the lines
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub(crate) color: Colour,

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
    use netacc_tools::manual;

    #[test]
    fn the_manual_page_has_every_option() {
        let page = include_str!("../../../../../man/netacc_check.1");
        assert_eq!(manual::options_in(page, "OPTIONS"), manual::options_of(&Args::command()));
    }

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
