//! Points and lengths of time as text.

use std::time::{SystemTime, UNIX_EPOCH};

/// CLOCK_REALTIME in nanoseconds as `2026-11-30T12:34:56Z`.
#[must_use]
pub fn utc(ns: u64) -> String {
    let seconds = ns / 1_000_000_000;
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{:02}Z", second % 60)
}

/// CLOCK_REALTIME in nanoseconds.
#[must_use]
pub fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Nanoseconds as seconds, to the millisecond.
#[must_use]
pub fn seconds(ns: u64) -> f64 {
    (ns / 1_000_000) as f64 / 1000.0
}

/// A length of time in nanoseconds, in two figures that matter: `0.4s`, `59s`, `4m05s`, `3h12m`, `9d04h`.
#[must_use]
pub fn span(ns: u64) -> String {
    let whole = ns / 1_000_000_000;
    match whole {
        0..10 => format!("{}.{}s", whole, ns / 100_000_000 % 10),
        10..60 => format!("{whole}s"),
        60..3600 => format!("{}m{:02}s", whole / 60, whole % 60),
        3600..86_400 => format!("{}h{:02}m", whole / 3600, whole / 60 % 60),
        _ => format!("{}d{:02}h", whole / 86_400, whole / 3600 % 24),
    }
}

/// The date `days` after 1970-01-01.
///
/// Counts in eras of 400 years (146,097 days) that begin on 1 March, so that
/// the leap day is the last of its year.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let era = days / 146_097;
    let of_era = days % 146_097;
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans() {
        let cases = [(0.0, "0.0s"), (9.96, "9.9s"), (59.9, "59s"), (65.0, "1m05s"), (11_000.0, "3h03m")];
        for (seconds, text) in cases.into_iter().chain([(90_000.0, "1d01h")]) {
            assert_eq!(span((seconds * 1e9) as u64), text);
        }
        assert!(span(u64::MAX).starts_with("213503d"));
        assert_eq!(seconds(1_234_567_890), 1.234);
    }

    #[test]
    fn known_dates() {
        let at = |seconds: u64| utc(seconds * 1_000_000_000);
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(at(1_795_868_096), "2026-11-28T12:14:56Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00Z");
        // A hostile page may hold any number.
        assert!(utc(u64::MAX).starts_with("2554-"));
    }
}
