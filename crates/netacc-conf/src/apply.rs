//! Applying the sources: a file, an environment variable, the options of `netacc_run`.

use alloc::string::{String, ToString};
use alloc::{format, vec::Vec};

use crate::diagnostic::{Diagnostic, Plain, Quoted, Source};
use crate::ini::{Line, lines};
use crate::keys::{Config, KEYS, canonical};
use crate::{ENV_CMDLINE, ENV_CONFIG_FILE, suggest, value};

/// The section that holds the keys.
const KEY_SECTION: &[u8] = b"netacc";

/// The section that holds the rules.
const RULE_SECTION: &[u8] = b"rules";

/// The most diagnostics that are kept of one file, so that a file that is not a configuration at all does not fill the
/// log.
const MAX_FILE_DIAGNOSTICS: usize = 50;

/// The section to which the lines being read belong.
#[derive(Clone, Copy, PartialEq)]
enum Section {
    /// No section has begun yet.
    Missing,
    Keys,
    Rules,
    Foreign,
}

/// What has been read of a file so far.
struct Progress {
    section: Section,
    /// For each key the number of the line that set it.
    lines: [Option<u32>; KEYS.len()],
}

impl Config {
    /// The configuration of a file alone, for a reader that takes the file as a whole or not at all. `name` is only
    /// used in messages.
    ///
    /// # Errors
    ///
    /// Everything that is wrong in the file, in the order of its lines.
    pub fn of_file(name: &str, text: &[u8]) -> Result<Self, Vec<Diagnostic>> {
        let mut config = Self::default();
        let mut diags = Vec::new();
        config.apply_file(name, text, &mut diags);
        if diags.is_empty() { Ok(config) } else { Err(diags) }
    }

    /// Applies a configuration file. `name` is only used in messages.
    ///
    /// Lines that cannot be used are reported with their numbers and ignored. Only one file should be applied:
    /// after a second one, the lines of both are shown as lines of the second.
    pub fn apply_file(&mut self, name: &str, text: &[u8], diags: &mut Vec<Diagnostic>) {
        let printable = name.len() <= value::MAX_TEXT && !name.chars().any(char::is_control);
        self.file = if printable { name.into() } else { Plain(name.as_bytes()).to_string() };
        let mut progress = Progress { section: Section::Missing, lines: [None; KEYS.len()] };
        let mut found = Vec::new();
        let mut unlisted = None;
        for (line, content) in lines(text) {
            self.apply_line(line, content, &mut progress, &mut found);
            if found.len() > MAX_FILE_DIAGNOSTICS {
                found.truncate(MAX_FILE_DIAGNOSTICS);
                unlisted = unlisted.or(Some(line));
            }
        }
        diags.append(&mut found);
        if let Some(line) = unlisted {
            let source = Source::File { line };
            self.report(source, "", "more problems, from here on, are not listed".into(), diags);
        }
        if progress.section == Section::Missing && progress.lines.iter().all(Option::is_none) {
            let source = Source::File { line: 0 };
            self.report(source, "", "no [netacc] section; the file sets nothing".into(), diags);
        }
    }

    /// Applies an environment variable. One whose name does not begin with `NACC_` is not ours and is ignored.
    pub fn apply_env(&mut self, key: &str, value: &[u8], diags: &mut Vec<Diagnostic>) {
        if key.starts_with("NACC_") && key != ENV_CONFIG_FILE && key != ENV_CMDLINE {
            self.set(Source::Env, key, value, diags);
        }
    }

    /// Applies the options of `netacc_run` as it passes them in [`ENV_CMDLINE`]: `KEY=VALUE;KEY=VALUE`.
    ///
    /// If a key occurs twice, the later value counts.
    pub fn apply_cmdline(&mut self, value: &[u8], diags: &mut Vec<Diagnostic>) {
        for part in value.split(|b| *b == b';').filter(|part| !part.is_empty()) {
            let mut sides = part.splitn(2, |b| *b == b'=');
            match (sides.next().map(core::str::from_utf8), sides.next()) {
                (Some(Ok(key)), Some(value)) => self.set(Source::CommandLine, key, value, diags),
                _ => {
                    let message = format!("{} in {ENV_CMDLINE} is not KEY=VALUE; ignored", Quoted(part));
                    self.report(Source::CommandLine, "", message, diags);
                }
            }
        }
    }

    fn apply_line(&mut self, line: u32, content: Line<'_>, progress: &mut Progress, diags: &mut Vec<Diagnostic>) {
        let source = Source::File { line };
        match content {
            Line::Blank => {}
            Line::Section(name) if name.eq_ignore_ascii_case(KEY_SECTION) => {
                progress.section = Section::Keys;
            }
            Line::Section(name) if name.eq_ignore_ascii_case(RULE_SECTION) => {
                progress.section = Section::Rules;
            }
            Line::Section(name) => {
                progress.section = Section::Foreign;
                let message =
                    format!("unknown section {}; allowed: [netacc], [rules]; its lines are ignored", Quoted(name));
                self.report(source, "", message, diags);
            }
            // An unknown section was reported once, at its head.
            _ if progress.section == Section::Foreign => {}
            Line::Bad(problem) => self.report(source, "", problem.into(), diags),
            Line::Setting(key, value) if progress.section == Section::Rules => {
                if let Err(problem) = self.rules.add(line, key, &value) {
                    self.report(source, "", format!("{problem}; this rule is ignored"), diags);
                }
            }
            Line::Setting(key, value) => {
                let Ok(key) = core::str::from_utf8(key) else {
                    let message = format!("{} is not UTF-8; ignored", Quoted(key));
                    return self.report(source, "", message, diags);
                };
                if progress.section == Section::Missing {
                    // The intention is clear, so the values are used; the missing line is reported once.
                    progress.section = Section::Keys;
                    let message = "the line [netacc] is missing before this; read as if it were there";
                    self.report(source, "", message.into(), diags);
                }
                let slot = self.position(key).and_then(|at| progress.lines.get_mut(at));
                if let Some(slot) = slot
                    && let Some(earlier) = slot.replace(line)
                {
                    let message = format!("already set in line {earlier}; this line replaces it");
                    self.report(source, key, message, diags);
                }
                self.set(source, key, &value, diags);
            }
        }
    }

    /// Gives a key a value, unless a source of higher priority already has.
    fn set(&mut self, source: Source, name: &str, bytes: &[u8], diags: &mut Vec<Diagnostic>) {
        let known = KEYS.iter().zip(self.sources.iter().copied()).enumerate();
        let today = canonical(name);
        let Some((at, (key, current))) = known.into_iter().find(|(_, (key, _))| key.name == today) else {
            let message = format!("unknown key; ignored{}", suggest::hint(name));
            return self.report(source, name, message, diags);
        };
        match value::parse(&key.kind, bytes) {
            Ok(value) if source.rank() >= current.rank() => {
                (key.set)(self, value);
                self.set_source(at, source);
            }
            Ok(_) => {}
            Err(problem) => {
                let used = key.value(self).to_string();
                let used = shown(&used);
                let message = format!("{} {problem}; allowed: {}; using {used}", Quoted(bytes), key.kind);
                self.report(source, name, message, diags);
            }
        }
    }

    pub(crate) fn report(&self, source: Source, key: &str, message: String, diags: &mut Vec<Diagnostic>) {
        let file = match source {
            Source::File { .. } => self.file.clone(),
            _ => String::new(),
        };
        let key = Plain(key.as_bytes()).to_string();
        diags.push(Diagnostic { source, file, key, message });
    }
}

/// A value for a message: an empty one is shown as two quotes.
fn shown(value: &str) -> &str {
    if value.is_empty() { "\"\"" } else { value }
}
