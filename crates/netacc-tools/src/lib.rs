//! What the tools of NetACC share.

pub mod args;
pub mod before_page;
pub mod bench_wire;
pub mod columns;
pub mod commit;
pub mod conf_file;
pub mod elf;
pub mod environment;
pub mod filter;
pub mod help;
pub mod holders;
pub mod kernel_tcp;
pub mod library;
pub mod mapping;
pub mod place;
pub mod program;
pub mod sanitizer;
pub mod standing;
pub mod table;
pub mod terminal;
pub mod text;
pub mod time;
