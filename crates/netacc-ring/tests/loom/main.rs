//! Models of the ring and of the sleep/wake protocol, checked over all interleavings and reorderings that the memory
//! model allows (up to a number of preemptions). The windows are a few bytes here, see `SMALL`.
//!
//! ```sh
//! RUSTFLAGS="--cfg loom" cargo test -p netacc-ring --release --test loom
//! ```
//!
//! "Mutation" in the comments names changes of the code that make a model fail; each was tried.
#![cfg(loom)]
#![allow(unsafe_code)]
// Every unsafe block below is an access to a cell, which loom checks.
#![allow(clippy::undocumented_unsafe_blocks)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod holders;
mod left;
mod pipe;
mod slots;
mod stream;
mod turn;
mod wake;

use netacc_ring::sync::*;

/// Serialises the tests, since they share the switch that selects the mapping of `SeqCst`.
static MAPPING: std::sync::Mutex<()> = std::sync::Mutex::new(());

/// Checks `f` under both mappings of `SeqCst`.
pub(crate) fn model(preemptions: usize, f: impl Fn() + Sync + Send + 'static) {
    let f = std::sync::Arc::new(f);
    let _one = MAPPING.lock().unwrap_or_else(|e| e.into_inner());
    for after in [false, true] {
        FENCE_AFTER.store(after, std::sync::atomic::Ordering::Relaxed);
        let mut b = loom::model::Builder::new();
        b.preemption_bound = Some(preemptions);
        b.max_branches = 10_000;
        let f = f.clone();
        b.check(move || f());
    }
}

pub(crate) fn flag(b: &AtomicU32) -> bool {
    b.load(Ordering::SeqCst) != 0
}
