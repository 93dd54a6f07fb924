//! fork(2) and vfork(2): sharing objects between parent and child, and ending the sharing of a connection.

pub mod child;
pub mod descendants;
pub mod namespace;
pub mod ownership;
pub mod prepare;
pub mod rights;
pub mod vfork;
