//! For tests: whether the manual pages name the options that the tools have.

use std::collections::BTreeSet;

use clap::Command;

/// The options of a command line, as they are typed.
#[must_use]
pub fn options_of(command: &Command) -> BTreeSet<String> {
    let shown = command.get_arguments().filter(|arg| !arg.is_positional() && !arg.is_hide_set());
    let names = shown.flat_map(|arg| {
        let short = arg.get_short().map(|letter| format!("-{letter}"));
        short.into_iter().chain(arg.get_long().map(|name| format!("--{name}")))
    });
    names.collect()
}

/// The options that a section of a manual page describes, each in the line behind a `.TP`.
#[must_use]
pub fn options_in(page: &str, section: &str) -> BTreeSet<String> {
    let lines = page.lines().skip_while(|line| *line != format!(".SH {section}")).skip(1);
    let lines: Vec<&str> = lines.take_while(|line| !line.starts_with(".SH ")).collect();
    let tags = lines.iter().zip(lines.iter().skip(1)).filter(|(before, _)| **before == ".TP").map(|(_, tag)| tag);
    let plain = tags.map(|tag| tag.replace("\\fB", "").replace("\\fI", "").replace("\\fR", " ").replace("\\-", "-"));
    let is_option = |word: &&str| word.starts_with('-') && *word != "--";
    let words =
        |tag: String| -> Vec<String> { tag.split([' ', ',', '"']).filter(is_option).map(str::to_owned).collect() };
    plain.flat_map(words).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Arg;

    #[test]
    fn the_tags_of_one_section_count() {
        let page = ".SH OPTIONS\n.TP\n.BR \\-p \", \" \\-\\-pid \" \" \\fIPID\\fR\nAs\n.BR \\-x .\n.TP\n\\fB\\-\\-one\\-off\\fR \\fIA\\fR\nB\n\
                    .TP\n.B \\-\\-\nEnd\n.SH OTHERS\n.TP\n.B \\-z\n";
        let command = Command::new("x")
            .arg(Arg::new("pid").short('p').long("pid"))
            .arg(Arg::new("one-off").long("one-off"))
            .arg(Arg::new("inner").long("inner").hide(true))
            .arg(Arg::new("file"));
        assert_eq!(options_in(page, "OPTIONS"), options_of(&command));
        assert_eq!(options_in(page, "OTHERS"), BTreeSet::from(["-z".to_owned()]));
    }
}
