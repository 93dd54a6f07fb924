//! The RDMA devices of the host, as the kernel lists them.

use core::ffi::CStr;
use netacc_sys::reserved_fds;
use rustix::fs::{Mode, OFlags, RawDir, open};

/// Whether the kernel knows an RDMA device.
pub(super) fn host_has_device() -> bool {
    let mut found = false;
    each_name(c"/sys/class/infiniband", |_| {
        found = true;
        false
    });
    found
}

/// A number that changes with the RDMA devices that programs can open. A device that is being removed is not among
/// them, while it waits for the programs that have it open.
pub(super) fn devices_there() -> u64 {
    let mut sum = 0u64;
    // The order means nothing: FNV-1a of each name, added up.
    each_name(c"/sys/class/infiniband_verbs", |name| {
        let hash = name.iter().fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3));
        sum = sum.wrapping_add(hash);
        true
    });
    sum
}

/// Calls `f` for each name in a folder, until `f` says that it has seen enough.
fn each_name(dir: &CStr, mut f: impl FnMut(&[u8]) -> bool) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(dir) = open(dir, flags, Mode::empty()) else { return };
    let mut buf = [core::mem::MaybeUninit::uninit(); 1024];
    let mut entries = RawDir::new(&dir, &mut buf);
    while let Some(Ok(qp)) = entries.next() {
        let name = qp.file_name().to_bytes();
        if !name.starts_with(b".") && !f(name) {
            break;
        }
    }
    reserved_fds::drop_raw(dir);
}
