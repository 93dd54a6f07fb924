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

/// The devices that the host has at one moment (`ibv_get_device_list`).
#[derive(Debug)]
pub struct DeviceList {
    api: &'static Api,
    list: NonNull<*mut ibv_device>,
    len: usize,
}

impl DeviceList {
    /// Asks for the devices. A host without a device gives [`Error::NoDevice`], not an empty list.
    pub fn get() -> Result<DeviceList> {
        let api = api()?;
        let mut len: c_int = 0;
        // SAFETY: `len` is room for the number of devices.
        let list = unsafe { (api.verbs.ibv_get_device_list)(&raw mut len) };
        let list = NonNull::new(list).ok_or_else(|| Error::last("ibv_get_device_list"))?;
        let found = DeviceList { api, list, len: usize::try_from(len).unwrap_or(0) };
        // The kernel may know a device for which no provider is installed.
        if found.len == 0 { Err(Error::NoDevice) } else { Ok(found) }
    }

    /// Iterates over the devices.
    pub fn iter(&self) -> impl Iterator<Item = DeviceRef<'_>> {
        // SAFETY: the library's array has `len` pointers to devices and lives until we free it in `drop`.
        let devices = unsafe { core::slice::from_raw_parts(self.list.as_ptr(), self.len) };
        devices.iter().filter_map(|p| NonNull::new(*p)).map(|device| DeviceRef { device, list: self })
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: the list came from ibv_get_device_list; contexts that were opened from it hold their device
        // themselves.
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

    /// The protocol by which its messages travel.
    pub fn transport(&self) -> Transport {
        // SAFETY: the device lives as long as the list, which we borrow.
        Transport::from_raw(unsafe { (*self.device.as_ptr()).transport_type })
    }

    /// Opens the device (`ibv_open_device`).
    pub fn open(&self) -> Result<Context> {
        // SAFETY: the device lives as long as the list, which we borrow.
        let raw = unsafe { (self.list.api.verbs.ibv_open_device)(self.device.as_ptr()) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last("ibv_open_device"))?;
        Ok(Context::opened(self.list.api, raw))
    }
}
