//! What the tools of NetACC share.

pub mod elf;
pub mod program;
