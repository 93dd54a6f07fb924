//! The results as a chart that reads in light and in dark.
//!
//! Colours are classes, so that a viewer that knows `prefers-color-scheme` changes them; one that does not shows the
//! light ones on a ground of their own.

use std::fmt::Write;

use crate::args::{Ends, Workload};
use crate::conclusion::Conclusion;
use crate::ping::Baseline;
use crate::results::{Cell, Metric, Part, Results, title};
use crate::stats::{Summary, rate, time};

const WIDTH: f64 = 760.0;
/// Where bars begin and the longest ends; the rest is for its figures.
const LEFT: f64 = 110.0;
const RIGHT: f64 = 560.0;
const ROW: f64 = 26.0;
const BAR: f64 = 16.0;
const MARGIN: f64 = 20.0;

const STYLE: &str = "
  text { font: 13px system-ui, 'Segoe UI', Helvetica, Arial, sans-serif; fill: #1f2328 }
  .ground { fill: #ffffff }
  .head { font-size: 17px; font-weight: 600 }
  .title { font-weight: 600 }
  .small { font-size: 12px; fill: #59636e }
  .plain { fill: #8c959f }
  .one { fill: #b7bfc7 }
  .both { fill: #0969da }
  .kernel { fill: none; stroke: #8c959f; stroke-dasharray: 4 3 }
  .range { stroke: #1f2328; stroke-width: 1.5 }
  .axis { stroke: #d1d9e0 }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc }
    .ground { fill: #0d1117 }
    .small { fill: #9198a1 }
    .plain { fill: #818b98 }
    .one { fill: #545d68 }
    .both { fill: #4493f8 }
    .kernel { stroke: #818b98 }
    .range { stroke: #f0f6fc }
    .axis { stroke: #3d444d }
  }
";

/// A bar: what it is called, its value with the range over the rounds, and the words beside it.
struct Row {
    name: String,
    class: &'static str,
    value: Summary,
    label: String,
}

pub(crate) fn chart(results: &Results) -> String {
    let mut body = String::new();
    let mut y = MARGIN + 14.0;
    text(&mut body, MARGIN, y, "head", "NetACC: both ends plain, one end accelerated, both");
    let hosts = format!("{} to {} ({})", results.client.cpu, results.host, results.server.cpu);
    for line in folded(&hosts).into_iter().take(2) {
        y += 18.0;
        text(&mut body, MARGIN, y, "small", &line);
    }
    y += 14.0;
    for part in &results.parts {
        let rows = rows(part, results);
        if !rows.is_empty() {
            y = panel(&mut body, y, part, &rows, results);
        }
    }
    for line in foot(results) {
        y += 17.0;
        text(&mut body, MARGIN, y, "small", &line);
    }
    let height = y + MARGIN;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" role=\"img\" aria-label=\"netacc_bench\">\n<style>{STYLE}</style>\n\
         <rect class=\"ground\" width=\"{WIDTH}\" height=\"{height}\"/>\n{body}</svg>\n"
    )
}

/// What a workload's bars show: of round trips the time, of everything else how many.
fn shown(workload: Workload) -> Metric {
    if workload == Workload::RoundTrip { Metric::Average } else { Metric::Rate }
}

fn rows(part: &Part, results: &Results) -> Vec<Row> {
    let mut rows: Vec<Row> = part.cells.iter().filter_map(|cell| row(cell, part.workload)).collect();
    if let (Workload::RoundTrip, Some(baseline)) = (part.workload, &results.baseline) {
        rows.extend(ping_row(baseline));
    }
    rows
}

fn row(cell: &Cell, workload: Workload) -> Option<Row> {
    let value = cell.summary(shown(workload), workload)?;
    let class = match cell.ends {
        Ends::Plain => "plain",
        Ends::Client | Ends::Server => "one",
        Ends::Both => "both",
    };
    let figure = match workload {
        Workload::RoundTrip => {
            let p99 = cell.shown(Metric::P99, workload);
            format!("{} us, p99 {}", time(Some(value.median)), time(p99))
        }
        Workload::Stream => format!("{} MB/s", rate(Some(value.median))),
        Workload::Connect | Workload::Requests => format!("{}/s", rate(Some(value.median))),
    };
    let label = format!("{figure}  ({})", cell.paths().via());
    Some(Row { name: cell.ends.title().into(), class, value, label })
}

fn ping_row(baseline: &Baseline) -> Option<Row> {
    let value = baseline.summary(|latency| latency.average)?;
    let p99 = baseline.summary(|latency| latency.p99 as f64).map(|summary| summary.median);
    let label = format!("{} us, p99 {}  (kernel)", time(Some(value.median)), time(p99));
    Some(Row { name: "ICMP echo".into(), class: "kernel", value, label })
}

/// Draws a workload below `y`; the result is where it ends.
fn panel(out: &mut String, y: f64, part: &Part, rows: &[Row], results: &Results) -> f64 {
    let mut y = y + 22.0;
    let unit = match part.workload {
        Workload::RoundTrip => "average time, shorter is better",
        Workload::Stream => "bytes a second, longer is better",
        Workload::Connect => "connections a second, longer is better",
        Workload::Requests => "requests a second, longer is better",
    };
    let heading = title(part.workload, &results.settings);
    text(out, MARGIN, y, "title", &heading);
    y += 17.0;
    text(out, MARGIN, y, "small", unit);
    y += 8.0;
    let most = rows.iter().map(|row| row.value.max).fold(f64::MIN_POSITIVE, f64::max);
    let place = |value: f64| LEFT + (RIGHT - LEFT) * (value / most).clamp(0.0, 1.0);
    let top = y;
    for row in rows {
        let middle = y + ROW / 2.0;
        let (bar, width) = (middle - BAR / 2.0, place(row.value.median) - LEFT);
        text(out, MARGIN, middle + 4.5, "", &row.name);
        let class = row.class;
        let _ = writeln!(
            out,
            "<rect class=\"{class}\" x=\"{LEFT}\" y=\"{bar:.1}\" width=\"{:.1}\" height=\"{BAR}\" rx=\"2\"/>",
            width.max(1.0)
        );
        let (low, high) = (place(row.value.min), place(row.value.max));
        if high - low > 1.0 {
            let _ = writeln!(
                out,
                "<path class=\"range\" d=\"M{low:.1} {middle:.1}H{high:.1}M{low:.1} {a:.1}v6M{high:.1} {a:.1}v6\"/>",
                a = middle - 3.0
            );
        }
        text(out, high.max(LEFT + width) + 8.0, middle + 4.5, "", &row.label);
        y += ROW;
    }
    let _ = writeln!(out, "<path class=\"axis\" d=\"M{LEFT} {top:.1}V{y:.1}\"/>");
    y
}

/// The reckoning, and what the marks mean.
fn foot(results: &Results) -> Vec<String> {
    let mut lines = vec![String::new()];
    for sentence in Conclusion::of(results).map(|conclusion| conclusion.text()).unwrap_or_default() {
        lines.extend(folded(&sentence));
    }
    let bars = match results.settings.rounds {
        1 => "one round".into(),
        rounds => format!("medians of {rounds} rounds; lines on them: from the lowest to the highest round"),
    };
    lines.extend(folded(&format!("Bars: {bars}; in brackets: what carried the connections.")));
    lines
}

fn folded(text: &str) -> Vec<String> {
    const LINE: usize = 112;
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.is_empty() || line.chars().count() + 1 + word.chars().count() <= LINE => {
                if !line.is_empty() {
                    line.push(' ');
                }
                line.push_str(word);
            }
            _ => lines.push(word.into()),
        }
    }
    lines
}

fn text(out: &mut String, x: f64, y: f64, class: &str, words: &str) {
    let class = if class.is_empty() { String::new() } else { format!(" class=\"{class}\"") };
    let _ = writeln!(out, "<text{class} x=\"{x:.1}\" y=\"{y:.1}\">{}</text>", escaped(words));
}

/// Names of hosts and processors are foreign.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for letter in netacc_tools::text::clean(text).chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::Paths;
    use crate::table::tests::results;

    #[test]
    fn a_row_for_every_cell_and_no_foreign_markup() {
        let shm = Paths { shm: 1, ..Paths::default() };
        let cells =
            [(Ends::Plain, 20.0, Paths::plain(1)), (Ends::Client, 21.0, Paths::plain(1)), (Ends::Both, 1.0, shm)];
        let mut all = results(Workload::RoundTrip, &cells);
        all.host = "<script>\x1b&\"".into();
        let svg = chart(&all);
        for class in ["plain", "one", "both"] {
            assert_eq!(svg.matches(&format!("<rect class=\"{class}\"")).count(), 1, "{class}");
        }
        assert!(svg.contains("&lt;script&gt;\\u{1b}&amp;&quot;") && !svg.contains("<script"), "{svg}");
        assert!(svg.contains("prefers-color-scheme: dark") && svg.contains("(SHM)"), "{svg}");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }

    #[test]
    fn nothing_measured_is_still_a_picture() {
        let svg = chart(&results(Workload::Stream, &[]));
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"), "{svg}");
    }

    #[test]
    fn lengths_are_in_proportion() {
        let cells = [(Ends::Plain, 20.0, Paths::plain(1)), (Ends::Both, 10.0, Paths::plain(1))];
        let svg = chart(&results(Workload::RoundTrip, &cells));
        let widths: Vec<f64> = svg
            .lines()
            .filter(|line| line.contains("rx="))
            .filter_map(|line| line.split("width=\"").nth(1)?.split('"').next()?.parse().ok())
            .collect();
        assert_eq!(widths.len(), 2);
        assert!((widths[0] / widths[1] - 2.0).abs() < 0.01, "{widths:?}");
    }
}
