//! Manual pages: a line `.\" OPTIONS OF COMMAND` of a page's source is replaced by the options that the command
//! defines.

use clap::{Arg, ArgAction, Command};

/// The beginning of a line that is replaced by the options of the command whose name follows.
const PLACE: &str = ".\\\" OPTIONS OF ";

/// Makes a page from its source. An error is a line that names an unknown command.
pub(crate) fn page(source: &str, tools: &[Command]) -> Result<String, String> {
    let mut page = String::new();
    for line in source.lines() {
        match line.strip_prefix(PLACE) {
            None => page.extend([line, "\n"]),
            Some(name) => page.push_str(&options(name, tools).ok_or(format!("{line}: there is no such command"))?),
        }
    }
    Ok(page)
}

/// The options of a tool, or of a subcommand, as roff. The option for help is described for the tool only, though all
/// subcommands have it.
fn options(name: &str, tools: &[Command]) -> Option<String> {
    let (tool, below) = name.split_once(' ').map_or((name, None), |(tool, below)| (tool, Some(below)));
    let tool = tools.iter().find(|command| command.get_name() == tool)?;
    let command = below.map_or(Some(tool), |below| tool.find_subcommand(below))?;
    let told =
        |arg: &&Arg| !arg.is_hide_set() && (below.is_none() || !matches!(arg.get_action(), ArgAction::HelpShort));
    Some(command.get_opts().filter(told).map(option).collect())
}

fn option(arg: &Arg) -> String {
    let values: Vec<&str> = arg.get_value_names().unwrap_or_default().iter().map(|name| name.as_str()).collect();
    let values = if arg.get_action().takes_values() { values } else { Vec::new() };
    let short = arg.get_short().map(|letter| format!("-{letter}"));
    let names: Vec<_> =
        short.into_iter().chain(arg.get_long().map(|name| format!("--{name}"))).map(|name| bold(&name)).collect();
    let operand: String = values.iter().map(|name| format!(" {}", italic(name))).collect();
    let mut said = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
    let possible = arg.get_possible_values();
    if arg.get_action().takes_values() && !arg.is_hide_possible_values_set() && !possible.is_empty() {
        let named: Vec<_> = possible.iter().map(|value| format!("`{}`", value.get_name())).collect();
        said.push_str(&format!("\n\n{} is one of {}.", values.join(" "), named.join(", ")));
    }
    let default: Vec<_> = arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    if arg.get_action().takes_values() && !arg.is_hide_default_value_set() && !default.is_empty() {
        said.push_str(&format!("\n\nThe default is `{}`.", default.join(",")));
    }
    let sentences = said.split("\n\n").map(|paragraph| sentence(paragraph, &values));
    format!(".TP\n{}{operand}\n{}", names.join(", "), sentences.collect::<String>())
}

/// A paragraph of help as roff. Text between backquotes, options and references to other pages are bold; the option's
/// own operands are italic.
fn sentence(text: &str, values: &[&str]) -> String {
    let marked = text.split('`').enumerate().map(|(at, part)| match at % 2 {
        0 => part.split_inclusive([' ', '\n']).map(|word| emphasised(word, values)).collect(),
        _ => bold(part),
    });
    let text: String = marked.collect();
    let end = if text.ends_with('.') { "" } else { "." };
    format!("{}{end}\n", text.replace(". ", ".\n"))
}

fn emphasised(word: &str, values: &[&str]) -> String {
    let core = word.trim_matches(|c: char| c.is_whitespace() || ".,;:()[]".contains(c));
    // In a reference to another page only the name is bold.
    let core = core.split_once('(').map_or(core, |(page, _)| page);
    let (before, after) = word.split_once(core).unwrap_or((word, ""));
    let core = match core {
        _ if values.contains(&core) => italic(core),
        _ if core.len() > 1 && core.starts_with('-') || after.starts_with('(') => bold(core),
        _ => escaped(core),
    };
    format!("{}{core}{}", escaped(before), escaped(after))
}

fn bold(text: &str) -> String {
    format!("\\fB{}\\fR", escaped(text))
}

fn italic(text: &str) -> String {
    format!("\\fI{}\\fR", escaped(text))
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_the_options_of_its_command() {
        let level =
            Arg::new("level").short('l').long("level").value_name("N").default_value("1").help("N is it, see x(1)");
        let more = Arg::new("more").long("more").action(ArgAction::SetTrue).long_help("As `y z` or -l. End");
        let hidden = Arg::new("inner").long("inner").hide(true);
        let tools = [Command::new("a").subcommand(Command::new("b").args([level, more, hidden]))];
        let source = ".SH X\n.\\\" OPTIONS OF a b\n.SH Y\n";
        let wanted = ".SH X\n.TP\n\\fB\\-l\\fR, \\fB\\-\\-level\\fR \\fIN\\fR\n\\fIN\\fR is it, see \\fBx\\fR(1).\n\
                      The default is \\fB1\\fR.\n.TP\n\\fB\\-\\-more\\fR\nAs \\fBy z\\fR or \\fB\\-l\\fR.\nEnd.\n.SH Y\n";
        assert_eq!(page(source, &tools).as_deref(), Ok(wanted));
        assert!(page(".\\\" OPTIONS OF a c\n", &tools).is_err());
    }
}
