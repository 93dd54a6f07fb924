//! An operator switches the process off and on, has its rules loaded anew, or has the library replaced (`netacc_ctl`): how
//! the process hears of that, and what it does.

pub mod exchange;
mod handover;
pub mod requests;
mod rules;
pub mod work;
