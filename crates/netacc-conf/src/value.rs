//! The types of value a key may have: how each is read, shown and described.

use alloc::string::{String, ToString};
use core::fmt;

/// The level of a log line. A line is written if its level is at least the configured one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum LogLevel {
    /// Every step of every connection is logged.
    Trace = 0,
    /// Details for developers are logged.
    Debug = 1,
    /// A connection or listener changes its state, or falls back to TCP.
    Info = 2,
    /// Something works less well than it could.
    Warn = 3,
    /// An operation failed.
    Error = 4,
    /// NetACC cannot go on in this process.
    Fatal = 5,
}

impl LogLevel {
    /// All levels, the lowest first.
    pub const ALL: [LogLevel; 6] =
        [LogLevel::Trace, LogLevel::Debug, LogLevel::Info, LogLevel::Warn, LogLevel::Error, LogLevel::Fatal];

    /// The name as it stands in a log line.
    pub fn name(self) -> &'static str {
        match self {
            LogLevel::Trace => "TRACE",
            LogLevel::Debug => "DEBUG",
            LogLevel::Info => "INFO",
            LogLevel::Warn => "WARN",
            LogLevel::Error => "ERROR",
            LogLevel::Fatal => "FATAL",
        }
    }

    /// The number that stands for the level in a configuration file.
    pub fn number(self) -> u8 {
        self as u8
    }
}

impl fmt::Display for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The longest text value in bytes: a path of PATH_MAX without its NUL.
pub(crate) const MAX_TEXT: usize = 4095;

/// The highest CPU number that can be named; Linux supports no more than 8192 CPUs.
const MAX_CPU: u32 = 8191;

/// The type of a key's value, with its range. It displays as a list of what is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A decimal number.
    Int {
        /// The least value.
        min: i64,
        /// The greatest value.
        max: i64,
    },
    /// A switch, 0 or 1.
    Bool,
    /// A [`LogLevel`], by number or by name.
    Level,
    /// An absolute path, or an empty text.
    Path,
    /// CPU numbers and ranges, or an empty text.
    CpuList,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Int { min, max } => write!(f, "{min}..={max}"),
            Kind::Bool => f.write_str("0, 1"),
            Kind::Level => {
                f.write_str("0..=5")?;
                for (i, level) in LogLevel::ALL.iter().enumerate() {
                    write!(f, "{}{level}", if i == 0 { " or " } else { ", " })?;
                }
                Ok(())
            }
            Kind::Path => write!(f, "an absolute path of up to {MAX_TEXT} bytes, or \"\""),
            Kind::CpuList => write!(f, "CPUs 0..={MAX_CPU} such as 0, 1-3 or 1,3,4, or \"\""),
        }
    }
}

/// A value of any key. It displays in canonical form, without quotes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A value of [`Kind::Int`].
    Int(i64),
    /// A value of [`Kind::Bool`].
    Bool(bool),
    /// A value of [`Kind::Level`].
    Level(LogLevel),
    /// A value of [`Kind::Path`] or [`Kind::CpuList`].
    Text(String),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Int(number) => write!(f, "{number}"),
            Value::Bool(on) => write!(f, "{}", u8::from(*on)),
            Value::Level(level) => write!(f, "{}", level.number()),
            Value::Text(text) => f.write_str(text),
        }
    }
}

/// A Rust type that a field of the configuration may have.
pub(crate) trait Field {
    /// The field as a [`Value`].
    fn value(&self) -> Value;
    /// Sets the field to a value of the same kind; a value that does not fit leaves the field unchanged.
    fn assign(&mut self, value: Value);
}

macro_rules! integer_field {
    ($($int:ty),*) => {$(
        impl Field for $int {
            fn value(&self) -> Value {
                Value::Int(i64::from(*self))
            }
            fn assign(&mut self, value: Value) {
                if let Value::Int(number) = value
                    && let Ok(number) = <$int>::try_from(number)
                {
                    *self = number;
                }
            }
        }
    )*};
}
integer_field!(u32, i32);

impl Field for bool {
    fn value(&self) -> Value {
        Value::Bool(*self)
    }
    fn assign(&mut self, value: Value) {
        if let Value::Bool(on) = value {
            *self = on;
        }
    }
}

impl Field for LogLevel {
    fn value(&self) -> Value {
        Value::Level(*self)
    }
    fn assign(&mut self, value: Value) {
        if let Value::Level(level) = value {
            *self = level;
        }
    }
}

impl Field for String {
    fn value(&self) -> Value {
        Value::Text(self.clone())
    }
    fn assign(&mut self, value: Value) {
        if let Value::Text(text) = value {
            *self = text;
        }
    }
}

/// Parses the bytes of a value. The error is a text that follows the quoted value in a message.
pub(crate) fn parse(kind: &Kind, bytes: &[u8]) -> Result<Value, &'static str> {
    let Ok(text) = core::str::from_utf8(bytes) else {
        return Err("is not UTF-8");
    };
    if text.len() > MAX_TEXT {
        return Err("is too long");
    }
    let text = text.trim_matches([' ', '\t']);
    if text.chars().any(char::is_control) {
        return Err("has a control character");
    }
    match *kind {
        Kind::Int { min, max } => match integer(text)? {
            number if number < min || number > max => Err("is out of range"),
            number => Ok(Value::Int(number)),
        },
        Kind::Bool => boolean(text).map(Value::Bool).ok_or("is not a switch"),
        Kind::Level => LogLevel::ALL
            .into_iter()
            .find(|level| text.eq_ignore_ascii_case(level.name()) || integer(text) == Ok(i64::from(level.number())))
            .map(Value::Level)
            .ok_or("is not a log level"),
        Kind::Path if text.is_empty() || text.starts_with('/') => Ok(Value::Text(text.to_string())),
        Kind::Path => Err("is not an absolute path"),
        Kind::CpuList if text.is_empty() || cpu_ranges(text).all(|range| range.is_some()) => {
            Ok(Value::Text(text.to_string()))
        }
        Kind::CpuList => Err("is not a CPU list"),
    }
}

/// Parses a decimal number with an optional minus. A number that is too large for any key is out of range, not
/// malformed.
fn integer(text: &str) -> Result<i64, &'static str> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err("is not a number");
    }
    text.parse().map_err(|_| "is out of range")
}

/// Parses a switch. The manual names `0` and `1`; the words are accepted because people write them anyway.
fn boolean(text: &str) -> Option<bool> {
    let is = |words: [&str; 4]| words.iter().any(|word| text.eq_ignore_ascii_case(word));
    if is(["1", "yes", "on", "true"]) {
        Some(true)
    } else if is(["0", "no", "off", "false"]) {
        Some(false)
    } else {
        None
    }
}

/// The parts of a CPU list as inclusive ranges; `None` for a part that is not one.
pub(crate) fn cpu_ranges(text: &str) -> impl Iterator<Item = Option<(u32, u32)>> + '_ {
    fn cpu(text: &str) -> Option<u32> {
        let number = integer(text.trim_matches([' ', '\t'])).ok()?;
        u32::try_from(number).ok().filter(|cpu| *cpu <= MAX_CPU)
    }
    text.split(',').map(|part| match part.split_once('-') {
        None => cpu(part).map(|cpu| (cpu, cpu)),
        Some((first, last)) => Some((cpu(first)?, cpu(last)?)).filter(|(first, last)| first <= last),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        let kind = Kind::Int { min: -1, max: 64 };
        assert_eq!(parse(&kind, b" 64\t"), Ok(Value::Int(64)));
        assert_eq!(parse(&kind, b"-1"), Ok(Value::Int(-1)));
        assert_eq!(parse(&kind, b"007"), Ok(Value::Int(7)));
        for (text, problem) in [
            (&b""[..], "is not a number"),
            (b"-", "is not a number"),
            (b"+4", "is not a number"),
            (b"4k", "is not a number"),
            (b"0x10", "is not a number"),
            (b"1 2", "is not a number"),
            (b"65", "is out of range"),
            (b"-2", "is out of range"),
            (b"99999999999999999999999", "is out of range"),
            (b"\xff", "is not UTF-8"),
            (b"1\0", "has a control character"),
        ] {
            assert_eq!(parse(&kind, text), Err(problem), "{text:?}");
        }
    }

    #[test]
    fn switches() {
        for text in ["1", "yes", "On", "TRUE"] {
            assert_eq!(parse(&Kind::Bool, text.as_bytes()), Ok(Value::Bool(true)));
        }
        for text in ["0", "no", "Off", "false"] {
            assert_eq!(parse(&Kind::Bool, text.as_bytes()), Ok(Value::Bool(false)));
        }
        for text in ["", "2", "-1", "maybe"] {
            assert_eq!(parse(&Kind::Bool, text.as_bytes()), Err("is not a switch"));
        }
    }

    #[test]
    fn levels() {
        for level in LogLevel::ALL {
            let number = level.number().to_string();
            assert_eq!(parse(&Kind::Level, number.as_bytes()), Ok(Value::Level(level)));
            let name = level.name().to_ascii_lowercase();
            assert_eq!(parse(&Kind::Level, name.as_bytes()), Ok(Value::Level(level)));
        }
        for text in ["6", "-1", "", "WARNING"] {
            assert_eq!(parse(&Kind::Level, text.as_bytes()), Err("is not a log level"));
        }
        assert!(LogLevel::Trace < LogLevel::Fatal);
        assert_eq!(Kind::Level.to_string(), "0..=5 or TRACE, DEBUG, INFO, WARN, ERROR, FATAL");
    }

    #[test]
    fn paths() {
        assert_eq!(parse(&Kind::Path, b"/tmp/a b"), Ok(Value::Text("/tmp/a b".into())));
        assert_eq!(parse(&Kind::Path, b""), Ok(Value::Text("".into())));
        assert_eq!(parse(&Kind::Path, b"netacc.log"), Err("is not an absolute path"));
        assert_eq!(parse(&Kind::Path, b"/tmp/\x07"), Err("has a control character"));
        assert_eq!(parse(&Kind::Path, &[b'/'; MAX_TEXT + 1]), Err("is too long"));
    }

    #[test]
    fn cpu_lists() {
        for text in ["", "0", "1-3", "1,3,4", "0, 2-5 ,8191", "7-7"] {
            assert!(parse(&Kind::CpuList, text.as_bytes()).is_ok(), "{text}");
        }
        for text in [",", "1,", "3-1", "-1", "1-", "1-2-3", "8192", "a", "0 | 1-3", "1 2"] {
            assert_eq!(parse(&Kind::CpuList, text.as_bytes()), Err("is not a CPU list"), "{text}");
        }
    }
}
