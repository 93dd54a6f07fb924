//! Registered memory that is counted on the stats page.

use core::ops::Deref;
use netacc_stats::{Counter, page};
use netacc_verbs::{Mr, Pd, Result};

/// Memory that is registered with a device; the stats page counts its bytes.
#[derive(Debug)]
pub(super) struct Registered(Mr);

impl Registered {
    pub(super) fn new(pd: &Pd, len: usize) -> Result<Registered> {
        let mr = Mr::register(pd, len)?;
        page().add(Counter::RegisteredBytes, mr.len() as u64);
        page().count(Counter::RegisteredRegions);
        Ok(Registered(mr))
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        page().sub(Counter::RegisteredBytes, self.0.len() as u64);
        page().sub(Counter::RegisteredRegions, 1);
    }
}

impl Deref for Registered {
    type Target = Mr;

    fn deref(&self) -> &Mr {
        &self.0
    }
}
