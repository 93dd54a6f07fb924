//! The metrics in the text format of OpenMetrics 1.0. Their names are promised by the manual page.

use std::fmt::Write;

/// What a scraper is told that the text is.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// How a metric behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Type {
    /// Only grows while the process lives.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Is 1, and says something by its labels.
    Info,
}

impl Type {
    fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Info => "info",
        }
    }

    /// What the format puts behind the name of a family for its samples.
    fn suffix(self) -> &'static str {
        match self {
            Self::Counter => "_total",
            Self::Gauge => "",
            Self::Info => "_info",
        }
    }
}

/// A metric with all its samples.
struct Family {
    name: String,
    kind: Type,
    help: String,
    samples: String,
}

/// All metrics of one look, by family in the order in which they came.
#[derive(Default)]
pub(crate) struct Metrics(Vec<Family>);

/// One label of a sample.
pub(crate) type Label<'a> = (&'a str, &'a str);

impl Metrics {
    /// Adds a sample; the family is made at its first one.
    pub(crate) fn add(&mut self, name: &str, kind: Type, help: &str, labels: &[Label<'_>], value: impl ToString) {
        let known = self.0.iter().position(|family| family.name == name);
        let index = known.unwrap_or_else(|| {
            let (name, help) = (name.to_owned(), help.to_owned());
            self.0.push(Family { name, kind, help, samples: String::new() });
            self.0.len() - 1
        });
        let Some(family) = self.0.get_mut(index) else { return };
        let _ = write!(family.samples, "{name}{}", kind.suffix());
        let mut open = '{';
        for (label, text) in labels {
            let _ = write!(family.samples, "{open}{label}=\"{}\"", escape(text));
            open = ',';
        }
        let end = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(family.samples, "{end} {}", value.to_string());
    }

    /// The whole text.
    pub(crate) fn text(&self) -> String {
        let mut out = String::new();
        for family in &self.0 {
            let name = &family.name;
            let _ = writeln!(out, "# TYPE {name} {}", family.kind.name());
            // The format wants the unit to be the end of the name.
            if let Some(unit) = ["seconds", "bytes"].iter().find(|unit| name.ends_with(&format!("_{unit}"))) {
                let _ = writeln!(out, "# UNIT {name} {unit}");
            }
            let _ = writeln!(out, "# HELP {name} {}", escape(&family.help));
            out.push_str(&family.samples);
        }
        out.push_str("# EOF\n");
        out
    }
}

fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_stay_together() {
        let mut metrics = Metrics::default();
        metrics.add("a", Type::Counter, "A \"sum\".", &[("x", "1\\\"\n")], 5);
        metrics.add("b_bytes", Type::Gauge, "Size.", &[], -1);
        metrics.add("a", Type::Counter, "", &[("x", "2"), ("y", "ü")], 6);
        let text = "# TYPE a counter\n# HELP a A \\\"sum\\\".\na_total{x=\"1\\\\\\\"\\n\"} 5\na_total{x=\"2\",y=\"ü\"} 6\n\
                    # TYPE b_bytes gauge\n# UNIT b_bytes bytes\n# HELP b_bytes Size.\nb_bytes -1\n# EOF\n";
        assert_eq!(metrics.text(), text);
    }
}
