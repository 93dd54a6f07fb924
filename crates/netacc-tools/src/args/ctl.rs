//! The command line of `netacc_ctl`.

use std::time::Duration;

use clap::{ArgAction, Parser, ValueEnum};

use super::who::Who;

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Action {
    /// Take every connection to kernel TCP, and accelerate nothing more
    Off,
    /// Accelerate new connections and listeners again
    On,
    /// Load the rules of the configuration file anew
    Reload,
    /// Replace the library by the one that is in its file now, while the process runs
    Upgrade,
    /// Show how far each process is
    Status,
}

/// Switch running programs to kernel TCP and back, load their rules anew, and replace the library in them
#[derive(Debug, Parser)]
#[command(
    name = "netacc_ctl",
    version = crate::commit::version(),
    disable_version_flag = true,
    disable_help_flag = true,
    override_usage = "netacc_ctl off|on|reload|upgrade|status [PID|NAME|all]... [OPTIONS]",
    after_help = "Without PID or NAME all processes that NetACC is loaded into are meant.\n\n\
                  Examples:\n  netacc_ctl off redis-server\n  netacc_ctl on 12345\n  netacc_ctl reload all\n  netacc_ctl upgrade nginx\n  \
                  netacc_ctl status"
)]
pub struct Args {
    /// What to do
    pub action: Action,

    /// The processes: a number, the name of a program (`*` at its end for any further letters), or all
    #[arg(value_name = "PID|NAME|all", value_parser = Who::parse)]
    who: Vec<Who>,

    /// Wait this long for the processes to follow
    ///
    /// A process follows at once if it sleeps in a call that NetACC knows, or makes one. After SECONDS, from 0 to 3600,
    /// those that have not followed are named; they follow all the same at their next call.
    #[arg(short = 'w', long, value_name = "SECONDS", default_value = "5", value_parser = seconds)]
    pub wait: Duration,

    /// Print JSON
    ///
    /// Names and meanings are those of the table.
    #[arg(long)]
    pub json: bool,

    /// Display this help
    #[arg(short = 'h', long, action = ArgAction::HelpShort)]
    help: Option<bool>,

    /// Display the NetACC version
    #[arg(short = 'v', long, action = ArgAction::Version)]
    version: Option<bool>,
}

impl Args {
    /// The processes that are meant.
    #[must_use]
    pub fn who(&self) -> Vec<Who> {
        if self.who.is_empty() { vec![Who::All] } else { self.who.clone() }
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.0..=3600.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "allowed: 0 to 3600".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn read(line: &[&str]) -> Option<Args> {
        Args::try_parse_from(std::iter::once(&"netacc_ctl").chain(line)).ok()
    }

    #[test]
    fn the_definition_holds_together() {
        Args::command().debug_assert();
    }

    #[test]
    fn processes_are_named_in_three_ways() {
        let whom = |line: &[&str]| read(line).map(|args| args.who());
        assert_eq!(whom(&["off"]), Some(vec![Who::All]));
        assert_eq!(whom(&["reload", "7"]), Some(vec![Who::Pid(7)]));
        assert_eq!(whom(&["on", "7", "redis", "all"]), Some(vec![Who::Pid(7), Who::Name("redis".into()), Who::All]));
    }

    #[test]
    fn what_is_no_command_is_refused() {
        for wrong in
            [&[][..], &["away"], &["off", "0"], &["off", ""], &["on", "-w", "-1"], &["on", "-w", "3601"], &["1"]]
        {
            assert!(read(wrong).is_none(), "{wrong:?}");
        }
    }
}
