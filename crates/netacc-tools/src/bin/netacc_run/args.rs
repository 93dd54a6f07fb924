//! The command line, and the help that describes it.

use std::ffi::OsString;

use clap::{ArgAction, CommandFactory, FromArgMatches, Parser, ValueHint};

/// Run COMMAND using NetACC for TCP sockets
#[derive(Parser, Debug)]
#[command(
    name = "netacc_run",
    version,
    args_override_self = true,
    disable_help_flag = true,
    disable_version_flag = true,
    override_usage = "netacc_run [ OPTIONS ] COMMAND"
)]
pub struct Args {
    /// The configuration file.
    #[arg(short = 'f', value_name = "path", value_hint = ValueHint::FilePath)]
    pub file: Option<OsString>,
    /// The number of connections per QP.
    #[arg(short = 'p', value_name = "num", allow_hyphen_values = true)]
    pub conn_per_qp: Option<OsString>,
    /// The number of NetACC threads.
    #[arg(short = 't', value_name = "num", allow_hyphen_values = true)]
    pub io_threads: Option<OsString>,
    /// The size of a message buffer.
    #[arg(short = 's', value_name = "num", allow_hyphen_values = true)]
    pub msg_size: Option<OsString>,
    /// Fast connect mode.
    #[arg(short = 'F', value_name = "num", allow_hyphen_values = true)]
    pub fast_connect: Option<OsString>,
    /// Debug mode.
    #[arg(short = 'd')]
    pub debug: bool,
    /// TCP first in connect.
    #[arg(short = 'T')]
    pub tcp_first: bool,
    /// The polling time.
    #[arg(short = 'P', value_name = "num", allow_hyphen_values = true)]
    pub poll_cq_ms: Option<OsString>,
    /// The CPUs of the NetACC threads.
    #[arg(short = 'A', value_name = "str", allow_hyphen_values = true)]
    pub affinity: Option<OsString>,
    /// The completion vector.
    #[arg(short = 'i', value_name = "num", allow_hyphen_values = true)]
    pub comp_vector: Option<OsString>,
    /// Help.
    #[arg(short = 'h', long = "help", action = ArgAction::Help)]
    help: Option<bool>,
    /// Version.
    #[arg(short = 'v', long = "version", action = ArgAction::Version)]
    version: Option<bool>,
    /// The command and its arguments. What follows the command is never looked at.
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true)]
    #[arg(value_hint = ValueHint::CommandWithArguments)]
    pub command: Vec<OsString>,
}

/// Reads the command line. Help, version and mistakes end the process here.
pub fn parse() -> Args {
    netacc_tools::completions::serve(Args::command);
    let mut command = Args::command().override_help(help());
    let matches = command.get_matches_mut();
    Args::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
}

/// The help text, in the layout of the manual; the defaults come from the table of keys.
fn help() -> String {
    let default = |key: &str| netacc_conf::key(key).map(netacc_conf::Key::default_text).unwrap_or_default();
    let options = [
        ("-f <path>", format!("set config file, default {}", netacc_conf::DEFAULT_PATH)),
        ("-p <num>", format!("set max connections per QP, default {}", default("NACC_SOR_CONN_PER_QP"))),
        ("-t <num>", format!("set netacc io threads, default {}", default("NACC_SOR_IO_THREADS"))),
        ("-s <num>", format!("set netacc message size, default {}", default("NACC_SOR_MSG_SIZE"))),
        ("-F <num>", format!("fast connect mode, default {}", default("NACC_FAST_CONNECT"))),
        ("-d", "enable debug mode".into()),
        ("-T", "use TCP first in connect".into()),
        ("-P <num>", "polling cq time ms".into()),
        ("-A <str>", "affinity CPU list, 0 | 1-3 | 1,3,4".into()),
        ("-i <num>", format!("set cq comp_vector, default {}", default("NACC_COMP_VECTOR"))),
        ("-h", "display this message".into()),
        ("-v", "display version info".into()),
    ];
    let mut text =
        String::from("Usage: netacc_run [ OPTIONS ] COMMAND\n\nRun COMMAND using NetACC for TCP sockets\n\nOPTIONS:\n");
    for (option, meaning) in options {
        text.push_str(&format!("   {option:<11} {meaning}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use netacc_tools::manual;

    #[test]
    fn the_manual_page_has_every_option() {
        let page = include_str!("../../../../../man/netacc_run.1");
        assert_eq!(manual::options_in(page, "OPTIONS"), manual::options_of(&Args::command()));
    }
}
