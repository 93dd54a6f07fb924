//! The devices of this host.
//!
//! # Safety
//! The list and the devices on it are valid until the list is freed, which is when [`DeviceList`] is
//! dropped; a [`DeviceRef`] borrows it.
#![allow(unsafe_code)]

use crate::context::{Context, Transport};
use crate::error::{Error, Result};
use crate::load::{Api, api, lossy};
use crate::sys::ibv_device;
use core::ffi::{CStr, c_int};
use core::ptr::NonNull;

/// The devices there are at one moment (`ibv_get_device_list`).
#[derive(Debug)]
pub struct DeviceList {
    api: &'static Api,
    list: NonNull<*mut ibv_device>,
    len: usize,
}

impl DeviceList {
    /// Asks for them. A host without a device gets an error that says so, not an empty list.
    pub fn get() -> Result<DeviceList> {
        let api = api()?;
        let mut len: c_int = 0;
        // SAFETY: a place for the number.
        let list = unsafe { (api.verbs.ibv_get_device_list)(&raw mut len) };
        let list = NonNull::new(list).ok_or_else(|| Error::last("ibv_get_device_list"))?;
        let found = DeviceList { api, list, len: usize::try_from(len).unwrap_or(0) };
        // The kernel may know a device for which no provider is installed.
        if found.len == 0 { Err(Error::NoDevice) } else { Ok(found) }
    }

    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = DeviceRef<'_>> {
        // SAFETY: the library's array of `len` pointers to devices.
        let devices = unsafe { core::slice::from_raw_parts(self.list.as_ptr(), self.len) };
        devices.iter().filter_map(|p| NonNull::new(*p)).map(|device| DeviceRef { device, list: self })
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: got from ibv_get_device_list; contexts opened from it hold their device themselves.
        unsafe { (self.api.verbs.ibv_free_device_list)(self.list.as_ptr()) }
    }
}

/// A device on a list.
#[derive(Clone, Copy, Debug)]
pub struct DeviceRef<'a> {
    device: NonNull<ibv_device>,
    list: &'a DeviceList,
}

impl DeviceRef<'_> {
    /// Its name, as in `/sys/class/infiniband`.
    pub fn name(&self) -> &str {
        // SAFETY: the library terminates the name within its array.
        lossy(unsafe { CStr::from_ptr((*self.device.as_ptr()).name.as_ptr()) })
    }

    /// What carries its messages.
    pub fn transport(&self) -> Transport {
        // SAFETY: a device of the list.
        Transport::from_raw(unsafe { (*self.device.as_ptr()).transport_type })
    }

    /// Opens it (`ibv_open_device`).
    pub fn open(&self) -> Result<Context> {
        // SAFETY: a device of the list.
        let raw = unsafe { (self.list.api.verbs.ibv_open_device)(self.device.as_ptr()) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last("ibv_open_device"))?;
        Ok(Context::opened(self.list.api, raw))
    }
}
