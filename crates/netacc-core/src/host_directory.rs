//! The host directory of the configuration (`NACC_HOST_DIR`), by which processes in other network namespaces of this host
//! are reached; see [`netacc_transport::shm::host_dir`].

use crate::{process_mode, runtime, timeouts};
use netacc_sys::{SharedCell, time};
use netacc_transport::shm::host_access::{self, Unfit};

const BELIEVED: u64 = time::ns(timeouts::HOST_DIR_BELIEVED);

/// Time of the last check ([`time::coarse`]); 0: none was made.
static CHECKED: SharedCell<u64> = SharedCell::<u64>::new(0);
/// What the last check found: [`ABSENT`], [`USABLE`] or [`UNFIT`].
static FOUND: SharedCell<u32> = SharedCell::<u32>::new(ABSENT);

const ABSENT: u32 = 0;
const USABLE: u32 = 1;
/// The directory is there, must not be used, and the log says so.
const UNFIT: u32 = 2;

/// The name of the directory; `None`: the configuration has none.
pub fn configured() -> Option<&'static str> {
    Some(runtime::get()?.conf.host_dir.as_str()).filter(|dir| !dir.is_empty())
}

/// The directory, if it is there and safe. It is looked at once in a while only.
pub fn usable() -> Option<&'static str> {
    let dir = configured().filter(|_| process_mode::reason().is_none())?;
    let now = time::coarse();
    let checked = CHECKED.get();
    // Two threads that check at once find the same.
    if checked == 0 || now.saturating_sub(checked) > BELIEVED {
        let before = FOUND.get();
        let found = host_access::check(dir);
        FOUND.set(match found {
            Ok(_) => USABLE,
            Err(Unfit::Absent) => ABSENT,
            Err(why) => {
                if before != UNFIT {
                    netacc_log::log!(
                        Warn,
                        "NACC_HOST_DIR={dir}: not used, programs in other containers are reached by TCP: {why}"
                    );
                }
                UNFIT
            }
        });
        CHECKED.set(now.max(1));
    }
    (FOUND.get() == USABLE).then_some(dir)
}
