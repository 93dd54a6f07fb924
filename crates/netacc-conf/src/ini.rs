//! Splits a configuration file into lines, and lines into keys and values, without knowing the keys.

use alloc::{borrow::Cow, vec::Vec};

/// The longest line in bytes that is read; no key needs more.
pub(crate) const MAX_LINE: usize = 8192;

/// The contents of a line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line<'a> {
    /// The line is empty or a comment.
    Blank,
    /// The line is `[name]`.
    Section(&'a [u8]),
    /// The line is `key = value`; the value has no quotes here.
    Setting(&'a [u8], Cow<'a, [u8]>),
    /// The line cannot be used, for the given reason.
    Bad(&'static str),
}

/// The lines of a file with their numbers, counted from 1.
pub(crate) fn lines(text: &[u8]) -> impl Iterator<Item = (u32, Line<'_>)> {
    // Some editors put a byte order mark at the beginning.
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    (1..).zip(text.split(|b| *b == b'\n')).map(|(number, line)| (number, parse(line)))
}

fn parse(line: &[u8]) -> Line<'_> {
    let line = trim(line.strip_suffix(b"\r").unwrap_or(line));
    match line.first() {
        None | Some(b'#' | b';') => return Line::Blank,
        Some(_) if line.len() > MAX_LINE => return Line::Bad("the line is too long; ignored"),
        Some(b'[') => return section(line),
        Some(_) => {}
    }
    let Some((key, value)) = split_once(line, b'=') else {
        return Line::Bad("expected KEY=VALUE; ignored");
    };
    let key = trim(key);
    if key.is_empty() {
        return Line::Bad("no key before \"=\"; ignored");
    }
    match unquote(trim(value)) {
        Ok(value) => Line::Setting(key, value),
        Err(problem) => Line::Bad(problem),
    }
}

fn section(line: &[u8]) -> Line<'_> {
    match split_once(line, b']') {
        Some((name, rest)) if is_comment(trim(rest)) => Line::Section(trim(name.strip_prefix(b"[").unwrap_or(name))),
        _ => Line::Bad("expected [section]; ignored"),
    }
}

/// Removes the quotes of a value, or a comment that follows an unquoted value after a space.
fn unquote(value: &[u8]) -> Result<Cow<'_, [u8]>, &'static str> {
    let Some(quoted) = value.strip_prefix(b"\"") else {
        let mut previous = b' ';
        let end = value.iter().position(|b| {
            let comment = matches!(b, b'#' | b';') && matches!(previous, b' ' | b'\t');
            previous = *b;
            comment
        });
        let kept = end.and_then(|end| value.get(..end)).unwrap_or(value);
        return Ok(Cow::Borrowed(trim(kept)));
    };
    let mut inside = Vec::new();
    let mut bytes = quoted.iter();
    loop {
        match bytes.next() {
            None => return Err("the closing quote is missing; ignored"),
            Some(b'"') => break,
            // A backslash escapes only a quote and itself, so that a path with other backslashes stays as written.
            Some(b'\\') => match bytes.clone().next() {
                Some(&escaped @ (b'"' | b'\\')) => {
                    bytes.next();
                    inside.push(escaped);
                }
                _ => inside.push(b'\\'),
            },
            Some(byte) => inside.push(*byte),
        }
    }
    if is_comment(trim(bytes.as_slice())) {
        Ok(Cow::Owned(inside))
    } else {
        Err("text after the closing quote; ignored")
    }
}

fn is_comment(rest: &[u8]) -> bool {
    matches!(rest.first(), None | Some(b'#' | b';'))
}

fn trim(mut bytes: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = bytes {
        bytes = rest;
    }
    bytes
}

fn split_once(bytes: &[u8], separator: u8) -> Option<(&[u8], &[u8])> {
    let mut parts = bytes.splitn(2, |b| *b == separator);
    Some((parts.next()?, parts.next()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn setting<'a>(key: &'a str, value: &'a str) -> Line<'a> {
        Line::Setting(key.as_bytes(), Cow::Borrowed(value.as_bytes()))
    }

    #[test]
    fn settings() {
        for (line, key, value) in [
            ("K=V", "K", "V"),
            (" \tK\t = V \r", "K", "V"),
            ("K=", "K", ""),
            ("K=a=b", "K", "a=b"),
            ("K=V # note", "K", "V"),
            ("K=V\t; note", "K", "V"),
            ("K=#note", "K", ""),
            ("K=a#b;c", "K", "a#b;c"),
            (r#"K="a # b" # note"#, "K", "a # b"),
            (r#"K="" ; note"#, "K", ""),
            (r#"K="a\"b\\c\d""#, "K", r#"a"b\c\d"#),
            (r#"K=a"b"#, "K", r#"a"b"#),
        ] {
            assert_eq!(parse(line.as_bytes()), setting(key, value), "{line}");
        }
    }

    #[test]
    fn other_lines() {
        for line in ["", "   ", "\r", "# c", " ; c", "#\u{e4}"] {
            assert_eq!(parse(line.as_bytes()), Line::Blank, "{line}");
        }
        assert_eq!(parse(b"# \xff\xfe"), Line::Blank);
        assert_eq!(parse(b" [ netacc ] # c"), Line::Section(b"netacc"));
        assert_eq!(parse(b"[]"), Line::Section(b""));
        for line in ["K", "=V", "[netacc", "[a] b", r#"K="a"#, r#"K="a" b"#, r#"K="a\""#] {
            assert!(matches!(parse(line.as_bytes()), Line::Bad(_)), "{line}");
        }
        assert!(matches!(parse(&vec![b'x'; MAX_LINE + 1]), Line::Bad(_)));
        assert_eq!(parse(&vec![b'#'; 10 * MAX_LINE]), Line::Blank);
    }

    #[test]
    fn line_numbers_and_byte_order_mark() {
        let found: Vec<_> = lines(b"\xef\xbb\xbf[netacc]\r\n\r\nK=V").collect();
        assert_eq!(found, [(1, Line::Section(b"netacc")), (2, Line::Blank), (3, setting("K", "V"))]);
    }
}
