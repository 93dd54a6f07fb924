//! `xtask FOLDER` writes the files that a build makes from the command lines of the tools: completions and manual
//! pages.

mod completions;
mod manual;

use std::path::Path;
use std::{fs, io};

use clap::{Arg, Command, CommandFactory, ValueHint};
use clap_complete::Shell;
use netacc_tools::args::{bench, check, ctl, run, ss};

fn main() -> io::Result<()> {
    let folder = std::env::args_os().nth(1).ok_or(io::Error::other("usage: xtask FOLDER"))?;
    let folder = Path::new(&folder);
    let tools = [
        run::Args::command(),
        ss::Args::command(),
        check::Args::command(),
        ctl::Args::command(),
        bench::Args::command(),
    ];
    for tool in tools.iter().chain([&script()]) {
        write_completions(tool, &folder.join("completions"))?;
    }
    let pages = folder.join("man");
    fs::create_dir_all(&pages)?;
    // Asked at run time: a build folder that was copied from another checkout holds a program built there.
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR").ok_or(io::Error::other("xtask is run by cargo"))?;
    for entry in fs::read_dir(Path::new(&manifest).join("../../man"))? {
        let source = entry?;
        let page = manual::page(&fs::read_to_string(source.path())?, &tools).map_err(io::Error::other)?;
        fs::write(pages.join(source.file_name()), page)?;
    }
    Ok(())
}

/// The script `run_with_netacc`, which takes a command and no options.
fn script() -> Command {
    let words = Arg::new("command").value_hint(ValueHint::CommandWithArguments).trailing_var_arg(true).num_args(1..);
    Command::new("run_with_netacc").disable_help_flag(true).disable_version_flag(true).arg(words)
}

/// Writes the completions of a tool for each shell, under the name by which the shell looks for them.
fn write_completions(tool: &Command, folder: &Path) -> io::Result<()> {
    let name = tool.get_name();
    for (shell, file) in [
        (Shell::Bash, format!("bash/{name}")),
        (Shell::Zsh, format!("zsh/_{name}")),
        (Shell::Fish, format!("fish/{name}.fish")),
    ] {
        let file = folder.join(file);
        file.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::write(file, completions::text(tool, shell))?;
    }
    Ok(())
}
