//! Turns this process into the command.

use std::env;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::process::Command;

use netacc_conf::{ENV_CMDLINE, ENV_CONFIG_FILE};
use netacc_tools::library;
#[cfg(target_arch = "x86_64")]
use netacc_tools::mapping;
use netacc_tools::program;
use netacc_tools::sanitizer;

use crate::settings::Settings;
use crate::{NOT_EXECUTABLE, NOT_FOUND};

/// Why the command did not start.
pub struct Failure {
    /// What to tell the user.
    pub message: String,
    /// The exit status.
    pub status: u8,
}

/// Executes a static program with the library mapped into it, or without where that is not possible.
#[cfg(target_arch = "x86_64")]
fn execute_mapped(command: &mut Command, shown: &str) -> std::io::Error {
    let without = |problem: String| crate::say(&format!("{shown} runs without NetACC: {problem}"));
    match mapping::start(without) {
        Ok(helper) => {
            let error = command.exec();
            helper.end();
            // A policy may forbid that a program is executed which is traced.
            match error.kind() {
                ErrorKind::PermissionDenied => {
                    without(format!("it cannot be traced ({error})"));
                    command.exec()
                }
                _ => error,
            }
        }
        Err(problem) => {
            without(problem);
            command.exec()
        }
    }
}

/// No program is mapped on this machine.
#[cfg(not(target_arch = "x86_64"))]
fn execute_mapped(command: &mut Command, _shown: &str) -> std::io::Error {
    command.exec()
}

/// Executes the command in this process. It only comes back if that fails.
pub fn launch(words: &[OsString], settings: &Settings) -> Failure {
    let Some((name, arguments)) = words.split_first() else {
        return Failure { message: "no command".into(), status: crate::USAGE };
    };
    let shown = program::shown(name);
    let file = match program::find(name) {
        Ok(file) => file,
        Err(problem) => {
            let status = if problem.is_absent() { NOT_FOUND } else { NOT_EXECUTABLE };
            return Failure { message: format!("{shown}: {problem}"), status };
        }
    };

    let verdict = program::judge(&file);
    let mut command = Command::new(&file);
    command.arg0(name).args(arguments);
    let existing = env::var_os("LD_PRELOAD").unwrap_or_default();
    let is_mapped = verdict.is_mapped && verdict.obstacle.is_none();
    let mut preload = Some(library::preload(&library::find(), &existing));
    if let Some(obstacle) = verdict.obstacle {
        let script = match verdict.program == file {
            true => String::new(),
            false => format!(" (a script for {})", verdict.program.display().to_string().escape_debug()),
        };
        crate::say(&format!(
            "{shown}{script} {} without NetACC: {obstacle}",
            if obstacle.is_certain() { "runs" } else { "may run" }
        ));
        if obstacle.forbids_preload() {
            preload = library::without(&existing);
        }
    }
    match preload {
        Some(list) => command.env("LD_PRELOAD", list),
        None => command.env_remove("LD_PRELOAD"),
    };
    // Whatever the command is: it may start a program that needs it.
    if let Some(options) = sanitizer::options(&env::var_os(sanitizer::VARIABLE).unwrap_or_default()) {
        command.env(sanitizer::VARIABLE, options);
    }
    if let Some(path) = &settings.file {
        command.env(ENV_CONFIG_FILE, path);
    }
    if !settings.cmdline.is_empty() {
        command.env(ENV_CMDLINE, &settings.cmdline);
    }

    let error = if is_mapped { execute_mapped(&mut command, &shown) } else { command.exec() };
    let status = if error.kind() == ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE };
    // The file itself was there just now, so what is missing is what it needs to run.
    let message = match error.kind() {
        ErrorKind::NotFound if file.exists() => {
            format!("{shown}: its interpreter or dynamic loader is missing: {error}")
        }
        _ => format!("{shown}: {error}"),
    };
    Failure { message, status }
}
