//! Without an RDMA device the error says in a sentence what this host lacks, and no library is opened. With a device
//! (in the virtual machine) the libraries are opened.
#![allow(missing_docs, reason = "a test")]

use netacc_verbs::{DeviceList, Error, EventChannel};

fn mapped(library: &str) -> bool {
    std::fs::read_to_string("/proc/self/maps").is_ok_and(|maps| maps.contains(library))
}

fn devices_in_sysfs() -> usize {
    let entries = std::fs::read_dir("/sys/class/infiniband_verbs").into_iter().flatten();
    entries.filter(|e| e.as_ref().is_ok_and(|e| e.file_name().to_string_lossy().starts_with("uverbs"))).count()
}

#[test]
fn libraries_are_opened_only_where_there_is_a_device() {
    assert!(!mapped("libibverbs"), "linked or opened before it was asked for");
    match DeviceList::get() {
        Ok(list) => {
            assert_eq!(list.iter().count(), devices_in_sysfs());
            assert!(mapped("libibverbs") && mapped("librdmacm"));
            EventChannel::create().unwrap();
        }
        Err(error @ (Error::NoDevice | Error::NoKernelSupport)) => {
            assert_eq!(devices_in_sysfs(), 0);
            assert!(!mapped("libibverbs"), "opened for nothing");
            assert_eq!(EventChannel::create().unwrap_err(), error);
            assert!(error.to_string().contains("/sys/class/infiniband_verbs"), "{error}");
        }
        Err(error) => panic!("{error}"),
    }
}
