//! Finds the library to preload, and writes `LD_PRELOAD`.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// The name under which the library is installed.
pub const NAME: &str = "libnetacc-preload.so";
/// The name that cargo gives it, for running from a build directory.
const BUILD_NAME: &str = "libnetacc_preload.so";

/// What to put in front of `LD_PRELOAD`: the path of the library that came with this program, or else its bare
/// name, which the dynamic loader looks up.
pub fn find() -> OsString {
    find_file().map_or_else(|| NAME.into(), PathBuf::into_os_string)
}

/// The path of the library that came with this program.
pub fn find_file() -> Option<PathBuf> {
    let executable = env::current_exe().ok();
    executable.as_deref().and_then(Path::parent).and_then(find_near)
}

fn find_near(directory: &Path) -> Option<PathBuf> {
    let multiarch = format!("../lib/{}-linux-gnu", env::consts::ARCH);
    let beside = [directory.join(NAME), directory.join(BUILD_NAME)];
    let below_lib = ["../lib", "../lib64", &multiarch].map(|lib| directory.join(lib).join(NAME));
    beside
        .into_iter()
        .chain(below_lib)
        .filter_map(|path| path.canonicalize().ok())
        // The loader splits LD_PRELOAD at spaces and colons and knows no quoting.
        .find(|path| path.is_file() && !path.as_os_str().as_bytes().iter().any(|b| is_separator(*b)))
}

/// `LD_PRELOAD` with `library` in front and what was there before behind it.
///
/// The library is not named twice, under whatever path: two copies would each intercept the other's calls.
pub fn preload(library: &OsStr, existing: &OsStr) -> OsString {
    let mut list = library.as_bytes().to_vec();
    for entry in existing.as_bytes().split(|b| is_separator(*b)).filter(|entry| !entry.is_empty()) {
        if !is_ours(entry) {
            list.push(b':');
            list.extend_from_slice(entry);
        }
    }
    OsString::from_vec(list)
}

/// `LD_PRELOAD` without the library; `None` if nothing is left.
pub fn without(existing: &OsStr) -> Option<OsString> {
    let others = existing.as_bytes().split(|b| is_separator(*b));
    let others: Vec<&[u8]> = others.filter(|entry| !entry.is_empty() && !is_ours(entry)).collect();
    (!others.is_empty()).then(|| OsString::from_vec(others.join(&b':')))
}

fn is_separator(byte: u8) -> bool {
    matches!(byte, b' ' | b':')
}

fn is_ours(entry: &[u8]) -> bool {
    let name = entry.rsplit(|b| *b == b'/').next().unwrap_or(entry);
    name == NAME.as_bytes() || name == BUILD_NAME.as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(existing: &str) -> String {
        preload(OsStr::new("/l/libnetacc-preload.so"), OsStr::new(existing)).into_string().unwrap()
    }

    #[test]
    fn library_comes_first_and_once() {
        assert_eq!(list(""), "/l/libnetacc-preload.so");
        assert_eq!(list("a.so b.so:c.so"), "/l/libnetacc-preload.so:a.so:b.so:c.so");
        assert_eq!(list(" ::a.so "), "/l/libnetacc-preload.so:a.so");
        for other in ["libnetacc-preload.so", "/l/libnetacc-preload.so", "/x/libnetacc_preload.so"] {
            assert_eq!(list(&format!("a.so:{other} b.so")), "/l/libnetacc-preload.so:a.so:b.so");
        }
    }

    #[test]
    fn taken_out_again() {
        assert_eq!(without(OsStr::new("/l/libnetacc-preload.so")), None);
        assert_eq!(without(OsStr::new("a /l/libnetacc-preload.so:b")), Some("a:b".into()));
    }

    #[test]
    fn places_in_order() {
        let root = env::temp_dir().join(format!("netacc-library-{}", std::process::id()));
        let bin = root.join("bin");
        let put = |path: PathBuf| {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, b"").unwrap();
            path.canonicalize().unwrap()
        };
        std::fs::create_dir_all(&bin).unwrap();
        assert_eq!(find_near(&bin), None);
        let multiarch = format!("lib/{}-linux-gnu", env::consts::ARCH);
        for place in [multiarch.as_str(), "lib64", "lib", "bin"] {
            let path = put(root.join(place).join(NAME));
            assert_eq!(find_near(&bin), Some(path), "{place}");
        }
        let spaced = root.join("a b/bin");
        put(spaced.join(NAME));
        assert_eq!(find_near(&spaced), None, "the loader could not read that path");
        std::fs::remove_dir_all(root).unwrap();
    }
}
