//! The version of a tool with the commit from which it was built.

use std::hint;
use std::sync::LazyLock;

/// The beginning of the place for the commit, by which the build finds it.
pub const MARK: &[u8] = b"netacc-commit:";

/// Size of the place for the commit, with the mark.
pub const STAMP_SIZE: usize = 56;

/// The place for the commit, which `make` writes into the finished program. A tool that cargo alone has built has none.
#[used]
static STAMP: [u8; STAMP_SIZE] = *b"netacc-commit:                                          ";

static VERSION: LazyLock<String> = LazyLock::new(|| {
    // The compiler must not take the bytes that it knows for those that the file has in the end.
    let stamp = hint::black_box(&STAMP);
    let commit = stamp.get(MARK.len()..).and_then(|bytes| str::from_utf8(bytes).ok()).map_or("", str::trim);
    let version = env!("CARGO_PKG_VERSION");
    if commit.is_empty() { version.to_owned() } else { format!("{version} ({commit})") }
});

/// The version, as in `0.1.0 (32426facb12d)`; `-modified` behind the commit says that the sources differed from it.
pub fn version() -> &'static str {
    &VERSION
}
