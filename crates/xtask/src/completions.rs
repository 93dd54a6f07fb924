//! The completions of a tool, generated from the definition of its command line.

use clap::{Arg, Command, ValueHint};
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
        Shell::Bash if names_processes(&command) => out.extend(bash_processes(&command, &name).into_bytes()),
        Shell::Fish if names_processes(&command) => out.extend(fish_processes(&command, &name).into_bytes()),
        Shell::Zsh => out = zsh_processes(&String::from_utf8_lossy(&out)).into_bytes(),
        _ => {}
    }
    out
}

/// Whether an argument stands for processes.
fn is_process(arg: &Arg) -> bool {
    arg.get_value_names().into_iter().flatten().any(|name| name.starts_with("PID"))
}

fn names_processes(command: &Command) -> bool {
    command.get_positionals().any(is_process)
}

/// A command that prints the numbers and names of the processes that have NetACC. The names are those of other users'
/// programs as well: only what no shell takes for anything else is offered.
const PROCESSES: &str =
    r#"netacc_ctl status 2>/dev/null | awk 'NR > 1 { print $1; if ($2 ~ /^[A-Za-z0-9._+-]+$/) print $2 }' | sort -u"#;

/// The words that come first: those of `netacc_ctl`.
fn verbs(command: &Command) -> Vec<String> {
    let first = command.get_positionals().find(|arg| !is_process(arg));
    first
        .map(|arg| arg.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect())
        .unwrap_or_default()
}

/// The words of a filter with the words that may follow each; none for tools without.
fn filter(name: &str) -> Vec<(&'static str, Vec<&'static str>)> {
    if name == "netacc_ss" { netacc_tools::filter::words() } else { Vec::new() }
}

/// A completion for bash of the words that are processes, and of those of a filter.
fn bash_processes(command: &Command, name: &str) -> String {
    let options = |wanted: bool| {
        let those = command.get_arguments().filter(|arg| is_process(arg) == wanted).cloned();
        with_value(&Command::new("some").args(those.filter(|arg| !arg.is_positional()))).join("|")
    };
    let (others, processes) = (options(false), options(true));
    let processes = if processes.is_empty() { String::new() } else { format!("\n        {processes}) ;;") };
    let filter = filter(name);
    let follow: String = filter
        .iter()
        .filter(|(_, values)| !values.is_empty())
        .map(|(word, values)| format!("\n        {word}) words=\"{}\" ;;", values.join(" ")))
        .collect();
    let begin: Vec<&str> = filter.iter().map(|(word, _)| *word).collect();
    let verbs = verbs(command);
    let verb = if verbs.is_empty() {
        String::new()
    } else {
        format!(
            r#"
    if [[ " ${{COMP_WORDS[*]:1:COMP_CWORD-1}} " != *" "@({})" "* ]]; then
        _{name} "$@"
        return
    fi"#,
            verbs.join("|")
        )
    };
    format!(
        r#"
_{name}_processes() {{
    local cur="${{COMP_WORDS[COMP_CWORD]}}" prev="${{COMP_WORDS[COMP_CWORD - 1]}}" words=
    case "$prev" in{processes}
        {others}) _{name} "$@"; return ;;{follow}
    esac
    if [[ "$cur" == -* ]]; then
        _{name} "$@"
        return
    fi{verb}
    [[ "$words" ]] || words="all {} $({PROCESSES})"
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
}}

complete -F _{name}_processes {name}
"#,
        begin.join(" ")
    )
}

/// Fish's completion of processes, and of the verbs before them.
fn fish_processes(command: &Command, name: &str) -> String {
    let processes = format!("({PROCESSES})").replace('\\', "\\\\").replace('"', "\\\"").replace('$', "\\$");
    let verbs = verbs(command).join(" ");
    let mut lines = String::new();
    let mut when = String::new();
    if !verbs.is_empty() {
        lines.push_str(&format!(
            "complete -c {name} -f -n \"not __fish_seen_subcommand_from {verbs}\" -a \"{verbs}\"\n"
        ));
        when = format!(" -n \"__fish_seen_subcommand_from {verbs}\"");
    }
    for (word, values) in filter(name) {
        lines.push_str(&format!("complete -c {name} -f -a {word}\n"));
        if !values.is_empty() {
            let values = values.join(" ");
            lines.push_str(&format!("complete -c {name} -f -n \"__fish_prev_arg_in {word}\" -a \"{values}\"\n"));
        }
    }
    lines.push_str(&format!("complete -c {name} -f{when} -a \"all {processes}\"\n"));
    for arg in command.get_opts().filter(|arg| is_process(arg)) {
        let long = arg.get_long().unwrap_or_default();
        lines.push_str(&format!("complete -c {name} -l {long} -x -a \"{processes}\"\n"));
    }
    lines
}

/// For zsh, clap's text with a completion at the places of processes, and without colons in the names of values.
fn zsh_processes(text: &str) -> String {
    const FUNCTION: &str = "_netacc_processes";
    let mut found = false;
    let mut out = String::new();
    for line in text.lines() {
        let line = line.replace(":ADDR:PORT:'", ":ADDR\\:PORT:'").replace(":PID[:FD]:'", ":PID:'");
        let is_words = ["'*::who -- ", "'*::words -- "].iter().any(|begin| line.starts_with(begin));
        let is_value = [":PID:' \\", ":PID|NAME:' \\"].iter().any(|end| line.ends_with(end));
        let place = line.strip_suffix(":' \\").filter(|_| is_words || is_value);
        match place {
            Some(before) => {
                found = true;
                out.push_str(&format!("{before}:{FUNCTION}' \\"));
            }
            None => out.push_str(&line),
        }
        out.push('\n');
    }
    if !found {
        return out;
    }
    let function = format!(
        "\n(( $+functions[{FUNCTION}] )) ||\n{FUNCTION}() {{\n    local -a found\n    \
         found=(all ${{(f)\"$({PROCESSES})\"}})\n    compadd -a found\n}}\n\nif [ \"$funcstack"
    );
    out.replacen("\nif [ \"$funcstack", &function, 1)
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
    // A branch without a pattern would be a mistake.
    let valued = if valued.is_empty() { String::new() } else { format!("            {valued}) ((i += 2)) ;;\n") };
    format!(
        r#"
_{name}_command() {{
    local i=1
    while ((i < COMP_CWORD)); do
        case "${{COMP_WORDS[i]}}" in
{valued}            -*) ((i += 1)) ;;
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
    use clap::ValueEnum;

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
        let plain = Command::new("plain").arg(Arg::new("what").value_hint(ValueHint::CommandWithArguments));
        assert!(bash_command(&plain, "plain").contains(" in\n            -*) ((i += 1)) ;;"), "no empty pattern");
        assert!(fish_command(&tool(), "tool").ends_with("__fish_complete_subcommand -f --file)\"\n"));
    }

    #[test]
    fn processes_are_offered_where_they_are_meant() {
        let verb = Arg::new("action").value_parser(["off", "on"]);
        let who = Arg::new("who").value_name("PID|NAME|all").num_args(0..).help("whom").value_hint(ValueHint::Other);
        let tool = Command::new("tool").arg(verb).arg(who).arg(Arg::new("pid").long("pid").value_name("PID"));
        let bash = String::from_utf8(text(&tool, Shell::Bash)).unwrap();
        assert!(bash.contains("        --pid) ;;") && bash.contains("@(off|on)"), "{bash}");
        assert!(bash.ends_with("complete -F _tool_processes tool\n"), "{bash}");
        let zsh = String::from_utf8(text(&tool, Shell::Zsh)).unwrap();
        assert_eq!(zsh.matches(":_netacc_processes' \\").count(), 2, "{zsh}");
        let fish = String::from_utf8(text(&tool, Shell::Fish)).unwrap();
        assert!(fish.contains("-n \"not __fish_seen_subcommand_from off on\" -a \"off on\""), "{fish}");
    }

    #[test]
    fn a_tool_that_runs_no_command_is_left_as_clap_has_it() {
        assert!(runs_another(&tool()));
        assert!(!runs_another(&Command::new("tool").arg(Arg::new("pid"))));
    }
}
