//! The configuration files of processes, checked before the processes are asked to load their rules anew.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::Path;

use netacc_conf::{Config, ENV_CONFIG_FILE, KEYS, Key, Relation};
use netacc_stats_reader::{CfgLine, Snapshot};
use netacc_tools::conf_file::{Unreadable, read_of};

use crate::find::{Complaint, Target};

/// What is said of a process that is not asked.
pub(crate) const NOT_ASKED: &str = "keeps the rules that it has: the file of a process of its user has a mistake";

/// What there is to say of the files.
#[derive(Debug, Default)]
pub(crate) struct Checked {
    /// What is wrong with the files, each mistake once.
    pub(crate) mistakes: BTreeSet<String>,
    /// The users of processes whose file has a mistake.
    spoiled: BTreeSet<Option<u32>>,
    /// What a user may want to know besides.
    pub(crate) notes: Vec<Complaint>,
}

impl Checked {
    /// Whether the process must not be asked: the file of a process of its user has a mistake. The processes of other
    /// users are asked, since any user can have a process with a bad file.
    pub(crate) fn forbids(&self, target: &Target) -> bool {
        !self.spoiled.is_empty() && self.spoiled.contains(&target.user())
    }
}

/// Checks the file of each process that can load its rules anew.
pub(crate) fn check(targets: &[Target]) -> Checked {
    let mut checked = Checked::default();
    for target in targets {
        // A process without a page reads the file when it opens its first socket.
        let page = target.page().and_then(|page| page.read().ok());
        if let Some(page) = page.filter(|page| page.control.can_reload()) {
            check_one(target, &page, &mut checked);
        }
    }
    checked
}

fn check_one(target: &Target, page: &Snapshot, checked: &mut Checked) {
    let Some(file) = page.cfg.iter().find(|line| line.key == ENV_CONFIG_FILE) else { return };
    let text = match read_of(target.pid, Path::new(&file.value)) {
        Ok(text) => text,
        // The usual file need not be there, as long as no rules came from it.
        Err(Unreadable::Os(error))
            if error.kind() == ErrorKind::NotFound && file.source == "default" && page.rules().next().is_none() =>
        {
            return;
        }
        Err(error) => {
            checked.mistakes.insert(format!("{}, the file of {}: {error}", file.value, target.called()));
            checked.spoiled.insert(target.user());
            return;
        }
    };
    match Config::of_file(&file.value, &text) {
        Ok(config) => {
            let keys = changed_in(config, &file.value, &page.cfg);
            if !keys.is_empty() {
                let keys = keys.join(", ");
                let text = format!("keeps its values of {keys} until it is restarted; only rules are loaded");
                checked.notes.push(target.about(text));
            }
        }
        Err(diags) => {
            checked.mistakes.extend(diags.iter().map(ToString::to_string));
            checked.spoiled.insert(target.user());
        }
    }
}

/// The keys that would have other values if the process was restarted with this file.
fn changed_in(mut config: Config, file: &str, cfg: &[CfgLine]) -> Vec<&'static str> {
    config.finish(&mut Vec::new());
    let by_file =
        |source: &str| source == "default" || source.strip_prefix(file).is_some_and(|rest| rest.starts_with(':'));
    let differs = |key: &&Key| {
        let now = cfg.iter().find(|line| line.key == key.name && by_file(&line.source));
        now.is_some_and(|now| now.value != key.value(&config).to_string())
    };
    // A value that depends on another key may have been replaced because of what the environment says.
    KEYS.iter().filter(|key| key.relation == Relation::None).filter(differs).map(|key| key.name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_file_decides_is_compared() {
        let line = |key: &str, value: &str, source: &str| CfgLine {
            key: key.into(),
            value: value.into(),
            source: source.into(),
        };
        let cfg = [
            line("NACC_CONN_TCP_FIRST", "0", "default"),
            line("NACC_SOR_IO_THREADS", "4", "/f:2"),
            line("NACC_POLL_CQ_MS", "7", "environment"),
            line("NACC_COMP_VECTOR", "3", "/f:4"),
        ];
        let config = |text: &str| Config::of_file("/f", format!("[netacc]\n{text}").as_bytes()).unwrap();
        let changed = |text: &str| changed_in(config(text), "/f", &cfg);
        assert_eq!(changed("NACC_SOR_IO_THREADS=4\nNACC_COMP_VECTOR=3"), [""; 0]);
        assert_eq!(
            changed("NACC_CONN_TCP_FIRST=1\nNACC_SOR_IO_THREADS=4\nNACC_POLL_CQ_MS=9\nNACC_COMP_VECTOR=3"),
            ["NACC_CONN_TCP_FIRST"]
        );
        // A line that is gone.
        assert_eq!(changed("NACC_COMP_VECTOR=3"), ["NACC_SOR_IO_THREADS"]);
    }
}
