//! Listeners.

pub mod adopt;
pub mod crowd;
pub mod ending;
pub mod opening;
pub mod taking;
pub mod withdrawal;
