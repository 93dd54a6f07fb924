//! RDMA and fork(2).
//!
//! Verbs objects belong to the process that made them. A child must leave inherited ones alone, and make its own.
//! Its copies of the queues are the very pages of the parent: a request that it posts lies in the parent's
//! queue, though the kernel refuses to start it (`EACCES`). Dropping inherited objects may take them from
//! the parent, so a child forgets them (`core::mem::forget`).
//!
//! Memory that a device writes to is pinned. Where fork leaves such a page to both processes until one of
//! them writes, the parent may end up with a copy, and the device with the page that it no longer looks
//! at. There are three answers:
//!
//! - Linux 5.9 and later copies pinned ordinary pages during the fork, and splits pinned huge ones that it has made by
//!   itself; hugetlb pages follow in 5.12, and from then on [`status`] says `Unneeded` (rdma-core 32 and later asks the
//!   kernel). NetACC registers ordinary pages only, so it needs 5.9, and uses no RDMA elsewhere ([`is_safe`]). The
//!   kernel counts pages that are pinned during a fork in another thread from 5.11 on, and in 5.10's later releases;
//!   NetACC pins none then.
//! - [`init`] (`ibv_fork_init`) withholds registered pages from every child. It has to come before the
//!   first registration, makes each registration slower, and a child that touches any byte on such
//!   a page dies. **NetACC never calls it**: the pages are its own, but the children are not.
//! - [`crate::Mr::wipe_on_fork`] gives the child zeroes instead. The parent's pages stay where they are on any
//!   kernel, and no child dies.

use crate::error::{Result, check};
use crate::load::api;
use crate::sys::{IBV_FORK_ENABLED, IBV_FORK_UNNEEDED};

/// What has to be done about registered memory before a fork.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForkStatus {
    /// Registered pages are in danger; neither [`init`] nor the kernel protects them.
    Disabled,
    /// [`init`] was called.
    Enabled,
    /// The kernel copies such pages by itself.
    Unneeded,
    /// The library is too old to say.
    Unknown,
}

/// Whether the kernel or the library protects registered memory from fork (`ibv_is_fork_initialized`).
pub fn status() -> Result<ForkStatus> {
    let Some(ask) = api()?.verbs.ibv_is_fork_initialized else { return Ok(ForkStatus::Unknown) };
    // SAFETY: the function takes no argument.
    #[allow(unsafe_code)]
    Ok(match unsafe { ask() } {
        IBV_FORK_ENABLED => ForkStatus::Enabled,
        IBV_FORK_UNNEEDED => ForkStatus::Unneeded,
        _ => ForkStatus::Disabled,
    })
}

/// The oldest kernel that copies pinned ordinary pages during a fork.
pub const OLDEST_KERNEL: (u32, u32) = (5, 9);

/// Whether a process may fork while a device has ordinary pages of it registered.
pub fn is_safe() -> bool {
    match status() {
        Ok(ForkStatus::Unneeded | ForkStatus::Enabled) => true,
        // The library is too old to know, or the kernel may copy all pinned pages but those of hugetlb, for which the
        // library also says `Disabled`. The kernel's version decides.
        Ok(ForkStatus::Unknown | ForkStatus::Disabled) => {
            copies_ordinary_pages(rustix::system::uname().release().to_bytes())
        }
        Err(_) => false,
    }
}

/// Whether a kernel of this release copies pinned ordinary pages during a fork.
pub fn copies_ordinary_pages(release: &[u8]) -> bool {
    let mut numbers = release
        .split(|b| !b.is_ascii_digit())
        .map(|digits| digits.iter().fold(0u32, |n, d| n.saturating_mul(10).saturating_add(u32::from(d - b'0'))));
    numbers.next().zip(numbers.next()).is_some_and(|version| version >= OLDEST_KERNEL)
}

/// Withholds registered memory from children (`ibv_fork_init`); see the module's documentation before you call it.
pub fn init() -> Result<()> {
    // SAFETY: the function takes no argument.
    #[allow(unsafe_code)]
    check("ibv_fork_init", unsafe { (api()?.verbs.ibv_fork_init)() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_that_copy_ordinary_pages() {
        for release in ["5.9.0", "5.10.134-16.3.al8.x86_64", "5.12", "6.1.0-31-cloud-amd64", "10.0-rc1"] {
            assert!(copies_ordinary_pages(release.as_bytes()), "{release}");
        }
        for release in ["5.8.18", "4.18.0-553.el8_10.x86_64", "3.10.0", "", "5", "unknown"] {
            assert!(!copies_ordinary_pages(release.as_bytes()), "{release}");
        }
    }
}
