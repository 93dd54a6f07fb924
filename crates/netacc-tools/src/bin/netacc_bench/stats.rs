//! Medians, spread, and how numbers are written for people.

use serde::Serialize;

/// One figure over all rounds that count.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Summary {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
    pub(crate) rounds: usize,
}

impl Summary {
    /// `None` without any value.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let rounds = values.len();
        let (lower, upper) = (*values.get((rounds - 1) / 2)?, *values.get(rounds / 2)?);
        Some(Self { median: f64::midpoint(lower, upper), min, max, rounds })
    }

    /// Half the way from the lowest to the highest round, as a share of the median; one round tells nothing of that.
    pub(crate) fn spread(&self) -> Option<f64> {
        (self.rounds > 1 && self.median.abs() > 1e-9).then(|| (self.max - self.min) / 2.0 / self.median.abs())
    }
}

/// `±3%`, in at most five characters.
pub(crate) fn percent(share: Option<f64>) -> String {
    match share {
        None => "-".into(),
        Some(share) if share * 100.0 >= 999.5 => ">999%".into(),
        Some(share) => format!("±{:.0}%", share * 100.0),
    }
}

/// A time given in microseconds, in at most five characters.
pub(crate) fn time(us: Option<f64>) -> String {
    match us {
        None => "-".into(),
        Some(us) if us < 10.0 => format!("{us:.2}"),
        Some(us) if us < 100.0 => format!("{us:.1}"),
        Some(us) if us < 99_999.5 => format!("{us:.0}"),
        Some(us) if us < 999_500.0 => format!("{:.0}ms", us / 1e3),
        Some(us) if us < 9_995_000.0 => format!("{:.2}s", us / 1e6),
        Some(us) if us < 99_950_000.0 => format!("{:.1}s", us / 1e6),
        Some(us) => format!("{:.0}s", us / 1e6),
    }
}

/// How many in a second, in at most nine characters.
pub(crate) fn rate(value: Option<f64>) -> String {
    match value {
        None => "-".into(),
        Some(value) if value < 9.995 => format!("{value:.2}"),
        Some(value) if value < 99.95 => format!("{value:.1}"),
        Some(value) if value < 9_999_999.5 => grouped(value),
        Some(value) => format!("{:.1}M", value / 1e6),
    }
}

/// A whole number with commas.
pub(crate) fn grouped(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut out = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) && digit.is_ascii_digit() && !out.ends_with('-') {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A plain number with three digits that count.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        size if size < 0.0095 => format!("{value:.4}"),
        size if size < 0.995 => format!("{value:.3}"),
        size if size < 9.995 => format!("{value:.2}"),
        size if size < 99.95 => format!("{value:.1}"),
        _ => grouped(value),
    }
}

/// How many times one is the other.
pub(crate) fn times(value: f64) -> String {
    match value {
        value if value < 9.995 => format!("{value:.2}"),
        value if value < 99.95 => format!("{value:.1}"),
        value => grouped(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn medians_and_spread() {
        assert_eq!(Summary::of([]), None);
        let summary = Summary::of([3.0, 1.0, 2.0, 10.0]).unwrap();
        assert_eq!((summary.median, summary.min, summary.max, summary.rounds), (2.5, 1.0, 10.0, 4));
        assert_eq!(summary.spread(), Some(1.8));
        assert_eq!(Summary::of([0.0, 0.0]).unwrap().spread(), None);
        assert_eq!(Summary::of([4.0, 4.0]).unwrap().spread(), Some(0.0));
        assert_eq!(Summary::of([4.0]).unwrap().spread(), None, "one round");
    }

    #[test]
    fn numbers_for_people() {
        assert_eq!([time(Some(0.914)), time(Some(21.98)), time(Some(1234.0))], ["0.91", "22.0", "1234"]);
        assert_eq!([time(Some(250_000.0)), time(Some(1.5e6)), time(None)], ["250ms", "1.50s", "-"]);
        assert_eq!([rate(Some(1_237_725.4)), rate(Some(12.34)), rate(Some(2e7))], ["1,237,725", "12.3", "20.0M"]);
        assert_eq!([grouped(-123.0), grouped(-1234.0), grouped(999.0)], ["-123", "-1,234", "999"]);
        assert_eq!([number(2.113), number(0.0123), number(20000.0)], ["2.11", "0.012", "20,000"]);
        assert_eq!([percent(Some(0.034)), percent(Some(99.0)), percent(None)], ["±3%", ">999%", "-"]);
        assert_eq!([times(9.56), times(42.64), times(133.0)], ["9.56", "42.6", "133"]);
    }

    proptest! {
        #[test]
        fn columns_hold_what_can_be_measured(us in 0.0..6e8_f64, value in 0.0..1e9_f64, share in 0.0..1e6_f64) {
            prop_assert!(time(Some(us)).len() <= 5, "{us}: {}", time(Some(us)));
            prop_assert!(rate(Some(value)).len() <= 9, "{value}: {}", rate(Some(value)));
            prop_assert!(percent(Some(share)).chars().count() <= 5);
        }
    }
}
