//! Checks the options and the configuration before anything is started.

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use netacc_conf::{Config, DEFAULT_PATH, ENV_CMDLINE, ENV_CONFIG_FILE, Source};
use netacc_tools::conf_file::{Unreadable, read};
use netacc_tools::environment;

use crate::args::Args;

/// What the command is started with.
pub struct Settings {
    /// The configuration file to name to the library; `None` leaves that as it is.
    pub file: Option<PathBuf>,
    /// The options for the library, as `KEY=VALUE;KEY=VALUE`; empty if there are none.
    pub cmdline: OsString,
    /// What to tell the user before the command runs.
    pub warnings: Vec<String>,
}

/// Checks everything the user said; the error is the message to show.
pub fn check(args: &Args) -> Result<Settings, String> {
    let options = options(args)?;
    // An outer netacc_run may have left its options; ours come later, and so they count.
    let mut cmdline = environment::var_os(ENV_CMDLINE).unwrap_or_default();
    for (key, value) in &options {
        if !cmdline.is_empty() {
            cmdline.push(";");
        }
        cmdline.push(format!("{key}={value}"));
    }

    let mut warnings = Vec::new();
    let mut config = Config::default();
    let mut diags = Vec::new();
    let file = match &args.file {
        Some(name) => {
            // A file that is named here and cannot be read is a mistake of this command line, as a wrong option is.
            let text = read(Path::new(name)).map_err(|error| format!("-f: {}: {error}", quoted(name)))?;
            config.apply_file(&name.to_string_lossy(), &text, &mut diags);
            // The command may change its directory before a program it starts reads the file.
            Some(std::path::absolute(name).unwrap_or_else(|_| PathBuf::from(name)))
        }
        None => {
            let named = environment::var_os(ENV_CONFIG_FILE).filter(|name| !name.is_empty());
            let usual = named.is_none();
            let name = named.unwrap_or_else(|| DEFAULT_PATH.into());
            match read(Path::new(&name)) {
                Ok(text) => config.apply_file(&name.to_string_lossy(), &text, &mut diags),
                Err(Unreadable::Os(error)) if error.kind() == ErrorKind::NotFound && usual => {}
                // The program is worth more than its acceleration's settings: it runs, with the defaults.
                Err(error) => warnings.push(format!("{}: {error}; using defaults", quoted(&name))),
            }
            None
        }
    };
    for (key, value) in environment::vars_os() {
        if let Some(key) = key.to_str() {
            config.apply_env(key, value.as_bytes(), &mut diags);
        }
    }
    config.apply_cmdline(cmdline.as_bytes(), &mut diags);
    config.finish(&mut diags);
    warnings.extend(diags.iter().map(ToString::to_string));
    warnings.extend(log_trouble(&config));
    Ok(Settings { file, cmdline, warnings })
}

/// What keeps the log from a file that somebody has named. Nothing is opened: whose log it will be is the program's
/// affair, and the library cannot tell anybody.
fn log_trouble(config: &Config) -> Option<String> {
    if config.source("NACC_LOG_PATH") == Some(Source::Default) || config.log_path.is_empty() {
        return None;
    }
    let path = Path::new(&config.log_path);
    let folder = path.parent().unwrap_or(path);
    let trouble = match std::fs::metadata(folder) {
        _ if path.is_dir() => "it is a folder".into(),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            format!("there is no folder {}", quoted(folder.as_os_str()))
        }
        Ok(meta) if !meta.is_dir() => format!("{} is no folder", quoted(folder.as_os_str())),
        _ => return None,
    };
    Some(format!("NACC_LOG_PATH: {}: {trouble}; nothing is logged", quoted(path.as_os_str())))
}

/// The options that are keys of the configuration, with their values in canonical form.
fn options(args: &Args) -> Result<Vec<(&'static str, String)>, String> {
    let on = |set: bool, value: &str| set.then(|| OsString::from(value));
    let given = [
        ("-p", "NACC_SOR_CONN_PER_QP", args.conn_per_qp.clone()),
        ("-t", "NACC_SOR_IO_THREADS", args.io_threads.clone()),
        ("-s", "NACC_SOR_MSG_SIZE", args.msg_size.clone()),
        ("-F", "NACC_FAST_CONNECT", args.fast_connect.clone()),
        ("-d", "NACC_DEBUG", on(args.debug, "1")),
        ("-d", "NACC_LOG_LEVEL", on(args.debug, "DEBUG")),
        ("-T", "NACC_CONN_TCP_FIRST", on(args.tcp_first, "1")),
        ("-P", "NACC_POLL_CQ_MS", args.poll_cq_ms.clone()),
        ("-A", "NACC_SOR_AFFINITY", args.affinity.clone()),
        ("-i", "NACC_COMP_VECTOR", args.comp_vector.clone()),
    ];
    let mut checked = Vec::new();
    for (option, key, value) in given {
        if let Some(value) = value {
            let value =
                netacc_conf::check_value(key, value.as_bytes()).map_err(|problem| format!("{option}: {problem}"))?;
            checked.push((key, value));
        }
    }
    Ok(checked)
}

/// A file name in a message: quoted only where it would be unclear.
fn quoted(name: &OsStr) -> String {
    let text = name.to_string_lossy();
    let plain = !text.is_empty() && !text.chars().any(|c| c.is_control() || c.is_whitespace());
    if plain { text.into_owned() } else { format!("{text:?}") }
}
