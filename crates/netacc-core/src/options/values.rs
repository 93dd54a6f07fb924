//! The values of options in the program's memory.

use core::ffi::c_void;
use libc::{IPPROTO_IP, SOL_SOCKET};
use netacc_sys::errno::{Errno, Result};
use netacc_sys::user;

/// Reads the value of an option as the kernel does: it checks the length first, then the memory.
///
/// # Safety
/// `p` points to the application's value of `len` bytes.
#[allow(unsafe_code)]
pub(super) unsafe fn value<T: Copy>(p: *const c_void, len: u32) -> Result<T> {
    let size = size_of::<T>();
    if (len as usize) < size || len > i32::MAX as u32 {
        return Err(Errno::INVAL);
    }
    if !user::readable(p, size) {
        return Err(Errno::FAULT);
    }
    // SAFETY: the whole value can be read and may be unaligned; `T` consists of ints, for which any bytes are valid.
    Ok(unsafe { core::ptr::read_unaligned(p.cast::<T>()) })
}

/// Writes a value, truncated to the room of the caller's buffer.
///
/// # Safety
/// `src` is valid for `n` bytes; `val` and `len` are the application's, `len` in memory that can be written.
#[allow(unsafe_code)]
pub(super) unsafe fn give(src: *const u8, n: usize, val: *mut c_void, len: *mut u32) -> Result<()> {
    // SAFETY: the caller guarantees valid pointers; at most `*len` bytes are written, into memory that was found
    // writable.
    unsafe {
        let room = core::ptr::read_unaligned(len) as usize;
        let n = n.min(room);
        if !user::writable(val, n) {
            return Err(Errno::FAULT);
        }
        core::ptr::copy_nonoverlapping(src, val.cast::<u8>(), n);
        core::ptr::write_unaligned(len, n as u32);
    }
    Ok(())
}

/// Writes an int as the kernel does: with less room than an int needs, a small value of the IP level is one byte
/// (ip(7)); a rate is a 64-bit number where there is room for one (socket(7)).
///
/// # Safety
/// `val` and `len` are the application's, `len` in memory that can be written.
#[allow(unsafe_code)]
pub(super) unsafe fn give_int((level, name): (i32, i32), v: i32, val: *mut c_void, len: *mut u32) -> Result<()> {
    // SAFETY: the caller guarantees pointers that are valid for the given lengths.
    unsafe {
        let room = core::ptr::read_unaligned(len);
        match u8::try_from(v) {
            Ok(byte) if level == IPPROTO_IP && room < 4 => give(&raw const byte, 1, val, len),
            _ if (level, name) == (SOL_SOCKET, libc::SO_MAX_PACING_RATE) && room >= 8 => {
                let rate = if v == -1 { u64::MAX } else { u64::from(v.cast_unsigned()) };
                give((&raw const rate).cast(), 8, val, len)
            }
            _ => give((&raw const v).cast(), 4, val, len),
        }
    }
}
