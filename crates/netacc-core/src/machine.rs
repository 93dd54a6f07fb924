//! Common parts of the state machines of this crate.
//!
//! Each machine is an enum with a table of its transitions. The setter of a state looks the transition up in a debug
//! build. The documents show the same table as a diagram, which a unit test compares with it.

/// One transition: the state before it, the state after it, and what makes it. `None` stands for the time before the
/// machine begins, or after it has ended.
pub(crate) type Edge<S> = (Option<S>, Option<S>, &'static str);

/// Whether the table allows the transition. Staying in a state is always allowed.
pub(crate) fn allows<S: PartialEq>(table: &[Edge<S>], from: &Option<S>, to: &Option<S>) -> bool {
    from == to || table.iter().any(|(before, after, _)| before == from && after == to)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use core::fmt::{Debug, Write};

    /// The table as a state diagram in Mermaid's language.
    fn diagram<S: Debug>(table: &[Edge<S>]) -> String {
        let name = |s: &Option<S>| s.as_ref().map_or("[*]".to_owned(), |s| format!("{s:?}"));
        let mut text = "```mermaid\nstateDiagram-v2\n".to_owned();
        for (from, to, why) in table {
            let _ = writeln!(text, "    {} --> {}: {why}", name(from), name(to));
        }
        text + "```\n"
    }

    /// Asserts that a page in `docs/internals` shows this table, and that the table is sound.
    pub(crate) fn assert_shown<S: Debug + PartialEq>(page: &str, table: &[Edge<S>]) {
        let path = format!("{}/../../docs/internals/{page}", env!("CARGO_MANIFEST_DIR"));
        let shown = std::fs::read_to_string(&path).unwrap();
        let wanted = diagram(table);
        assert!(shown.contains(&wanted), "docs/internals/{page} does not show the table; it is to have\n\n{wanted}");
        for (i, (from, to, why)) in table.iter().enumerate() {
            assert!(!why.is_empty() && from != to, "{from:?} to {to:?} is no transition");
            let again = table.iter().skip(i + 1).any(|(f, t, _)| (f, t) == (from, to));
            assert!(!again, "{from:?} to {to:?} is there twice");
        }
        for state in table.iter().filter_map(|(_, to, _)| to.as_ref()) {
            assert!(is_reached(table, state), "{state:?} cannot be reached");
        }
    }

    /// Whether transitions lead from the beginning to `state`.
    fn is_reached<S: PartialEq>(table: &[Edge<S>], state: &S) -> bool {
        let mut reached: Vec<&S> = Vec::new();
        loop {
            let next = table.iter().find_map(|(from, to, _)| {
                let begun = from.as_ref().is_none_or(|from| reached.contains(&from));
                to.as_ref().filter(|to| begun && !reached.contains(to))
            });
            match next {
                Some(found) => reached.push(found),
                None => return reached.contains(&state),
            }
        }
    }

    #[test]
    fn a_table_allows_what_it_has() {
        const TABLE: &[Edge<u8>] = &[(None, Some(1), "begins"), (Some(1), Some(2), "goes on"), (Some(2), None, "ends")];
        assert!(
            allows(TABLE, &Some(1), &Some(2)) && allows(TABLE, &Some(2), &Some(2)) && allows(TABLE, &Some(2), &None)
        );
        assert!(!allows(TABLE, &Some(2), &Some(1)) && !allows(TABLE, &None, &Some(2)));
        assert!(is_reached(TABLE, &2) && !is_reached(TABLE, &3));
        assert_eq!(
            diagram(TABLE),
            "```mermaid\nstateDiagram-v2\n    [*] --> 1: begins\n    1 --> 2: goes on\n    2 --> [*]: ends\n```\n"
        );
    }
}
