//! What the tools of NetACC share.

pub mod bench_wire;
pub mod columns;
pub mod completions;
pub mod conf_file;
pub mod elf;
pub mod library;
pub mod manual;
pub mod program;
pub mod sanitizer;
pub mod terminal;
pub mod text;
