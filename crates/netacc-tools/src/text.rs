//! Words that come from elsewhere, made fit to be shown.

/// Names of files, drivers and hosts, and what a peer says, are foreign: none may move the cursor or forge a line.
#[must_use]
pub fn clean(text: &str) -> String {
    let plain = |c: char| {
        !c.is_control() && !matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.chars().map(|c| if plain(c) { c.to_string() } else { c.escape_default().to_string() }).collect()
}

/// The beginning of a foreign text, in quotes.
#[must_use]
pub fn quote(text: &str) -> String {
    const SHOWN: usize = 60;
    let mut short: String = text.chars().take(SHOWN).collect();
    if text.chars().nth(SHOWN).is_some() {
        short.push_str("...");
    }
    format!("\"{}\"", clean(&short))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_stays_on_its_line() {
        assert_eq!(clean("a\nok  b\x1b[31m"), "a\\nok  b\\u{1b}[31m");
        assert_eq!(clean("\u{202e}y"), "\\u{202e}y");
        assert_eq!(quote("SSH-2.0\r\n"), "\"SSH-2.0\\r\\n\"");
        assert_eq!(quote(&"x".repeat(99)).len(), 60 + 3 + 2);
    }
}
