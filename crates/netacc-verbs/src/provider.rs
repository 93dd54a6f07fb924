//! The drivers of this host's devices, opened before libibverbs looks for them.
//!
//! libibverbs opens all drivers that are installed, a dozen and a half, as soon as it finds a device that none of the
//! drivers that it knows is for; that takes most of the time of a first connection. A driver that is open already
//! registers itself with libibverbs and is found first. So this module asks the kernel which drivers its devices need.
//! If that is not known for each of them, it opens nothing, and libibverbs opens all drivers as always.
//!
//! # Safety
//! The files are those that libibverbs would open; for their constructors see [`crate::load`].
#![allow(unsafe_code)]

use core::ffi::{CStr, c_void};
use core::mem::MaybeUninit;
use netacc_sys::{linker, raw, reserved_fds};
use rustix::fs::{Mode, OFlags, RawDir, open};

/// The values of `enum rdma_driver_id` (rdma/ib_user_ioctl_verbs.h), with the names of rdma-core's drivers.
const NAMES: &[(u32, &str)] = &[
    (1, "mlx5"),
    (2, "mlx4"),
    (4, "cxgb4"),
    (5, "mthca"),
    (6, "bnxt_re"),
    (7, "ocrdma"),
    (9, "irdma"),
    (10, "vmw_pvrdma"),
    (11, "qedr"),
    (12, "hns"),
    (14, "rxe"),
    (15, "hfi1verbs"),
    (16, "ipathverbs"),
    (17, "efa"),
    (18, "siw"),
    (19, "erdma"),
    (20, "mana"),
];

/// The netlink protocol of RDMA, and values of `enum rdma_nldev_command`, which stand below the client's number, and of
/// `enum rdma_nldev_attr` (rdma/rdma_netlink.h).
const NETLINK_RDMA: i32 = 20;
const GET: u16 = 5 << 10 | 1;
const GET_CHARDEV: u16 = 5 << 10 | 15;
const DEV_INDEX: u16 = 1;
const CHARDEV_TYPE: u16 = 69;
const UVERBS_DRIVER_ID: u16 = 73;
/// The size of `struct nlmsghdr` in bytes.
const HEADER: usize = 16;
/// The size of `struct nlattr` in bytes, which precedes the value of an attribute.
const ATTRIBUTE: usize = 4;
/// The most different drivers that are looked for; a host with more opens them by libibverbs.
const MOST: usize = 8;

/// A byte string in room of a fixed size.
struct Text<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Text<N> {
    fn of(parts: &[&[u8]]) -> Option<Text<N>> {
        let mut text = Text { bytes: [0; N], len: 0 };
        for part in parts {
            text.bytes.get_mut(text.len..text.len + part.len())?.copy_from_slice(part);
            text.len += part.len();
        }
        Some(text)
    }

    fn get(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

/// Opens the drivers that the host's devices need. `function` is a function of libibverbs, beside whose file the
/// drivers lie.
pub(crate) fn open_needed(function: *const c_void) {
    let mut drivers = [0u32; MOST];
    let Some(count) = needed(&mut drivers) else { return };
    let Some(file) = linker::object_of(function).map(|info| info.dli_fname).filter(|file| !file.is_null()) else {
        return;
    };
    // SAFETY: the dynamic linker's name of the file ends in a NUL and lives as long as the library, which is never
    // closed.
    let file = unsafe { CStr::from_ptr(file) }.to_bytes();
    let Some(slash) = file.iter().rposition(|b| *b == b'/') else { return };
    let Some(folder) = file.get(..=slash).and_then(|dir| Text::<256>::of(&[dir, b"libibverbs/\0"])) else { return };
    for id in drivers.iter().take(count) {
        let Some((_, name)) = NAMES.iter().find(|(n, _)| n == id) else { return };
        if !is_configured(name) || open_driver(&folder, name).is_none() {
            return;
        }
    }
}

/// Whether the administrator lets libibverbs use the driver, by a file in `/etc/libibverbs.d`.
fn is_configured(name: &str) -> bool {
    let Some(path) = Text::<64>::of(&[b"/etc/libibverbs.d/", name.as_bytes(), b".driver\0"]) else { return false };
    let Ok(path) = CStr::from_bytes_with_nul(path.get()) else { return false };
    open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map(reserved_fds::drop_raw).is_ok()
}

/// Opens the driver of this name; `None` if that fails. The file's name contains the version of the interface, which
/// only libibverbs knows, so every version that is there is tried.
fn open_driver(folder: &Text<256>, name: &str) -> Option<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = open(CStr::from_bytes_with_nul(folder.get()).ok()?, flags, Mode::empty()).ok()?;
    let mut room = [MaybeUninit::<u8>::uninit(); 2048];
    let mut opened = None;
    {
        let mut entries = RawDir::new(&dir, &mut room);
        while let Some(Ok(entry)) = entries.next() {
            let file = entry.file_name().to_bytes();
            let rest = file.strip_prefix(b"lib").and_then(|f| f.strip_prefix(name.as_bytes()));
            if !rest.is_some_and(|r| r.starts_with(b"-rdmav") && r.ends_with(b".so")) {
                continue;
            }
            let folder = folder.get().strip_suffix(b"\0")?;
            let path = Text::<384>::of(&[folder, file, b"\0"])?;
            let path = CStr::from_bytes_with_nul(path.get()).ok()?;
            // A driver of another version needs a symbol that libibverbs does not have, so dlopen(3) refuses it.
            if !linker::open(path, libc::RTLD_NOW | libc::RTLD_LOCAL).is_null() {
                opened = Some(());
            }
        }
    }
    reserved_fds::drop_raw(dir);
    opened
}

/// Stores the numbers of the drivers that the devices need and returns how many there are; `None` if one is not known.
fn needed(drivers: &mut [u32; MOST]) -> Option<usize> {
    const FLAGS: i32 = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    let fd = raw::socket(libc::AF_NETLINK, FLAGS, NETLINK_RDMA).ok()?;
    let found = devices(fd).and_then(|(indices, count)| {
        let mut kinds = 0;
        for index in indices.iter().take(count) {
            let driver = driver_of(fd, *index)?;
            if !drivers.iter().take(kinds).any(|d| *d == driver) {
                *drivers.get_mut(kinds)? = driver;
                kinds += 1;
            }
        }
        Some(kinds)
    });
    let _ = raw::close(fd);
    found.filter(|kinds| *kinds > 0)
}

/// The kernel's indices of all devices, and how many there are.
fn devices(fd: i32) -> Option<([u32; 64], usize)> {
    const REQUEST_DUMP: u16 = 0x301;
    let (mut indices, mut count) = ([0u32; 64], 0);
    ask(fd, GET, REQUEST_DUMP, &[])?;
    let mut reply = [0u8; 8192];
    loop {
        let n = raw::recv(fd, reply.as_mut_ptr(), reply.len(), libc::MSG_DONTWAIT).ok()?;
        let mut rest = reply.get(..n)?;
        while let Some((kind, message, after)) = message(rest) {
            match kind {
                // NLMSG_DONE and NLMSG_ERROR.
                3 => return Some((indices, count)),
                2 => return None,
                GET => {
                    *indices.get_mut(count)? = number(attribute(message, DEV_INDEX)?)?;
                    count += 1;
                }
                _ => {}
            }
            rest = after;
        }
        if n == 0 {
            return None;
        }
    }
}

/// The driver's number of the device with this index (`RDMA_NLDEV_CMD_GET_CHARDEV`, Linux 5.3).
fn driver_of(fd: i32, index: u32) -> Option<u32> {
    const REQUEST: u16 = 1;
    let head = |len: u16, kind: u16| [len.to_ne_bytes(), kind.to_ne_bytes()];
    let (which, what) = (head(8, DEV_INDEX), head(11, CHARDEV_TYPE));
    let index = index.to_ne_bytes();
    let attributes = [which.as_flattened(), &index, what.as_flattened(), b"uverbs\0\0"];
    ask(fd, GET_CHARDEV, REQUEST, &attributes)?;
    let mut reply = [0u8; 1024];
    let n = raw::recv(fd, reply.as_mut_ptr(), reply.len(), libc::MSG_DONTWAIT).ok()?;
    let (kind, message, _) = message(reply.get(..n)?)?;
    number(attribute(message, UVERBS_DRIVER_ID).filter(|_| kind == GET_CHARDEV)?)
}

/// Sends a netlink message with these attributes.
fn ask(fd: i32, kind: u16, flags: u16, attributes: &[&[u8]]) -> Option<()> {
    let len = (HEADER + attributes.iter().map(|a| a.len()).sum::<usize>()) as u32;
    let mut request = Text::<64>::of(&[&len.to_ne_bytes(), &kind.to_ne_bytes(), &flags.to_ne_bytes(), &[0; 8]])?;
    for part in attributes {
        request = Text::of(&[request.get(), part])?;
    }
    raw::send(fd, request.get().as_ptr(), request.get().len(), 0).ok().map(drop)
}

/// Splits off the first netlink message: its type, its payload, and the bytes after it.
fn message(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let len = number(bytes)? as usize;
    let kind = u16::from_ne_bytes(*bytes.get(4..)?.first_chunk()?);
    let after = bytes.get(len.checked_next_multiple_of(4)?..).unwrap_or_default();
    Some((kind, bytes.get(HEADER..len)?, after))
}

/// The value of the first attribute of type `wanted`.
fn attribute(mut bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let len = usize::from(u16::from_ne_bytes(*bytes.first_chunk()?));
        let kind = u16::from_ne_bytes(*bytes.get(2..)?.first_chunk()?) & 0x3fff;
        let value = bytes.get(ATTRIBUTE..len)?;
        if kind == wanted {
            return Some(value);
        }
        bytes = bytes.get(len.next_multiple_of(4)..)?;
    }
}

/// The first four bytes as a number in the host's byte order.
fn number(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn attributes(list: &[(u16, &[u8])]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (kind, value) in list {
            bytes.extend((ATTRIBUTE as u16 + value.len() as u16).to_ne_bytes());
            bytes.extend(kind.to_ne_bytes());
            bytes.extend(*value);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        bytes
    }

    #[test]
    fn an_attribute_is_found_behind_others() {
        let bytes = attributes(&[(3, b"rxe0\0"), (DEV_INDEX, &7u32.to_ne_bytes()), (UVERBS_DRIVER_ID, &[14, 0, 0, 0])]);
        assert_eq!(attribute(&bytes, DEV_INDEX).and_then(number), Some(7));
        assert_eq!(attribute(&bytes, UVERBS_DRIVER_ID).and_then(number), Some(14));
        assert_eq!(attribute(&bytes, 99), None);
    }

    #[test]
    fn what_is_cut_off_is_nothing() {
        let bytes = attributes(&[(3, b"rxe0\0"), (DEV_INDEX, &7u32.to_ne_bytes())]);
        for len in 0..bytes.len() {
            assert_eq!(attribute(&bytes[..len], DEV_INDEX), None, "{len}");
        }
        // An attribute whose length is less than its own head must not make the search endless.
        assert_eq!(attribute(&[0; 64], DEV_INDEX), None);
        assert_eq!(message(&[0; 64]), None);
    }

    #[test]
    fn messages_follow_each_other() {
        let one = |kind: u16| [&20u32.to_ne_bytes()[..], &kind.to_ne_bytes(), &[0; 10], &[9; 4]].concat();
        let both = [one(GET), one(3)].concat();
        let (kind, inside, rest) = message(&both).unwrap();
        assert_eq!((kind, inside), (GET, &[9u8; 4][..]));
        assert_eq!(message(rest).map(|(kind, _, after)| (kind, after.len())), Some((3, 0)));
    }
}
