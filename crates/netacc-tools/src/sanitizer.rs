//! Programs built with AddressSanitizer: its runtime refuses to start where another library comes before it, unless it
//! is told not to look (`verify_asan_link_order`). With the runtime in front of ours in `LD_PRELOAD` every program that
//! the command starts would have it as well, so it is told by its environment.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

/// The variable that the runtime reads.
pub const VARIABLE: &str = "ASAN_OPTIONS";
/// What lets it start behind another library.
pub const OPTION: &str = "verify_asan_link_order=0";

/// Whether a library of this name (`DT_NEEDED`) is the runtime, GCC's or Clang's.
pub fn is_runtime(name: &[u8]) -> bool {
    name.starts_with(b"libasan.so") || name.starts_with(b"libclang_rt.asan")
}

/// The options of the runtime with ours behind `existing`; `None` where the user has said it already.
pub fn options(existing: &OsStr) -> Option<OsString> {
    let (name, _) = OPTION.split_once('=').unwrap_or((OPTION, ""));
    if existing.as_bytes().windows(name.len()).any(|piece| piece == name.as_bytes()) {
        return None;
    }
    let mut all = existing.to_os_string();
    if !all.is_empty() {
        all.push(":");
    }
    all.push(OPTION);
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_options_stay() {
        let with = |text: &str| options(OsStr::new(text)).map(|all| all.into_string().unwrap());
        assert_eq!(with("").as_deref(), Some("verify_asan_link_order=0"));
        assert_eq!(with("detect_leaks=0").as_deref(), Some("detect_leaks=0:verify_asan_link_order=0"));
        assert_eq!(with("verify_asan_link_order=1:detect_leaks=0"), None);
    }

    #[test]
    fn runtimes() {
        assert!(is_runtime(b"libasan.so.8") && is_runtime(b"libclang_rt.asan-x86_64.so"));
        assert!(!is_runtime(b"libtsan.so.2") && !is_runtime(b"libasound.so.2"));
    }
}
