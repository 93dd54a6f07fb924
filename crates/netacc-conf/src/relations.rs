//! The relations between keys, which can be checked only after every source has been applied.

use alloc::string::{String, ToString};
use alloc::{format, vec::Vec};

use crate::diagnostic::{Diagnostic, Source};
use crate::keys::{Config, KEYS, Key, Relation};
use crate::value::{Kind, LogLevel, Value};

impl Config {
    /// Checks the relations between keys. It must be called after all sources have been applied.
    ///
    /// A value that does not fit is replaced by the nearest permitted one and reported. A value that the user did not
    /// choose is replaced without a report: a default, or a line that repeats the default while a source of higher
    /// priority (such as `netacc_run -s`) changed the key on which it depends.
    pub fn finish(&mut self, diags: &mut Vec<Diagnostic>) {
        self.debug_talks();
        for (at, key) in KEYS.iter().enumerate() {
            let Relation::PowerOfTwoTimes(base_name) = key.relation else {
                continue;
            };
            let Some(base_at) = self.position(base_name) else {
                continue;
            };
            let Some(base_key) = KEYS.get(base_at) else {
                continue;
            };
            let (Value::Int(value), Value::Int(base)) = (key.value(self), base_key.value(self)) else {
                continue;
            };
            if multiples(key, base).any(|permitted| permitted == value) {
                continue;
            }
            let Some(nearest) = multiples(key, base).min_by_key(|m| m.abs_diff(value)) else {
                continue;
            };
            let source = self.source(key.name).unwrap_or(Source::Default);
            let base_source = self.source(base_name).unwrap_or(Source::Default);
            let is_default = value.to_string() == key.default_text();
            (key.set)(self, Value::Int(nearest));
            if source == Source::Default || (is_default && source.rank() < base_source.rank()) {
                self.set_source(at, base_source);
                continue;
            }
            let message = format!(
                "{value} is not {base_name} ({base}, {}) times a power of two; allowed: {}; using {nearest}",
                base_source.describe(&self.file),
                listed(multiples(key, base)),
            );
            self.report(source, key.name, message, diags);
        }
    }

    /// Makes debug mode log from DEBUG on, unless a source of higher priority has set another level.
    fn debug_talks(&mut self) {
        const LEVEL: &str = "NACC_LOG_LEVEL";
        let source = |name| self.source(name).unwrap_or(Source::Default);
        let (debug, level) = (source("NACC_DEBUG"), source(LEVEL));
        if self.debug
            && self.log_level > LogLevel::Debug
            && debug.rank() >= level.rank()
            && let Some(at) = self.position(LEVEL)
        {
            self.log_level = LogLevel::Debug;
            self.set_source(at, debug);
        }
    }

    /// Whether every value is in its range and every relation holds, which is always so after [`Config::finish`].
    pub fn is_valid(&self) -> bool {
        KEYS.iter().all(|key| {
            let value = key.value(self);
            let in_range = crate::check_value(key.name, value.to_string().as_bytes()).is_ok();
            let kept = match (key.relation, value) {
                (Relation::PowerOfTwoTimes(base), Value::Int(value)) => crate::key(base)
                    .map(|base| base.value(self))
                    .is_some_and(|base| matches!(base, Value::Int(base) if multiples(key, base).any(|m| m == value))),
                _ => true,
            };
            in_range && kept
        })
    }
}

/// The values of `key` that are `base` times a power of two and in its range.
fn multiples(key: &Key, base: i64) -> impl Iterator<Item = i64> {
    let (min, max) = match key.kind {
        Kind::Int { min, max } => (min, max),
        _ => (1, 0),
    };
    core::iter::successors(Some(base), |m| m.checked_mul(2))
        .take_while(move |m| *m > 0 && *m <= max)
        .filter(move |m| *m >= min)
}

/// A list of the permitted values: of many, the first three and the last.
fn listed(values: impl Iterator<Item = i64>) -> String {
    let values: Vec<String> = values.map(|value| value.to_string()).collect();
    match values.as_slice() {
        [a, b, c, _, .., last] => format!("{a}, {b}, {c}, ... {last}"),
        few => few.join(", "),
    }
}
