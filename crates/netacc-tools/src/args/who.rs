//! Which processes a command line means.

use std::fs;
use std::os::unix::ffi::OsStrExt;

/// A word that stands for processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Who {
    /// The process with this number.
    Pid(u32),
    /// All processes whose program has this name.
    Name(String),
    /// All processes that have NetACC.
    All,
}

impl Who {
    /// Reads a word.
    ///
    /// # Errors
    ///
    /// What is allowed instead.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text == "all" {
            return Ok(Self::All);
        }
        let allowed = || "allowed: the number of a process, a name, or all".to_owned();
        if text.bytes().all(|byte| byte.is_ascii_digit()) {
            let number = text.parse().ok().filter(|pid| *pid != 0);
            return number.map(Self::Pid).ok_or_else(allowed);
        }
        // A number with a sign is a mistake, and no name.
        if text.starts_with(['+', '-']) { Err(allowed()) } else { Ok(Self::Name(text.into())) }
    }

    /// Whether a process is meant; `known` is the name that its statistics page has, if it has a page.
    #[must_use]
    pub fn means(&self, pid: u32, known: &str) -> bool {
        match self {
            Self::Pid(number) => *number == pid,
            Self::Name(name) => is_called(pid, known, name),
            Self::All => true,
        }
    }
}

/// Whether the program of a process has this name. As in a rule of the configuration file these are the name that ps(1)
/// shows as comm, and that of the program's file; `*` at the end stands for any further letters. A script that has more
/// letters than comm can hold is found by its command line.
fn is_called(pid: u32, known: &str, name: &str) -> bool {
    let fits = |found: &str| match name.strip_suffix('*') {
        Some(beginning) => found.starts_with(beginning),
        None => found == name,
    };
    let comm = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    let comm = String::from_utf8_lossy(&comm);
    let comm = comm.trim_end_matches('\n');
    if fits(known) || fits(comm) {
        return true;
    }
    let exe = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    let exe = String::from_utf8_lossy(exe.as_os_str().as_bytes());
    // The kernel marks the name of a file that was removed or replaced meanwhile.
    if fits(last_part(exe.strip_suffix(" (deleted)").unwrap_or(&exe))) {
        return true;
    }
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let line = String::from_utf8_lossy(&line);
    comm.len() == COMM && line.split('\0').map(last_part).any(|word| word.starts_with(comm) && fits(word))
}

/// The most letters of comm (proc_pid_comm(5)).
const COMM: usize = 15;

fn last_part(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words() {
        assert_eq!(Who::parse("all"), Ok(Who::All));
        assert_eq!(Who::parse("12"), Ok(Who::Pid(12)));
        assert_eq!(Who::parse("12a"), Ok(Who::Name("12a".into())));
        for wrong in ["", "0", "+1", "-1", "4294967296"] {
            assert!(Who::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn this_process_by_its_names() {
        let own = std::process::id();
        let exe = std::env::current_exe().unwrap();
        let exe = exe.file_name().unwrap().to_str().unwrap();
        assert!(exe.len() > COMM, "{exe}");
        let means = |name: &str, known: &str| Who::parse(name).unwrap().means(own, known);
        assert!(means(exe, "") && means(&format!("{}*", &exe[..9]), "") && means("other", "other"));
        assert!(!means("other", "") && !means(&exe[..9], "") && !means(&format!("{exe}x"), ""));
        assert!(means(&own.to_string(), "") && means("all", ""));
    }
}
