//! Socket options: getsockopt(2) and setsockopt(2).

pub mod connected;
pub mod cork;
pub mod kernel_options;
pub mod opts;
mod own_answers;
pub mod remember;
pub mod remembered;
mod values;
