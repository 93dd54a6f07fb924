//! The stash: foreign events that were taken from the kernel while only checking whether there are any.

use crate::epoll::call::Call;
use crate::epoll::cookies::open as open_value;
use crate::epoll::cookies::{Kind, Named, Value, cookie};
use crate::object::instance::{Epoll, Registration};
use core::sync::atomic::{AtomicU64, Ordering};
use netacc_sys::errno::Result;
use netacc_sys::{raw, reserved_fds};
use rustix::fd::AsRawFd;
use rustix::fs::{Mode, OFlags, open};

/// Stashes an event, merged with an earlier one of the same registration, whose value in the kernel's set is
/// `in_kernel`.
pub(super) fn stash(e: &Epoll, events: u32, data: u64, in_kernel: u64) {
    let _g = e.lock.lock();
    if matches!(open_value(in_kernel), Value::Ours(Named::Candidate(_))) {
        // The event belongs to a candidate.
        e.stash_queueable.store(1, Ordering::Relaxed);
    }
    if e.is_inner() {
        // Before it reports the inner instance, the kernel polls it once more, and would find nothing there now.
        e.notify_outer();
    }
    let len = e.stash_len.load(Ordering::Relaxed) as usize;
    for [had, _, of] in stashed(e).iter().take(len) {
        if of.load(Ordering::Relaxed) == in_kernel {
            had.fetch_or(events.into(), Ordering::Relaxed);
            return;
        }
    }
    if let Some([had, of, as_registered]) = stashed(e).get(len) {
        had.store(events.into(), Ordering::Relaxed);
        of.store(data, Ordering::Relaxed);
        as_registered.store(in_kernel, Ordering::Relaxed);
        e.stash_len.store(len as u32 + 1, Ordering::Relaxed);
    }
}

/// The stashed events, each with its event bits, the application's value and the value in the kernel's set.
fn stashed(e: &Epoll) -> &[[AtomicU64; 3]] {
    e.stash.as_chunks::<3>().0
}

/// The stashed events: event bits and the application's value.
pub(super) fn all(e: &Epoll) -> impl Iterator<Item = (u32, u64)> {
    let len = e.stash_len.load(Ordering::Relaxed) as usize;
    stashed(e)
        .iter()
        .take(len)
        .map(|[events, data, _]| (events.load(Ordering::Relaxed) as u32, data.load(Ordering::Relaxed)))
}

/// Keeps those of the first `len` events for which `wanted` is true, in order. Under the instance's lock.
fn retain(e: &Epoll, len: usize, mut wanted: impl FnMut(usize, [u64; 3]) -> bool) {
    let mut to = stashed(e).iter();
    let mut left = 0;
    for (i, cells) in stashed(e).iter().take(len).enumerate() {
        let event = cells.each_ref().map(|c| c.load(Ordering::Relaxed));
        if wanted(i, event)
            && let Some(cells) = to.next()
        {
            cells.iter().zip(event).for_each(|(c, v)| c.store(v, Ordering::Relaxed));
            left += 1;
        }
    }
    e.stash_len.store(left, Ordering::Relaxed);
    if left == 0 {
        e.stash_queueable.store(0, Ordering::Relaxed);
    }
}

/// Reports the stashed events. Returns their number, and whether one of the registrations may be in the ready queue by
/// now: no call may report a registration twice, so the queue is then left for the next call.
pub(super) fn unstash(e: &'static Epoll, call: &Call) -> (usize, bool) {
    // Checked without the lock first, since hardly any instance ever has a stashed event. One that comes at this moment
    // is reported by the next call.
    if is_empty(e) {
        return (0, false);
    }
    // The lock keeps two threads from reporting the same event.
    let _g = e.lock.lock();
    let len = e.stash_len.load(Ordering::Relaxed) as usize;
    let n = len.min(call.max as usize);
    let queueable = e.stash_queueable.load(Ordering::Relaxed) != 0;
    retain(e, len, |i, [events, data, _]| {
        if i < n {
            call.put(i, events as u32, data);
        }
        i >= n
    });
    (n, n > 0 && queueable)
}

fn is_empty(e: &Epoll) -> bool {
    e.stash_len.load(Ordering::Relaxed) == 0
}

/// Drops the stashed events of a registration. To be called before it is removed or changed; the kernel reports a
/// changed one anew.
pub(super) fn forget(e: &Epoll, reg: &'static Registration) {
    if is_empty(e) {
        return;
    }
    let ours = [cookie(Kind::Candidate, reg), cookie(Kind::Foreign, reg)];
    drop_kernel_data(e, &ours);
    if reg.source().is_in_kernels_set() {
        drop_kernel_data(e, &[reg.data.load(Ordering::Relaxed)]);
    }
}

/// Drops the stashed events of descriptor `fd`, whose registration only the kernel has.
pub(super) fn forget_descriptor(e: &Epoll, fd: i32) {
    if !is_empty(e)
        && let Ok(Some(in_kernel)) = registered_data(e.fd(), fd)
    {
        drop_kernel_data(e, &[in_kernel]);
    }
}

#[cold]
fn drop_kernel_data(e: &Epoll, gone: &[u64]) {
    let _g = e.lock.lock();
    retain(e, e.stash_len.load(Ordering::Relaxed) as usize, |_, [_, _, in_kernel]| !gone.contains(&in_kernel));
}

/// The value of `fd` in the kernel's set `epfd`, from the line with `tfd:`, `events:` and `data:` in /proc/self/fdinfo
/// (proc(5)).
#[cold]
fn registered_data(epfd: i32, fd: i32) -> Result<Option<u64>> {
    let path = alloc::format!("/proc/self/fdinfo/{epfd}\0");
    let path = core::ffi::CStr::from_bytes_until_nul(path.as_bytes()).unwrap_or_default();
    let file = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut text = alloc::vec::Vec::new();
    let mut buf = [0u8; 1024];
    while let Ok(n @ 1..) = raw::read(file.as_raw_fd(), buf.as_mut_ptr(), buf.len(), None) {
        text.extend_from_slice(buf.get(..n).unwrap_or_default());
    }
    reserved_fds::drop_raw(file);
    Ok(core::str::from_utf8(&text).ok().and_then(|text| data_of(text, fd)))
}

fn data_of(text: &str, fd: i32) -> Option<u64> {
    text.lines().find_map(|line| {
        let mut words = line.strip_prefix("tfd:")?.split_whitespace();
        let found = words.next()?.parse() == Ok(fd);
        let data = words.skip_while(|w| *w != "data:").nth(1)?;
        if found { u64::from_str_radix(data, 16).ok() } else { None }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_list_is_read() {
        let text = "pos:\t0\nflags:\t02000002\nmnt_id:\t15\nino:\t1057\n\
            tfd:        5 events:       1d data:     7f3a00000005  pos:0 ino:12b7f sdev:8\n\
            tfd:       15 events: 8000001d data:               f  pos:0 ino:12b80 sdev:8\n";
        assert_eq!((data_of(text, 5), data_of(text, 15)), (Some(0x7f3a_0000_0005), Some(15)));
        assert_eq!((data_of(text, 1), data_of("tfd: x", 1), data_of("tfd: 1 data:", 1)), (None, None, None));
    }
}
