//! What runs when the library is loaded, before the program's own constructors. Hooks do not depend on it.

use crate::{exchange, freestanding, handlers, process};
use netacc_core::listen::adopt;
use netacc_core::startup;
use netacc_sys::libc_kind;

extern "C" fn start() {
    // Most programs have no TCP socket, and no use for these functions.
    startup::before_first_socket(&USE_LIBC);
    // Under an unknown libc every call is passed on, and nothing else happens.
    if libc_kind::is_known() {
        exchange::note_origin();
        process::at_fork();
        process::at_quick_exit();
        netacc_core::operator::work::start();
        exchange::start();
        handlers::begin();
        adopt::inherited();
        #[cfg(target_arch = "x86_64")]
        crate::go::start();
    }
}

static USE_LIBC: fn() = freestanding::use_libc;

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;
