//! What the tools of NetACC share.

pub mod conf_file;
pub mod elf;
pub mod library;
pub mod program;
pub mod terminal;
