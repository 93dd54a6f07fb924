//! The documents as they are installed: all of them in one folder, and without the rest of the sources.

use std::path::{Component, Path, PathBuf};

/// What an installed document says below its title.
const ORIGIN: &str = "*This is the installed copy. Commands of `make` and `scripts/`, and paths such as `tests/...` and \
                      `crates/...`, are those of NetACC's sources.*";

/// The document `source` as it is installed, where it lies in the sources as `path`. A link to one of the documents in
/// `installed` leads to the file beside it, and in place of any other file of the sources its name is written.
pub(crate) fn page(source: &str, path: &Path, installed: &[PathBuf]) -> String {
    let (title, text) = source.split_once('\n').unwrap_or((source, ""));
    // Every second part lies between fences, and is code.
    let parts = text.split("```").enumerate();
    let parts = parts.map(|(at, part)| if at % 2 == 1 { part.to_owned() } else { links(part, path, installed) });
    format!("{title}\n\n{ORIGIN}\n{}", parts.collect::<Vec<_>>().join("```"))
}

/// A text with its links replaced.
fn links(text: &str, path: &Path, installed: &[PathBuf]) -> String {
    let mut rest = text;
    let mut made = String::new();
    while let Some((before, after)) = rest.split_once("](") {
        let Some((target, behind)) = after.split_once(')') else { break };
        rest = behind;
        let target = target.trim();
        let (file, anchor) = target.split_once('#').map_or((target, ""), |(file, anchor)| (file, anchor));
        if file.is_empty() || file.contains("://") {
            made.extend([before, "](", target, ")"]);
            continue;
        }
        let file = in_sources(path, file);
        if installed.contains(&file) {
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            let mark = if anchor.is_empty() { "" } else { "#" };
            made.extend([before, "](", &name, mark, anchor, ")"]);
        } else {
            made.push_str(&named(before, &file.to_string_lossy()));
        }
    }
    made + rest
}

/// The text before the end of a link, with the name of the file in the sources in place of the link.
fn named(before: &str, file: &str) -> String {
    let (start, text) = before.rsplit_once('[').unwrap_or(("", before));
    let plain = text.trim_matches('`').trim_end_matches('/');
    if file.contains(plain) { format!("{start}`{file}`") } else { format!("{start}{text} (`{file}`)") }
}

/// The file of the sources that a document at `path` names.
fn in_sources(path: &Path, file: &str) -> PathBuf {
    let mut whole = PathBuf::new();
    for part in path.parent().unwrap_or(Path::new("")).join(file).components() {
        match part {
            Component::ParentDir => _ = whole.pop(),
            other => whole.push(other),
        }
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(text: &str) -> String {
        let installed = [PathBuf::from("README.md"), PathBuf::from("docs/RDMA.md"), PathBuf::from("docs/DEPLOY.md")];
        links(text, Path::new("docs/DEPLOY.md"), &installed)
    }

    #[test]
    fn links_lead_to_what_is_installed() {
        assert_eq!(
            made("See [RDMA.md](RDMA.md#when) and [it](../README.md)."),
            "See [RDMA.md](RDMA.md#when) and [it](README.md)."
        );
        assert_eq!(made("[below](#there), [x](https://x.example/)"), "[below](#there), [x](https://x.example/)");
    }

    #[test]
    fn other_files_are_named() {
        assert_eq!(made("(see [locks](internals/locks.md#a))."), "(see `docs/internals/locks.md`).");
        assert_eq!(made("[decisions/0001](decisions/0001-a.md)"), "`docs/decisions/0001-a.md`");
        assert_eq!(made("[the order](internals/locks.md)"), "the order (`docs/internals/locks.md`)");
        assert_eq!(made("[`scripts/x`](../scripts/x/README.md)"), "`scripts/x/README.md`");
    }
}
