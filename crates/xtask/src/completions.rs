//! The completions of a tool, generated from the definition of its command line.

use clap::{Command, ValueHint};
use clap_complete::{Shell, generate};

/// A command line as completions should offer it. From the definition itself clap would also offer hidden subcommands,
/// and files for every value.
fn offered(command: &Command) -> Command {
    let shown = command.get_subcommands().filter(|below| !below.is_hide_set()).map(offered);
    // clap needs names with a static lifetime, so they are leaked; the process is short.
    let mut made = Command::new(&*command.get_name().to_owned().leak())
        .args(command.get_arguments().filter(|arg| !arg.is_hide_set()).map(|arg| match arg.get_value_hint() {
            ValueHint::Unknown if arg.get_action().takes_values() => arg.clone().value_hint(ValueHint::Other),
            _ => arg.clone(),
        }))
        .disable_help_flag(command.is_disable_help_flag_set())
        .disable_version_flag(command.is_disable_version_flag_set())
        .disable_help_subcommand(command.is_disable_help_subcommand_set())
        .subcommands(shown);
    if let Some(about) = command.get_about() {
        made = made.about(about.clone());
    }
    if let Some(version) = command.get_version() {
        made = made.version(&*version.to_owned().leak());
    }
    made
}

/// The completions of a tool for a shell.
pub(crate) fn text(tool: &Command, shell: Shell) -> Vec<u8> {
    let mut command = offered(tool);
    let name = command.get_name().to_owned();
    let mut out = Vec::new();
    generate(shell, &mut command, &name, &mut out);
    match shell {
        Shell::Bash if runs_another(&command) => out.extend(bash_command(&command, &name).into_bytes()),
        Shell::Fish if runs_another(&command) => out.extend(fish_command(&command, &name).into_bytes()),
        _ => {}
    }
    out
}

/// Whether the last argument is another command with arguments of its own.
fn runs_another(command: &Command) -> bool {
    command.get_positionals().any(|arg| arg.get_value_hint() == clap::ValueHint::CommandWithArguments)
}

/// The options that take the next word as their value.
fn with_value(command: &Command) -> Vec<String> {
    let valued = command.get_arguments().filter(|arg| !arg.is_positional() && arg.get_action().takes_values());
    let both = valued.map(|arg| {
        let short = arg.get_short().map(|c| format!("-{c}"));
        let long = arg.get_long().map(|name| format!("--{name}"));
        short.into_iter().chain(long)
    });
    both.flatten().collect()
}

/// A completion for bash, since clap's does not support a command as an argument: from the first word that is not an
/// option on, it leaves the completion to that command.
fn bash_command(command: &Command, name: &str) -> String {
    let valued = with_value(command).join("|");
    format!(
        r#"
_{name}_command() {{
    local i=1
    while ((i < COMP_CWORD)); do
        case "${{COMP_WORDS[i]}}" in
            {valued}) ((i += 2)) ;;
            -*) ((i += 1)) ;;
            *) break ;;
        esac
    done
    if ((i > COMP_CWORD)) || [[ "${{COMP_WORDS[COMP_CWORD]}}" == -* && $i -eq $COMP_CWORD ]]; then
        _{name} "$@"
    elif ((i == COMP_CWORD)); then
        mapfile -t COMPREPLY < <(compgen -c -- "${{COMP_WORDS[COMP_CWORD]}}")
    elif declare -F _command_offset >/dev/null; then
        _command_offset "$i"
    fi
}}

complete -F _{name}_command -o bashdefault -o default {name}
"#
    )
}

/// A completion for fish, which can complete a command with arguments itself; it only has to know which options take a
/// value.
fn fish_command(command: &Command, name: &str) -> String {
    format!("complete -c {name} -x -a \"(__fish_complete_subcommand {})\"\n", with_value(command).join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Arg, ValueEnum};

    fn tool() -> Command {
        Command::new("tool")
            .arg(Arg::new("file").short('f').long("file").value_hint(ValueHint::FilePath))
            .arg(Arg::new("quiet").short('q').action(clap::ArgAction::SetTrue))
            .arg(Arg::new("what").value_hint(ValueHint::CommandWithArguments).trailing_var_arg(true).num_args(1..))
    }

    #[test]
    fn every_shell_gets_every_option() {
        for shell in Shell::value_variants() {
            let text = String::from_utf8(text(&tool(), *shell)).unwrap();
            assert!(text.contains("file") && text.contains("-q") || *shell == Shell::Fish, "{shell}: {text}");
        }
    }

    #[test]
    fn hidden_commands_are_not_offered_nor_files_for_numbers() {
        let whole = tool()
            .arg(Arg::new("count").long("count").conflicts_with("quiet"))
            .arg(Arg::new("inner").hide(true).long("inner"))
            .subcommand(Command::new("shown").arg(Arg::new("port").long("port")))
            .subcommand(Command::new("secret").hide(true));
        for shell in Shell::value_variants() {
            let text = String::from_utf8(text(&whole, *shell)).unwrap();
            assert!(text.contains("shown") && text.contains("port"), "{shell}: {text}");
            assert!(!text.contains("secret") && !text.contains("inner"), "{shell}: {text}");
        }
        let bash = String::from_utf8(text(&whole, Shell::Bash)).unwrap();
        let of = |option: &str| bash.split(&format!("{option})\n")).nth(1).and_then(|rest| rest.split(";;").next());
        assert!(of("--count").unwrap().contains("COMPREPLY=(\"${cur}\")"), "{bash}");
        assert!(of("--file").unwrap().contains("compgen -f"), "{bash}");
    }

    #[test]
    fn only_what_has_a_value_is_skipped_with_it() {
        assert_eq!(with_value(&tool()), ["-f", "--file"]);
        assert!(bash_command(&tool(), "tool").contains("            -f|--file) ((i += 2)) ;;"));
        assert!(fish_command(&tool(), "tool").ends_with("__fish_complete_subcommand -f --file)\"\n"));
    }

    #[test]
    fn a_tool_that_runs_no_command_is_left_as_clap_has_it() {
        assert!(runs_another(&tool()));
        assert!(!runs_another(&Command::new("tool").arg(Arg::new("pid"))));
    }
}
