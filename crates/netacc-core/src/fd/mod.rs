//! Descriptor numbers: the table of their objects, their creation and their close.

pub mod closing;
pub mod create;
pub mod fd_cache;
pub mod later;
pub mod placeholder;
pub mod table;
