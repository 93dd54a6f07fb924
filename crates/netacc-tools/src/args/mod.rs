//! The command lines of the tools. Completions and the OPTIONS of the manual pages are made from them (`crates/xtask`):
//! the first paragraph of an option's help is what `--help` shows, and the manual page has all of it.

pub mod bench;
pub mod check;
pub mod ctl;
pub mod run;
pub mod ss;
pub mod who;
