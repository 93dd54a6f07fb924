//! The rules in force, and how the process has answered the last request to load them anew (`netacc_ctl reload`).
//!
//! The rules are replaced as a whole while other processes read the page: their texts are lines of the configuration,
//! their counts are in `Head::rules`, and the version here tells a reader whether it has seen parts of two sets.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64, fence};

use crate::table::numbered;

numbered! {
    /// What became of a request to load the rules anew.
    pub enum Reloaded {
        /// The rules of the file are in force.
        Loaded = 1, "loaded";
        /// The process cannot read the file; the detail is the errno. Its rules stay.
        Unreadable = 2, "unreadable";
        /// The file has a mistake; the detail is the line, 0 for the file as a whole. The rules stay.
        Mistaken = 3, "mistaken";
        /// The process must make no system call on its own account (seccomp). Its rules stay.
        Confined = 4, "confined";
    }
}

/// The words about the rules. Only the process writes them.
#[derive(Debug)]
#[repr(C)]
pub struct RulesInForce {
    /// When the rules were loaded: CLOCK_REALTIME in nanoseconds. 0: this version of the library loads them only at its
    /// start.
    loaded_ns: AtomicU64,
    /// Twice the number of the rule set; one less while that set is taking the place of the one before it.
    version: AtomicU32,
    /// The count of the request that was answered last ([`Request::reload`](crate::ControlRequest)).
    answered: AtomicU32,
    /// A [`Reloaded`]: the answer.
    answer: AtomicU32,
    /// What the answer says besides.
    detail: AtomicU32,
}

/// Where the words are within [`RulesInForce`], for the reader.
#[doc(hidden)]
#[allow(missing_docs, reason = "the fields are described where they are declared")]
pub mod at {
    use super::RulesInForce;
    use core::mem::offset_of;

    pub const LOADED: usize = offset_of!(RulesInForce, loaded_ns);
    pub const VERSION: usize = offset_of!(RulesInForce, version);
    pub const ANSWERED: usize = offset_of!(RulesInForce, answered);
    pub const ANSWER: usize = offset_of!(RulesInForce, answer);
    pub const DETAIL: usize = offset_of!(RulesInForce, detail);
}

/// The number of a rule within its set, with the number of the set, as a socket's entry holds it: counted from 1 in the
/// lower half, so that 0 stands for no rule.
pub(crate) fn name_of(set: u32, rule: usize) -> u32 {
    u16::try_from(rule).ok().and_then(|rule| rule.checked_add(1)).map_or(0, |rule| set << 16 | u32::from(rule))
}

/// The number, counted from 0, of the rule that [`name_of`] has named, if it is in the set of this version of the page.
#[must_use]
pub fn rule_of(name: u32, version: u32) -> Option<u32> {
    let (set, rule) = (name >> 16, name & 0xffff);
    rule.checked_sub(1).filter(|_| set == set_of(version) & 0xffff)
}

/// The number of the rule set at a version of the page. While a set is taking the place of another, this is its number.
const fn set_of(version: u32) -> u32 {
    version.wrapping_add(1) / 2
}

impl RulesInForce {
    pub(crate) const fn new() -> Self {
        Self {
            loaded_ns: AtomicU64::new(0),
            version: AtomicU32::new(0),
            answered: AtomicU32::new(0),
            answer: AtomicU32::new(0),
            detail: AtomicU32::new(0),
        }
    }

    /// Says that the set with this number takes the place of the one before it from here on.
    pub(crate) fn begin(&self, set: u32) {
        self.version.store(set.wrapping_mul(2).wrapping_sub(1), Relaxed);
        // Keeps the stores of the set behind the odd version; pairs with the reader, which reads it again after them.
        fence(Release);
    }

    /// Says that the page has all of the set with this number.
    pub(crate) fn end(&self, set: u32, now_ns: u64) {
        self.loaded_ns.store(now_ns, Relaxed);
        // Release: the even version is seen only with all of the set.
        self.version.store(set.wrapping_mul(2), Release);
    }

    /// Stores the answer to a request with this count.
    pub fn answer(&self, count: u8, answer: Reloaded, detail: u32) {
        self.answer.store(answer as u32, Relaxed);
        self.detail.store(detail, Relaxed);
        // Release: a reader that sees the count sees its answer.
        self.answered.store(count.into(), Release);
    }

    /// Whether the page has all of this rule set, and nothing of another.
    #[must_use]
    pub fn has(&self, set: u32) -> bool {
        self.version.load(Acquire) == set.wrapping_mul(2)
    }

    /// Whether decisions of this rule set are counted now.
    pub(crate) fn is_in_force(&self, set: u32) -> bool {
        // Relaxed: a decision that was made while its set was replaced may be counted or not.
        set_of(self.version.load(Relaxed)) == set
    }

    /// Takes over what the page of the process that forked says of its rules, after their texts: the parent may be
    /// replacing them at this moment. The child has answered no request.
    pub(crate) fn inherit(&self, from: &Self) {
        self.loaded_ns.store(from.loaded_ns.load(Relaxed), Relaxed);
        // Keeps the loads of the texts before that of the version; pairs with the fence in `begin`.
        fence(Acquire);
        self.version.store(from.version.load(Acquire), Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_known_only_within_its_set() {
        for set in [0, 1, 7, 0xffff, 0x1_0000] {
            let version = set * 2;
            assert_eq!(rule_of(name_of(set, 0), version), Some(0));
            assert_eq!(rule_of(name_of(set, 63), version), Some(63));
            assert_eq!(rule_of(name_of(set, 63), version + 2), None);
            // While the next set comes, the one before it is gone already.
            assert_eq!(rule_of(name_of(set, 63), version + 1), None);
            assert_eq!(rule_of(name_of(set + 1, 63), version + 1), Some(63));
        }
        assert_eq!(rule_of(0, 0), None);
        assert_eq!(name_of(3, usize::MAX), 0);
    }

    #[test]
    fn the_page_of_an_older_library_names_rules_without_a_set() {
        assert_eq!(rule_of(5, 0), Some(4));
    }
}
