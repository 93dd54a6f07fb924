//! Words that come from elsewhere, made fit to be shown.

pub use netacc_stats_reader::clean;

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
