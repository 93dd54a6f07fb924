//! Listeners: listen(2), the rendezvous, the links of clients, and the end.

pub mod adopt;
pub mod crowd;
pub(crate) mod dispatcher;
pub mod ending;
pub mod entrance;
pub mod heirs;
pub mod opening;
pub mod taking;
pub(crate) mod unsettled;
pub mod withdrawal;
