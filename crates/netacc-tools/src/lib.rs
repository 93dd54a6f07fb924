//! What the tools of NetACC share.

pub mod args;
pub mod bench_wire;
pub mod columns;
pub mod conf_file;
pub mod elf;
pub mod environment;
pub mod holders;
pub mod library;
pub mod mapping;
pub mod place;
pub mod program;
pub mod sanitizer;
pub mod terminal;
pub mod text;
pub mod time;
