//! fork(2) and vfork(2): what parent and child may touch, and when a connection belongs to one process alone again.

pub mod child;
pub mod descendants;
pub mod namespace;
pub mod ownership;
pub mod prepare;
pub mod vfork;
