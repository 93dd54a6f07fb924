//! What a check found, and all of it together.

pub(crate) use netacc_tools::args::check::Level;
use netacc_tools::text::clean;
use serde_json::{Value, json};

/// One line of the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) level: Level,
    /// What it is about: an interface, `host`, a program, an address.
    pub(crate) subject: String,
    /// Which check it is: a name that stays the same.
    pub(crate) check: &'static str,
    /// What was found, in one sentence without a full stop.
    pub(crate) text: String,
    /// Why it matters.
    pub(crate) why: Option<String>,
    /// What to do about it.
    pub(crate) advice: Option<String>,
}

/// The findings of a run, in the order in which they are shown.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) findings: Vec<Finding>,
}

impl Report {
    /// Adds a finding; what is known beyond its text is set on what comes back.
    pub(crate) fn add(
        &mut self,
        level: Level,
        subject: impl Into<String>,
        check: &'static str,
        text: impl Into<String>,
    ) -> Detail<'_> {
        let (subject, text) = (clean(&subject.into()), clean(&text.into()));
        self.findings.push(Finding { level, subject, check, text, why: None, advice: None });
        Detail(self.findings.last_mut())
    }

    /// Adds several findings of one check.
    pub(crate) fn on<'a>(&'a mut self, subject: &'a str, check: &'static str) -> On<'a> {
        On { report: self, subject, check }
    }

    /// The checks of a subject that found something to be done.
    pub(crate) fn open(&self, subject: &str) -> Vec<&'static str> {
        let open = self.findings.iter().filter(|found| found.subject == subject && found.level >= Level::Warn);
        open.map(|found| found.check).collect()
    }

    /// How many there are of a level.
    pub(crate) fn count(&self, level: Level) -> usize {
        self.findings.iter().filter(|finding| finding.level == level).count()
    }

    /// The worst level there is.
    pub(crate) fn worst(&self) -> Level {
        self.findings.iter().map(|finding| finding.level).max().unwrap_or(Level::Ok)
    }

    /// Everything as JSON. Names stay; further ones may come.
    pub(crate) fn json(&self) -> Value {
        let each: Vec<Value> = self.findings.iter().map(Finding::json).collect();
        let counts: serde_json::Map<String, Value> =
            Level::ALL.into_iter().map(|level| (level.name().into(), json!(self.count(level)))).collect();
        json!({ "worst": self.worst().name(), "counts": counts, "findings": each })
    }
}

impl Finding {
    fn json(&self) -> Value {
        json!({
            "level": self.level.name(), "subject": self.subject, "check": self.check,
            "text": self.text, "why": self.why, "do": self.advice,
        })
    }
}

/// Where findings of one check go.
pub(crate) struct On<'a> {
    report: &'a mut Report,
    subject: &'a str,
    check: &'static str,
}

impl On<'_> {
    pub(crate) fn add(&mut self, level: Level, text: impl Into<String>) -> Detail<'_> {
        self.report.add(level, self.subject, self.check, text)
    }
}

/// The finding that was just added.
pub(crate) struct Detail<'a>(Option<&'a mut Finding>);

impl Detail<'_> {
    pub(crate) fn why(mut self, why: impl Into<String>) -> Self {
        if let Some(finding) = &mut self.0 {
            finding.why = Some(clean(&why.into()));
        }
        self
    }

    pub(crate) fn advice(mut self, advice: impl Into<String>) -> Self {
        if let Some(finding) = &mut self.0 {
            finding.advice = Some(clean(&advice.into()));
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_stays_on_its_line() {
        let mut report = Report::default();
        report.add(Level::Warn, "a\nok  b", "driver", "x\x1b[31m").advice("\u{202e}y");
        let found = &report.findings[0];
        assert_eq!((found.subject.as_str(), found.text.as_str()), ("a\\nok  b", "x\\u{1b}[31m"));
        assert_eq!(found.advice.as_deref(), Some("\\u{202e}y"));
    }

    #[test]
    fn levels_are_counted_and_ordered() {
        let mut report = Report::default();
        assert_eq!(report.worst(), Level::Ok);
        for level in [Level::Note, Level::Warn, Level::Note] {
            report.add(level, "host", "kernel", "");
        }
        assert_eq!((report.worst(), report.count(Level::Note), report.count(Level::Fail)), (Level::Warn, 2, 0));
        assert_eq!(report.json()["counts"]["note"], 2);
        assert!(Level::ALL.into_iter().all(|level| Level::named(level.name()) == Some(level)));
    }
}
