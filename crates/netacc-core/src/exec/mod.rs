//! exec and exit: descriptors for the program that a process executes, and the work before a process ends.

pub mod at_exit;
pub mod inheritance;
#[cfg(target_arch = "x86_64")]
pub mod static_go;
