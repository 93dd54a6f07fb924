//! Calls that give a socket to a part of the kernel: file systems over a connection, BPF maps of sockets. It has to be
//! a real kernel socket, since a placeholder has no connection. (A network block device gets its socket by ioctl(2),
//! see `netacc_core::conn::control`.)

use core::ffi::{c_char, c_int, c_uint, c_ulong, c_void};
use netacc_core::fd::table;
use netacc_core::switch::demote;
use netacc_stats::Reason;
use netacc_sys::{raw, user};

fn give(fd: c_int) {
    let _ = demote::by_number(fd, Reason::Unsupported);
}

/// Demotes the descriptor that an option of mount(2) names: 9p's `rfdno` and `wfdno`, `fd` of other file systems.
fn option(text: &[u8]) {
    let mut parts = text.splitn(2, |b| *b == b'=');
    let (Some(key), Some(value)) = (parts.next(), parts.next()) else { return };
    if (key.ends_with(b"fdno") || key == b"fd")
        && let Some(fd) = core::str::from_utf8(value).ok().and_then(|v| v.parse().ok())
    {
        give(fd);
    }
}

exports! {
    /// mount(2): options are text in most file systems, and bytes of any kind in some.
    fn mount(
        source: *const c_char,
        target: *const c_char,
        kind: *const c_char,
        flags: c_ulong,
        data: *const c_void,
    ) -> c_int {
        // SAFETY: the application calls under the function's own contract; 9p's options are a string.
        unsafe {
            if user::text(kind).is_some_and(|kind| kind == c"9p")
                && let Some(options) = user::text(data.cast())
            {
                visit!(mount(source, target, kind, flags, data));
                options.to_bytes().split(|b| *b == b',').for_each(option);
            }
        }
        call_next!(mount(
            source => *const c_char, target => *const c_char, kind => *const c_char, flags => c_ulong, data => *const c_void
        ) -> c_int)
    }

    /// pidfd_getfd(2), by which a process may duplicate a descriptor of its own.
    fn pidfd_getfd(pidfd: c_int, fd: c_int, flags: c_uint) -> c_int {
        {
            visit!(pidfd_getfd(pidfd, fd, flags));
            give(fd);
        }
        call_next!(pidfd_getfd(pidfd => c_int, fd => c_int, flags => c_uint) -> c_int)
    }
}

/// fsconfig(2), by libc's function or by syscall(2): it takes the options of mount(2) one by one.
///
/// # Safety
/// The arguments are those of the call.
pub unsafe fn configured(command: usize, key: *const c_char, value: *const c_char, number: c_int) {
    const SET_STRING: usize = 1;
    const SET_FD: usize = 5;
    match command {
        SET_FD => give(number),
        SET_STRING => {
            // SAFETY: the caller guarantees the call's arguments, and both are strings for this command.
            let (key, value) = unsafe { (user::text(key), user::text(value)) };
            if key.is_some_and(|key| key.to_bytes().ends_with(b"fdno"))
                && let Some(fd) = value.and_then(|v| v.to_str().ok()?.parse().ok())
            {
                give(fd);
            }
        }
        _ => {}
    }
}

exports! {
    /// fsconfig(2).
    fn fsconfig(
        fs: c_int,
        command: c_int,
        key: *const c_char,
        value: *const c_void,
        number: c_int,
    ) -> c_int {
        {
            visit!(fsconfig(fs, command, key, value, number));
            // SAFETY: the application calls under the function's own contract.
            unsafe { configured(command as usize, key, value.cast(), number) };
        }
        call_next!(fsconfig(
            fs => c_int, command => c_int, key => *const c_char, value => *const c_void, number => c_int
        ) -> c_int)
    }
}

/// The beginning of what bpf(2) takes for BPF_MAP_UPDATE_ELEM (linux/bpf.h).
#[repr(C)]
#[derive(Clone, Copy)]
struct Update {
    map: u32,
    key: u64,
    value: u64,
}

/// Whether `map` has one of the types that hold sockets: BPF_MAP_TYPE_SOCKMAP, SOCKHASH or REUSEPORT_SOCKARRAY.
fn holds_sockets(map: u32) -> bool {
    const OBJ_GET_INFO_BY_FD: usize = 15;
    // The first word of `struct bpf_map_info` is the map's type.
    let mut info = [0u32; 2];
    let ask: [u64; 2] = [u64::from(map) | (size_of_val(&info) as u64) << 32, (&raw mut info) as u64];
    let args = [OBJ_GET_INFO_BY_FD, (&raw const ask) as usize, size_of_val(&ask), 0, 0, 0];
    // SAFETY: the kernel writes at most as many bytes as `ask` says are there.
    let r = unsafe { raw::syscall6(libc::SYS_bpf, args) };
    let [kind, _] = info;
    r == 0 && matches!(kind, 15 | 18 | 20)
}

/// bpf(2) by syscall(2), as libbpf calls it, which may put a socket into a map.
///
/// # Safety
/// The arguments are those of the call.
pub unsafe fn mapped(command: usize, what: *const c_void, size: usize) {
    const MAP_UPDATE_ELEM: usize = 2;
    if command != MAP_UPDATE_ELEM || size < size_of::<Update>() {
        return;
    }
    // SAFETY: numbers, which any bytes are; a value in a map of sockets has at least four of them.
    unsafe {
        if let Some(update) = user::load(what.cast::<Update>())
            && holds_sockets(update.map)
            && let Some(fd) = user::load(update.value as *const c_int)
            && table::knows(fd)
        {
            give(fd);
        }
    }
}
