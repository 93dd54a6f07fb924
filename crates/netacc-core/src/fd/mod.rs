//! Descriptor numbers: what they stand for, how they come and how they go.

pub mod closing;
pub mod create;
pub mod fd_cache;
pub mod later;
pub mod placeholder;
pub mod table;
