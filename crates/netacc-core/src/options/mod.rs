//! Socket options.

pub mod connected;
pub mod cork;
pub mod kernel_options;
pub mod opts;
pub mod remember;
pub mod remembered;
