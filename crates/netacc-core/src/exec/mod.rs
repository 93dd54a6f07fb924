//! What a process leaves to the program that it starts, and to others when it ends.

pub mod at_exit;
pub mod inheritance;
