//! The stash: foreign events that were taken from the kernel while only checking whether there are any.

use crate::epoll::call::Call;
use crate::epoll::cookies::open as open_value;
use crate::epoll::cookies::{Kind, Named, Value, cookie};
use crate::object::instance::{Epoll, Registration, Stash, Stashed};
use netacc_sys::errno::Result;
use netacc_sys::{raw, reserved_fds};
use rustix::fd::AsRawFd;
use rustix::fs::{Mode, OFlags, open};

/// Stashes an event, merged with an earlier one of the same registration, whose value in the kernel's set is
/// `in_kernel`.
pub(super) fn stash(e: &Epoll, events: u32, data: u64, in_kernel: u64) {
    let _g = e.lock.lock();
    if e.is_inner() {
        // Before it reports the inner instance, the kernel polls it once more, and would find nothing there now.
        e.notify_outer();
    }
    let mut stash = e.stash.lock();
    // The event may belong to a candidate.
    stash.queueable |= matches!(open_value(in_kernel), Value::Ours(Named::Candidate(_)));
    let len = len(e);
    if let Some(had) = stash.events.iter_mut().take(len).find(|had| had.in_kernel == in_kernel) {
        had.events |= events;
    } else if let Some(place) = stash.events.get_mut(len) {
        *place = Stashed { events, data, in_kernel };
        e.stash_len.set(len as u32 + 1);
    }
}

fn len(e: &Epoll) -> usize {
    e.stash_len.get() as usize
}

/// The stashed events: event bits and the application's value.
pub(super) fn all(e: &Epoll) -> impl Iterator<Item = (u32, u64)> + use<> {
    let events = e.stash.lock().events;
    events.into_iter().take(len(e)).map(|stashed| (stashed.events, stashed.data))
}

/// Keeps the events for which `wanted` is true, in order.
fn retain(e: &Epoll, stash: &mut Stash, mut wanted: impl FnMut(usize, Stashed) -> bool) {
    let mut left = 0;
    for i in 0..len(e) {
        if let Some(stashed) = stash.events.get(i).copied()
            && wanted(i, stashed)
            && let Some(place) = stash.events.get_mut(left)
        {
            *place = stashed;
            left += 1;
        }
    }
    e.stash_len.set(left as u32);
    stash.queueable &= left != 0;
}

/// Reports the stashed events. Returns their number, and whether one of the registrations may be in the ready queue by
/// now: no call may report a registration twice, so the queue is then left for the next call.
pub(super) fn unstash(e: &'static Epoll, call: &Call) -> (usize, bool) {
    // Checked without the lock first, since hardly any instance ever has a stashed event. One that comes at this moment
    // is reported by the next call.
    if len(e) == 0 {
        return (0, false);
    }
    // The lock keeps two threads from reporting the same event.
    let mut stash = e.stash.lock();
    let n = len(e).min(call.max as usize);
    let queueable = stash.queueable;
    retain(e, &mut stash, |i, stashed| {
        if i < n {
            call.put(i, stashed.events, stashed.data);
        }
        i >= n
    });
    (n, n > 0 && queueable)
}

/// Drops the stashed events of a registration. To be called before it is removed or changed; the kernel reports a
/// changed one anew.
pub(super) fn forget(e: &Epoll, reg: &'static Registration) {
    if len(e) == 0 {
        return;
    }
    let ours = [cookie(Kind::Candidate, reg), cookie(Kind::Foreign, reg)];
    drop_kernel_data(e, &ours);
    if reg.source().is_in_kernels_set() {
        drop_kernel_data(e, &[reg.data.get()]);
    }
}

/// Drops the stashed events of descriptor `fd`, whose registration only the kernel has.
pub(super) fn forget_descriptor(e: &Epoll, fd: i32) {
    if len(e) != 0
        && let Ok(Some(in_kernel)) = registered_data(e.fd(), fd)
    {
        drop_kernel_data(e, &[in_kernel]);
    }
}

#[cold]
fn drop_kernel_data(e: &Epoll, gone: &[u64]) {
    retain(e, &mut e.stash.lock(), |_, stashed| !gone.contains(&stashed.in_kernel));
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
