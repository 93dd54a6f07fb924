//! The source of a value, and the diagnostics about values that cannot be used.

use alloc::string::{String, ToString};
use core::fmt;

/// Where the value of a key came from. A later variant overrides an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// The built-in default.
    Default,
    /// The configuration file.
    File {
        /// The line, counted from 1; 0 stands for the file as a whole.
        line: u32,
    },
    /// A `NACC_*` environment variable.
    Env,
    /// An option of `netacc_run`.
    CommandLine,
}

impl Source {
    /// The priority: a value overrides one of equal or lower rank.
    pub(crate) fn rank(self) -> u8 {
        match self {
            Source::Default => 0,
            Source::File { .. } => 1,
            Source::Env => 2,
            Source::CommandLine => 3,
        }
    }

    /// Names the source for the user; `file` is the name of the configuration file.
    pub fn describe(self, file: &str) -> String {
        match self {
            Source::Default => "default".to_string(),
            Source::File { line: 0 } => file.to_string(),
            Source::File { line } => alloc::format!("{file}:{line}"),
            Source::Env => "environment".to_string(),
            Source::CommandLine => "command line".to_string(),
        }
    }
}

/// A problem: something in a source could not be used as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// The source that has the problem.
    pub source: Source,
    /// The name of the configuration file; empty for other sources.
    pub file: String,
    /// The key as it was written; empty if the problem does not concern a key.
    pub key: String,
    /// What is wrong, what is allowed, and what is used instead.
    pub message: String,
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.source.describe(&self.file))?;
        f.write_str(": ")?;
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.message)
    }
}

/// Displays foreign bytes within one line of a log: in quotes, with control characters escaped, and cut if they are
/// long.
pub(crate) struct Quoted<'a>(pub(crate) &'a [u8]);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", Plain(self.0))
    }
}

/// Displays text like [`Quoted`], without the quotes.
pub(crate) struct Plain<'a>(pub(crate) &'a [u8]);

impl fmt::Display for Plain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN_CHARS: usize = 60;
        // A character has at most four bytes, so the rest of a long value is not even decoded.
        let head = self.0.get(..SHOWN_CHARS * 4).unwrap_or(self.0);
        let mut shown = 0;
        for chunk in head.utf8_chunks() {
            for c in chunk.valid().chars() {
                if shown == SHOWN_CHARS {
                    return f.write_str("...");
                }
                shown += 1;
                // Line separators and bidirectional controls forge log lines just as '\n' does.
                let control = c.is_control()
                    || matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
                match (control, c) {
                    (true, _) => write!(f, "{}", c.escape_unicode())?,
                    (false, '"' | '\\') => write!(f, "\\{c}")?,
                    (false, _) => write!(f, "{c}")?,
                }
            }
            for byte in chunk.invalid() {
                if shown == SHOWN_CHARS {
                    return f.write_str("...");
                }
                shown += 1;
                write!(f, "\\x{byte:02x}")?;
            }
        }
        if head.len() < self.0.len() { f.write_str("...") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_bytes_stay_on_one_line() {
        assert_eq!(Quoted(b"a\nb\x1b[31m\xff\"").to_string(), "\"a\\u{a}b\\u{1b}[31m\\xff\\\"\"");
        assert_eq!(Quoted("\u{202e}x".as_bytes()).to_string(), "\"\\u{202e}x\"");
    }

    #[test]
    fn long_values_are_cut() {
        assert_eq!(Plain(&[b'a'; 61]).to_string().len(), 63);
        assert_eq!(Plain(&[b'a'; 60]).to_string().len(), 60);
        assert!(Plain(&[0xff; 5000]).to_string().len() < 300);
    }

    #[test]
    fn sources_rank_as_documented() {
        let ranks = [Source::Default, Source::File { line: 9 }, Source::Env, Source::CommandLine];
        assert!(ranks.iter().zip(ranks.iter().skip(1)).all(|(low, high)| low.rank() < high.rank()));
    }

    #[test]
    fn display_names_place_and_key() {
        let mut diagnostic = Diagnostic {
            source: Source::File { line: 12 },
            file: "/etc/netacc.conf".into(),
            key: "K".into(),
            message: "m".into(),
        };
        assert_eq!(diagnostic.to_string(), "/etc/netacc.conf:12: K: m");
        diagnostic.key.clear();
        assert_eq!(diagnostic.to_string(), "/etc/netacc.conf:12: m");
        diagnostic.source = Source::Env;
        assert_eq!(diagnostic.to_string(), "environment: m");
    }
}
