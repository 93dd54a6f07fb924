//! `xtask texts FOLDER DOCUMENT...` writes the texts that a build makes: completions and manual pages from the command lines
//! of the tools, and the documents as they are installed. `xtask stamp COMMIT FILE...` writes the commit into the tools.

mod completions;
mod documents;
mod manual;

use std::path::{Path, PathBuf};
use std::{env, fs, io};

use clap::{Arg, Command, CommandFactory, ValueHint};
use clap_complete::Shell;
use netacc_tools::args::{bench, check, ctl, run, ss};
use netacc_tools::commit::{MARK, STAMP_SIZE};

fn main() -> io::Result<()> {
    let words: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["texts", folder, documents @ ..] => write_texts(Path::new(folder), documents),
        ["stamp", commit, files @ ..] => files.iter().try_for_each(|file| stamp(commit, Path::new(file))),
        _ => Err(io::Error::other("usage: xtask texts FOLDER DOCUMENT... | xtask stamp COMMIT FILE...")),
    }
}

fn write_texts(folder: &Path, documents: &[&str]) -> io::Result<()> {
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
    // Asked at run time: a build folder that was copied from another checkout holds a program built there.
    let manifest = env::var_os("CARGO_MANIFEST_DIR").ok_or(io::Error::other("xtask is run by cargo"))?;
    let sources = Path::new(&manifest).join("../..");
    let pages = folder.join("man");
    fs::create_dir_all(&pages)?;
    for entry in fs::read_dir(sources.join("man"))? {
        let source = entry?;
        let page = manual::page(&fs::read_to_string(source.path())?, &tools).map_err(io::Error::other)?;
        fs::write(pages.join(source.file_name()), page)?;
    }
    let documents: Vec<PathBuf> = documents.iter().map(PathBuf::from).collect();
    fs::create_dir_all(folder.join("doc"))?;
    for path in &documents {
        let page = documents::page(&fs::read_to_string(sources.join(path))?, path, &documents);
        fs::write(folder.join("doc").join(path.file_name().unwrap_or_default()), page)?;
    }
    Ok(())
}

/// Writes the name of a commit to the place that a tool has for it, so that a tool need not be built again for every commit.
fn stamp(commit: &str, file: &Path) -> io::Result<()> {
    let mut bytes = fs::read(file)?;
    let wrong = |what| io::Error::other(format!("{}: {what}", file.display()));
    let at = bytes.windows(MARK.len()).position(|window| window == MARK).ok_or(wrong("no place for a commit"))?;
    let place = bytes.get_mut(at + MARK.len()..at + STAMP_SIZE).ok_or(wrong("no room for a commit"))?;
    if commit.len() > place.len() {
        return Err(wrong("the commit's name is too long"));
    }
    place.fill(b' ');
    place.iter_mut().zip(commit.bytes()).for_each(|(to, from)| *to = from);
    fs::write(file, bytes)
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
