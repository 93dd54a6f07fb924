//! Atomics: those of `core`, or loom's when a model is checked (`--cfg loom`).

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(loom)]
pub use loom::sync::atomic::{Ordering, fence};
#[cfg(loom)]
pub use modelled::{AtomicU32, AtomicU64, FENCE_AFTER};

/// loom treats a `SeqCst` access as an `AcqRel` one and orders fences only. So each `SeqCst` access gets a fence,
/// before or after it: the two mappings that compilers choose from. Code that is correct in the language is correct
/// under both. Under the first such an access is *not* a fence for a weaker access that follows it, under the second
/// not for one that precedes it.
#[cfg(loom)]
mod modelled {
    use super::{Ordering, fence};
    use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

    /// The mapping in use, for all threads.
    pub static FENCE_AFTER: AtomicBool = AtomicBool::new(false);

    /// Calls `op` with the ordering that loom supports instead of `order`, between the fences that the mapping
    /// requires.
    fn ordered<T>(order: Ordering, instead: Ordering, op: impl FnOnce(Ordering) -> T) -> T {
        if order != Ordering::SeqCst {
            return op(order);
        }
        let after = FENCE_AFTER.load(Relaxed);
        if !after {
            fence(order);
        }
        let out = op(instead);
        if after {
            fence(order);
        }
        out
    }

    macro_rules! atomic {
        ($name:ident, $int:ty) => {
            /// A counterpart of the type with this name in `core`.
            #[derive(Debug, Default)]
            pub struct $name {
                value: loom::sync::atomic::$name,
                /// loom tries another order of two accesses only if one follows the other directly, and
                /// not for two loads: a load and an exchange in one thread would hide the exchange from
                /// another thread's earlier load. An exchange here beside each access shows all of them.
                touched: loom::sync::atomic::AtomicU32,
            }

            #[allow(missing_docs)]
            impl $name {
                fn touch(&self) -> &loom::sync::atomic::$name {
                    self.touched.swap(0, Ordering::Relaxed);
                    &self.value
                }

                pub fn load(&self, order: Ordering) -> $int {
                    ordered(order, Ordering::Acquire, |o| self.touch().load(o))
                }

                pub fn store(&self, v: $int, order: Ordering) {
                    ordered(order, Ordering::Release, |o| self.touch().store(v, o))
                }

                pub fn swap(&self, v: $int, order: Ordering) -> $int {
                    ordered(order, Ordering::AcqRel, |o| self.touch().swap(v, o))
                }

                pub fn fetch_or(&self, v: $int, order: Ordering) -> $int {
                    ordered(order, Ordering::AcqRel, |o| self.touch().fetch_or(v, o))
                }

                pub fn compare_exchange(&self, old: $int, new: $int, ok: Ordering, _: Ordering) -> Result<$int, $int> {
                    ordered(ok, Ordering::AcqRel, |o| self.touch().compare_exchange(old, new, o, Ordering::Relaxed))
                }
            }
        };
    }

    atomic!(AtomicU32, u32);
    atomic!(AtomicU64, u64);
}
