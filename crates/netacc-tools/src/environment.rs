//! The variables of the environment that say what a tool reads, removes or hands to a program.
//!
//! A tool that has more rights than its caller (set-user-ID, file capabilities) takes none of them: they would have it
//! read and remove files that its caller may not touch.

use std::ffi::OsString;

/// The value of a variable.
#[must_use]
pub fn var_os(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|_| !netacc_sys::weak::has_gained_rights())
}

/// All variables with their values.
pub fn vars_os() -> impl Iterator<Item = (OsString, OsString)> {
    std::env::vars_os().filter(|_| !netacc_sys::weak::has_gained_rights())
}
