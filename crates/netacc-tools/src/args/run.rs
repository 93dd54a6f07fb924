//! The command line of `netacc_run`, and the help that describes it.

use std::ffi::OsString;

use clap::{ArgAction, Command, CommandFactory, FromArgMatches, Parser, ValueHint};

/// Run COMMAND using NetACC for TCP sockets
#[derive(Parser, Debug)]
#[command(
    name = "netacc_run",
    version = crate::commit::version(),
    args_override_self = true,
    disable_help_flag = true,
    disable_version_flag = true,
    override_usage = "netacc_run [ OPTIONS ] COMMAND"
)]
pub struct Args {
    /// The configuration file.
    #[arg(short = 'f', value_name = "path", value_hint = ValueHint::FilePath)]
    #[arg(help = format!("set config file, default {}", netacc_conf::DEFAULT_PATH))]
    #[arg(long_help = "Read this configuration file. If it cannot be read, `netacc_run` says so and starts nothing.")]
    pub file: Option<OsString>,
    /// The number of connections per QP.
    #[arg(short = 'p', value_name = "num", allow_hyphen_values = true)]
    #[arg(help = default("set max connections per QP", 'p'), long_help = meaning('p'))]
    pub conn_per_qp: Option<OsString>,
    /// The number of NetACC threads.
    #[arg(short = 't', value_name = "num", allow_hyphen_values = true)]
    #[arg(help = default("set netacc io threads", 't'), long_help = meaning('t'))]
    pub io_threads: Option<OsString>,
    /// The size of a message buffer.
    #[arg(short = 's', value_name = "num", allow_hyphen_values = true)]
    #[arg(help = default("set netacc message size", 's'))]
    #[arg(long_help = meaning('s') + " Sizes that depend on it are adjusted, unless they were set as well.")]
    pub msg_size: Option<OsString>,
    /// Fast connect mode.
    #[arg(short = 'F', value_name = "num", allow_hyphen_values = true)]
    #[arg(help = default("fast connect mode", 'F'))]
    #[arg(long_help = meaning('F')
        + " Over RDMA data always does, so the option only leaves out the TCP connection beside each queue pair.")]
    pub fast_connect: Option<OsString>,
    /// Debug mode.
    #[arg(short = 'd', help = "enable debug mode", long_help = meaning('d') + " It sets `NACC_LOG_LEVEL` as well.")]
    pub debug: bool,
    /// TCP first in connect.
    #[arg(short = 'T', help = "use TCP first in connect", long_help = meaning('T'))]
    pub tcp_first: bool,
    /// The polling time.
    #[arg(short = 'P', value_name = "num", allow_hyphen_values = true)]
    #[arg(help = "polling cq time ms", long_help = meaning('P'))]
    pub poll_cq_ms: Option<OsString>,
    /// The CPUs of the NetACC threads.
    #[arg(short = 'A', value_name = "str", allow_hyphen_values = true)]
    #[arg(help = "affinity CPU list, 0 | 1-3 | 1,3,4", long_help = meaning('A'))]
    pub affinity: Option<OsString>,
    /// The completion vector.
    #[arg(short = 'i', value_name = "num", allow_hyphen_values = true)]
    #[arg(help = default("set cq comp_vector", 'i'), long_help = meaning('i'))]
    pub comp_vector: Option<OsString>,
    /// Help.
    #[arg(short = 'h', long = "help", action = ArgAction::Help, help = "display this message")]
    help: Option<bool>,
    /// Version.
    #[arg(short = 'v', long = "version", action = ArgAction::Version, help = "display version info")]
    version: Option<bool>,
    /// The command and its arguments. What follows the command is never looked at.
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true)]
    #[arg(value_hint = ValueHint::CommandWithArguments)]
    pub command: Vec<OsString>,
}

/// Reads the command line. Help, version and mistakes end the process here.
pub fn parse() -> Args {
    let command = Args::command();
    let help = help(&command);
    let matches = crate::help::matches(command.override_help(help));
    Args::from_arg_matches(&matches).unwrap_or_else(|error| crate::help::refuse(&error))
}

/// The help text, in the layout of the manual.
fn help(command: &Command) -> String {
    let mut text =
        String::from("Usage: netacc_run [ OPTIONS ] COMMAND\n\nRun COMMAND using NetACC for TCP sockets\n\nOPTIONS:\n");
    for arg in command.get_opts() {
        let value = arg.get_value_names().filter(|_| arg.get_action().takes_values()).and_then(|names| names.first());
        let value = value.map(|name| format!(" <{name}>")).unwrap_or_default();
        let option = format!("-{}{value}", arg.get_short().unwrap_or_default());
        text.push_str(&format!("   {option:<11} {}\n", arg.get_help().cloned().unwrap_or_default()));
    }
    text
}

/// The key that an option sets.
fn key(option: char) -> Option<&'static netacc_conf::Key> {
    netacc_conf::KEYS.iter().find(|key| key.option == Some(option))
}

/// The help of an option, with its default from the table of keys.
fn default(help: &str, option: char) -> String {
    format!("{help}, default {}", key(option).map(netacc_conf::Key::default_text).unwrap_or_default())
}

/// What the manual page says of an option, from the table of keys.
fn meaning(option: char) -> String {
    key(option).map(|key| format!("{} {} Sets `{}`.", key.help, key.facts(), key.name)).unwrap_or_default()
}
