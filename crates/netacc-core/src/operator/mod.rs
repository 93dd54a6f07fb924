//! An operator switches the process off and on (`netacc_ctl`): how it hears of that, and what it does.

pub mod requests;
pub mod work;
