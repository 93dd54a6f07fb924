//! An operator switches the process off and on, and has its rules loaded anew (`netacc_ctl`): how it hears of that, and
//! what it does.

pub mod requests;
mod rules;
pub mod work;
