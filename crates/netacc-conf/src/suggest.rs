//! Finds the key that a misspelt name probably means.

use alloc::{format, string::String, vec::Vec};

use crate::keys::KEYS;

/// The known key that is most similar to `name`, if any is similar enough.
pub fn nearest_key(name: &str) -> Option<&'static str> {
    // No misspelt key is this long, and the work grows with the length.
    if name.len() > 64 {
        return None;
    }
    KEYS.iter()
        .map(|key| (distance(name, key.name), key.name))
        .min()
        .filter(|(distance, known)| *distance <= known.len() / 4)
        .map(|(_, known)| known)
}

/// The end of a message about an unknown key, which suggests the most similar one if there is one.
pub(crate) fn hint(name: &str) -> String {
    match nearest_key(name) {
        Some(known) => format!("; did you mean {known}?"),
        None => String::new(),
    }
}

/// The number of letters to insert, delete or replace to turn `a` into `b`, ignoring case (the Levenshtein distance).
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        let mut cells = row.iter_mut();
        if let Some(first) = cells.next() {
            *first = left;
        }
        for (cell, y) in cells.zip(b.bytes()) {
            let replaced = diagonal + usize::from(!x.eq_ignore_ascii_case(&y));
            diagonal = *cell;
            left = replaced.min(left + 1).min(*cell + 1);
            *cell = left;
        }
    }
    row.last().copied().unwrap_or(a.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        assert_eq!(distance("", ""), 0);
        assert_eq!(distance("abc", ""), 3);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("ABC", "abc"), 0);
    }

    #[test]
    fn suggestions() {
        assert_eq!(nearest_key("NACC_SOR_IO_THREAD"), Some("NACC_SOR_IO_THREADS"));
        assert_eq!(nearest_key("nacc_log_level"), Some("NACC_LOG_LEVEL"));
        assert_eq!(nearest_key("LOGLEVEL"), None);
        assert_eq!(nearest_key(""), None);
        assert_eq!(nearest_key(&"N".repeat(5000)), None);
    }
}
