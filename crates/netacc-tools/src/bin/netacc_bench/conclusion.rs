//! What the round trips mean for a request that makes many of them: the latency study's reckoning.

use serde_json::{Value, json};

use crate::args::{Ends, Workload};
use crate::results::{Cell, Metric, Part, Results};
use crate::stats::{Summary, grouped, number, time};

/// The reckoning.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Conclusion {
    /// Averages of a round trip, in microseconds.
    pub(crate) plain_us: f64,
    pub(crate) both_us: f64,
    /// All connections of the accelerated cell were.
    pub(crate) accelerated: bool,
    /// The rounds of the two overlap: the difference may be chance.
    pub(crate) within_spread: bool,
    /// Nothing is known of how far rounds differ.
    pub(crate) one_round: bool,
    pub(crate) trips: u64,
    pub(crate) per_day: u64,
    /// A round trip with one end accelerated against one with none, and whether the rounds of the two overlap.
    pub(crate) one_end: Vec<(Ends, f64, bool)>,
}

impl Conclusion {
    /// `None` where the two cells were not both measured.
    pub(crate) fn of(results: &Results) -> Option<Self> {
        let part = results.part(Workload::RoundTrip)?;
        let (plain, both) = (average(part, Ends::Plain)?, average(part, Ends::Both)?);
        let overlap = |one: &Summary| plain.min <= one.max && one.min <= plain.max;
        let share = |ends| {
            let one = average(part, ends)?;
            Some((ends, one.median / plain.median, overlap(&one)))
        };
        Some(Self {
            plain_us: plain.median,
            both_us: both.median,
            accelerated: part.cell(Ends::Both).map(Cell::paths).is_some_and(|paths| paths.accelerated()),
            within_spread: overlap(&both),
            one_round: plain.rounds < 2 || both.rounds < 2,
            trips: results.settings.trips,
            per_day: results.settings.per_day,
            one_end: [Ends::Client, Ends::Server].into_iter().filter_map(share).collect(),
        })
    }

    /// What a request gets shorter by; below zero it gets longer.
    pub(crate) fn saved_ms(&self) -> f64 {
        (self.plain_us - self.both_us) * self.trips as f64 / 1e3
    }

    pub(crate) fn saved_seconds_a_day(&self) -> f64 {
        self.saved_ms() * self.per_day as f64 / 1e3
    }

    /// Sentences for people.
    pub(crate) fn text(&self) -> Vec<String> {
        let mut sentences = vec![self.reckoning()];
        if !self.one_end.is_empty() {
            let chance = |overlap: &bool| if *overlap { " (the rounds overlap)" } else { "" };
            let each = self.one_end.iter();
            let cells: Vec<String> =
                each.map(|(ends, share, overlap)| format!("{} {share:.2}{}", ends.title(), chance(overlap))).collect();
            sentences.push(format!(
                "With one end accelerated a round trip takes this share of what it takes with both plain: {}. \
                 A connection is accelerated only where both ends are.",
                cells.join(", ")
            ));
        }
        sentences
    }

    fn reckoning(&self) -> String {
        let trips = counted(self.trips, "round trip");
        let averages = format!(
            "{} us a round trip with both ends plain, {} us with both accelerated",
            time(Some(self.plain_us)),
            time(Some(self.both_us))
        );
        if !self.accelerated {
            return format!(
                "Nothing to be gained was found: where both ends have NetACC, connections were on TCP all the same \
                 ({averages}); the reason is above."
            );
        }
        let (saved, day) = (self.saved_ms(), self.saved_seconds_a_day());
        let way = if saved < 0.0 { "longer" } else { "shorter" };
        let less = if saved < 0.0 { "more" } else { "less" };
        let chance = match (self.one_round, self.within_spread) {
            (true, _) => " It was one round of each, so this may be chance.",
            (false, true) => " The rounds of the two overlap, so this may be chance.",
            (false, false) => "",
        };
        format!(
            "A request that makes {trips} gets {} ms {way} ({averages}). At {} a day that is {} seconds{} of waiting \
             {less}.{chance}",
            number(saved.abs()),
            counted(self.per_day, "request"),
            number(day.abs()),
            longer_units(day.abs()),
        )
    }

    pub(crate) fn json(&self) -> Value {
        let one_end: serde_json::Map<String, Value> =
            self.one_end.iter().map(|(ends, share, _)| (ends.name().into(), json!(share))).collect();
        let saved = |value: f64| self.accelerated.then_some(value);
        json!({
            "accelerated": self.accelerated,
            "round_trips_per_request": self.trips, "requests_per_day": self.per_day,
            "plain_average_us": self.plain_us, "both_average_us": self.both_us,
            "saved_ms_per_request": saved(self.saved_ms()), "saved_seconds_per_day": saved(self.saved_seconds_a_day()),
            "rounds_overlap": self.within_spread, "one_end_share_of_plain": one_end, "text": self.text(),
        })
    }
}

fn average(part: &Part, ends: Ends) -> Option<Summary> {
    let summary = part.cell(ends)?.summary(Metric::Average, Workload::RoundTrip)?;
    (summary.median > 0.0).then_some(summary)
}

fn counted(count: u64, what: &str) -> String {
    format!("{} {what}{}", grouped(count as f64), if count == 1 { "" } else { "s" })
}

/// ` (35 minutes)`, where seconds are many.
fn longer_units(seconds: f64) -> String {
    let text = match seconds {
        s if s < 120.0 => return String::new(),
        s if s < 7200.0 => format!("{} minutes", number(s / 60.0)),
        s if s < 172_800.0 => format!("{} hours", number(s / 3600.0)),
        s => format!("{} days", number(s / 86_400.0)),
    };
    format!(" ({text})")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn study() -> Conclusion {
        // The study's own: 0.20 ms a round trip, 100 of them, a million requests a day.
        Conclusion {
            plain_us: 340.0,
            both_us: 140.0,
            accelerated: true,
            within_spread: false,
            one_round: false,
            trips: 100,
            per_day: 1_000_000,
            one_end: vec![(Ends::Client, 1.0, true), (Ends::Server, 0.7, false)],
        }
    }

    #[test]
    fn the_studys_reckoning() {
        let text = study().text();
        assert_eq!(
            text[0],
            "A request that makes 100 round trips gets 20.0 ms shorter (340 us a round trip with both ends plain, \
             140 us with both accelerated). At 1,000,000 requests a day that is 20,000 seconds (5.56 hours) of \
             waiting less."
        );
        assert!(text[1].contains("client only 1.00 (the rounds overlap), server only 0.70."), "{text:?}");
        assert_eq!(study().json()["saved_seconds_per_day"], 20_000.0);
    }

    #[test]
    fn what_is_no_gain_is_not_called_one() {
        let longer = Conclusion { plain_us: 1.0, both_us: 2.0, within_spread: true, trips: 1, per_day: 1, ..study() };
        let text = longer.reckoning();
        assert!(text.contains("1 round trip gets 0.0010 ms longer") && text.contains("1 request a day"), "{text}");
        assert!(text.ends_with("so this may be chance."), "{text}");
        let once = Conclusion { one_round: true, ..study() };
        assert!(once.reckoning().ends_with("It was one round of each, so this may be chance."));
        let on_tcp = Conclusion { accelerated: false, ..study() };
        assert!(on_tcp.reckoning().starts_with("Nothing to be gained was found"));
        assert!(on_tcp.json()["saved_ms_per_request"].is_null());
    }
}
