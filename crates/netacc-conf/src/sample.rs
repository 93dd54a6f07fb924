//! The sample configuration file, written from the table of keys.

use alloc::format;
use alloc::string::String;

use crate::keys::{Config, KEYS};
use crate::value::Kind;

const HEAD: &str = "\
# The configuration of NetACC. See netacc.conf(5).
#
# Every key below is set to its default. Environment variables of the same names override this file, and
# options of netacc_run override both. A line that cannot be used is reported, in the log and by netacc_run,
# and left out. Programs read this file when they start.
[netacc]
";

const RULES: &str = "
# Rules: which programs, listeners and connects use which transports. The first one that matches decides; where none
# does, NACC_ENABLE_RDMA_DEFAULT does. See RULES in netacc.conf(5). Running programs take them anew by netacc_ctl reload.
#   use=TRANSPORTS [program=NAME] [listen=ENDPOINT | connect=ENDPOINT]
[rules]
# use=tcp program=sshd
# use=shm program=redis-server listen=6379
# use=shm,rdma connect=10.0.0.0/8:6379-6389
";

/// The text of the sample file: every key with its meaning, unit, range and default, and rules that are commented out.
pub fn sample() -> String {
    let mut text = String::from(HEAD);
    let defaults = Config::default();
    for key in &KEYS {
        text.push('\n');
        for line in key.help.lines() {
            text.push_str(&format!("# {line}\n"));
        }
        let option = key.option.map(|option| format!(" Option: -{option}.")).unwrap_or_default();
        text.push_str(&format!("# {}{option}\n", key.facts()));
        let value = key.value(&defaults);
        let quoted = matches!(key.kind, Kind::Path | Kind::CpuList);
        let quote = if quoted { "\"" } else { "" };
        text.push_str(&format!("{}={quote}{value}{quote}\n", key.name));
    }
    text.push_str(RULES);
    text
}
