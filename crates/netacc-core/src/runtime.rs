//! The runtime of a process, from its first TCP socket on: configuration and stats page.

use crate::config_file::ConfigFile;
use crate::rule_table::RuleTable;
use alloc::boxed::Box;
use core::sync::atomic::{AtomicI32, Ordering};
use netacc_conf::{Call, Choice, Config, Rules, Transports};
use netacc_stats::{Reason, SockEntry, page};
use netacc_sys::{AtomicRef, SharedCell, raw, reserved_fds, time};
use netacc_transport::shm::budget;
use rustix::fd::OwnedFd;

/// The process-wide state, made once.
#[derive(Debug)]
pub struct Runtime {
    /// The values of the keys. The rules are in [`RULES`], since they alone may change.
    pub conf: Config,
    /// Where the configuration came from.
    pub(crate) file: ConfigFile,
    /// State of the random generator for NACC_CONNECT_RDMA_PERCENT.
    random: SharedCell<u64>,
}

static RUNTIME: AtomicRef<Runtime> = AtomicRef::none();

/// The rules of this program.
static RULES: RuleTable = RuleTable::new();

/// The runtime, if there is one.
#[inline]
pub fn get() -> Option<&'static Runtime> {
    RUNTIME.load()
}

/// The descriptor of our stats page (+ 1).
static PAGE: AtomicI32 = AtomicI32::new(0);

/// Keeps the descriptor by which readers find the page, as long as the process lives.
pub(crate) fn keep_page(fd: OwnedFd) {
    if let Ok(fd) = reserved_fds::adopt(fd) {
        PAGE.store(fd + 1, Ordering::Relaxed);
    }
}

/// Makes a new stats page in the child of a fork, since two processes must not write to one page.
pub fn after_fork(live: impl IntoIterator<Item = i32>) {
    if get().is_none() {
        return;
    }
    let parents = PAGE.swap(0, Ordering::Relaxed);
    if let Ok(fd) = netacc_stats::reinit_after_fork(raw::getpid(), live) {
        keep_page(fd);
    }
    if parents != 0 {
        reserved_fds::close(parents - 1);
    }
}

impl Runtime {
    /// Makes a runtime with this configuration, which is never freed, and tells the transports of it.
    pub(crate) fn new(conf: Config, file: ConfigFile, seed: u64) -> &'static Runtime {
        budget::configure(u64::from(conf.window_memory) << 20);
        Box::leak(Box::new(Runtime { conf, file, random: SharedCell::<u64>::new(seed | 1) }))
    }

    /// Puts these rules in force, and shows them and the configuration on the statistics page. One thread at a time may
    /// do that.
    pub(crate) fn load(&self, rules: &Rules) {
        let set = RULES.number().wrapping_add(1);
        let text = self.file.page_text(&self.conf, rules);
        page().replace_rules(set, time::realtime(), &text, || RULES.replace(set, rules.matchers()));
    }

    /// Whether there is a rule for this program.
    pub(crate) fn has_rules() -> bool {
        RULES.search(|mut rules| rules.next().is_some()).0
    }

    /// Whether the statistics page shows the rules in force. In the child of a fork it may not, if another thread of
    /// the parent was just replacing them.
    pub(crate) fn shows_rules() -> bool {
        page().rules().has(RULES.number())
    }

    /// Makes this the runtime of the process.
    pub(crate) fn publish(&'static self) {
        RUNTIME.store(Some(self));
    }

    /// What the rules and `NACC_ENABLE_RDMA_DEFAULT` permit for a call, and the number of the rule set.
    fn decide(&self, call: Call) -> (Choice, u32) {
        RULES.search(|rules| netacc_conf::choose(rules, call, self.conf.default_transports()))
    }

    /// What the configuration permits for a listener or a connect. The rule that decides is counted.
    pub fn choose(&self, call: Call) -> Choice {
        let (choice, set) = self.decide(call);
        if let Some(rule) = choice.rule {
            page().rule_decided(set, rule);
        }
        choice
    }

    /// What [`Runtime::choose`] finds, without a count.
    pub(crate) fn look(&self, call: Call) -> Choice {
        self.decide(call).0
    }

    /// What the configuration permits for a call about which [`Runtime::choose`] has been asked already.
    pub fn permitted(&self, call: Call) -> Transports {
        self.look(call).transports
    }

    /// Shows on the statistics page which rule decided about the socket, if one did.
    pub fn show_rule(&self, entry: &SockEntry, call: Call) {
        let (choice, set) = self.decide(call);
        entry.set_rule(choice.rule.map(|rule| (set, rule)));
    }

    /// Whether any listener or connection of the program may use a faster transport than kernel TCP.
    pub fn accelerates(&self) -> bool {
        RULES.search(|rules| netacc_conf::accelerates(rules, self.conf.default_transports())).0
    }

    /// Draws for one connection: true with the configured probability.
    pub fn draw(&self) -> bool {
        let percent = u64::from(self.conf.connect_rdma_percent);
        if percent >= 100 {
            return true;
        }
        // xorshift64: any spread will do, and two threads that draw the same number do no harm.
        let mut x = self.random.get();
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.random.set(x);
        (x >> 33) % 100 < percent
    }
}

/// Why a listener or connection stays on kernel TCP for which no other transport is permitted.
pub fn forbidden(choice: Choice) -> Reason {
    if choice.rule.is_some() { Reason::Rule } else { Reason::Disabled }
}
