// SPDX-License-Identifier: Apache-2.0
//! Draws a dashboard's panels as a page, in the dashboard's layout. The values are Prometheus' answers, and Grafana
//! draws them in another style.

use serde_json::Value;
use std::{
    collections::BTreeMap,
    fmt::Write as _,
    time::{Duration, SystemTime},
};

/// Width of the page in pixels.
pub(crate) const WIDTH: u32 = 1440;
/// Number of columns of a dashboard, and pixels of one unit of height including margins (Grafana's `GRID_COLUMN_COUNT`,
/// `GRID_CELL_HEIGHT`, `GRID_CELL_VMARGIN`).
const COLUMNS: f64 = 24.0;
const ROW: f64 = 38.0;
const MARGIN: f64 = 8.0;
/// Width of the axis labels in pixels.
const AXIS: f64 = 74.0;
const LEGEND_LINE: f64 = 17.0;
/// Approximate width of a letter in pixels.
const LETTER: f64 = 6.4;

const COLORS: [&str; 10] = [
    "#2f6fdb", "#c2570c", "#0f8a7e", "#9d3fc4", "#5b8a12", "#c0307a", "#8a6410", "#4b55c8",
    "#3d8fb0", "#b0413d",
];

/// A series: labels, and values with their times in seconds.
pub(crate) struct Series {
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) legend: String,
    pub(crate) points: Vec<(f64, f64)>,
}

/// A panel of the dashboard, with the results of its expressions.
pub(crate) struct Panel {
    pub(crate) definition: Value,
    pub(crate) series: Vec<Series>,
}

/// Begin and end of a period, in seconds.
#[derive(Clone, Copy)]
pub(crate) struct Range {
    pub(crate) from: f64,
    pub(crate) to: f64,
}

#[derive(Clone, Copy)]
struct Rectangle {
    x: f64,
    y: f64,
    width: f64,
    height: f64,
}

impl Panel {
    pub(crate) fn title(&self) -> &str {
        self.definition["title"].as_str().expect("a title")
    }

    fn unit(&self) -> &str {
        let defaults = &self.definition["fieldConfig"]["defaults"];
        defaults["unit"].as_str().expect("a unit")
    }

    /// Returns the colour of a value by the panel's thresholds.
    fn color(&self, value: f64) -> &str {
        let steps = &self.definition["fieldConfig"]["defaults"]["thresholds"]["steps"];
        let steps = steps.as_array().into_iter().flatten();
        let mut reached = steps.filter(|step| step["value"].as_f64().is_none_or(|it| it <= value));
        match reached.next_back().and_then(|step| step["color"].as_str()) {
            Some("green") => "#15803d",
            Some("red") => "#c62222",
            _ => "#17202b",
        }
    }

    fn place(&self) -> Rectangle {
        let grid = |name: &str| self.definition["gridPos"][name].as_f64().expect("a place");
        let column = f64::from(WIDTH) / COLUMNS;
        Rectangle {
            x: grid("x") * column + MARGIN / 2.0,
            y: grid("y") * ROW + MARGIN / 2.0,
            width: grid("w") * column - MARGIN,
            height: grid("h") * ROW - MARGIN,
        }
    }
}

pub(crate) fn height(panels: &[Panel]) -> u32 {
    let ends = panels.iter().map(|panel| {
        let place = panel.place();
        place.y + place.height + MARGIN / 2.0
    });
    let end = ends.fold(0.0, f64::max);
    format!("{end:.0}").parse().expect("a number of pixels")
}

pub(crate) fn page(panels: &[Panel], range: Range) -> String {
    let mut svg = String::new();
    for panel in panels {
        draw(&mut svg, panel, range);
    }
    format!(
        "<!doctype html><meta charset=\"utf-8\"><style>body{{margin:0;background:#f4f6f8}}\
         text{{font:12px \"Liberation Sans\",Arial,sans-serif;fill:#17202b}}.title{{font-size:14px;font-weight:600}}\
         .muted{{fill:#5b6878}}.stat{{font-size:44px;font-weight:600;text-anchor:middle}}.end{{text-anchor:end}}\
         .middle{{text-anchor:middle}}.grid{{stroke:#e3e8ee}}.line{{fill:none;stroke-width:1.4}}\
         .box{{fill:#fff;stroke:#d5dce4}}</style>\
         <svg width=\"{WIDTH}\" height=\"{}\">{svg}</svg>",
        height(panels)
    )
}

fn draw(svg: &mut String, panel: &Panel, range: Range) {
    let place = panel.place();
    let Rectangle {
        x,
        y,
        width,
        height,
    } = place;
    let _ = write!(
        svg,
        "<g class=\"panel\"><rect class=\"box\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" \
         rx=\"4\"/><text class=\"title\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
        x + 12.0,
        y + 22.0,
        escaped(&short(panel.title(), width - 24.0))
    );
    let inner = Rectangle {
        x: x + 12.0,
        y: y + 36.0,
        width: width - 24.0,
        height: height - 46.0,
    };
    match panel.definition["type"].as_str() {
        Some("stat") => stat(svg, panel, inner),
        Some("state-timeline") => timeline(svg, panel, inner, range),
        Some("timeseries") => timeseries(svg, panel, inner, range),
        Some("table") => table(svg, panel, inner),
        other => panic!("a panel of a kind that is not drawn: {other:?}"),
    }
    svg.push_str("</g>");
}

fn short(title: &str, room: f64) -> String {
    let letters = title.chars().scan(0.0, |width, letter| {
        *width += LETTER * 1.2;
        (*width < room).then_some(letter)
    });
    let short: String = letters.collect();
    match short == title {
        true => short,
        false => format!("{}…", short.trim_end()),
    }
}

fn stat(svg: &mut String, panel: &Panel, at: Rectangle) {
    let last = panel.series.first().and_then(|it| it.points.last());
    let value = last.expect("a value").1;
    let _ = write!(
        svg,
        "<text class=\"stat\" x=\"{:.1}\" y=\"{:.1}\" style=\"fill:{}\">{}</text>",
        at.x + at.width / 2.0,
        at.y + at.height / 2.0 + 16.0,
        panel.color(value),
        number(value, panel.unit())
    );
}

fn times(svg: &mut String, at: Rectangle, range: Range) {
    for step in 0..=6 {
        let share = f64::from(step) / 6.0;
        let seconds = range.from + share * (range.to - range.from);
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs_f64(seconds);
        let text = humantime::format_rfc3339_seconds(time).to_string();
        let x = at.x + share * at.width;
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{:.1}\" y2=\"{:.1}\"/>\
             <text class=\"muted middle\" x=\"{x:.1}\" y=\"{:.1}\">{}</text>",
            at.y,
            at.y + at.height,
            at.y + at.height + 16.0,
            &text[11..16]
        );
    }
}

fn timeline(svg: &mut String, panel: &Panel, at: Rectangle, range: Range) {
    let names = 130.0;
    let drawn = Rectangle {
        x: at.x + names,
        width: at.width - names - 20.0,
        height: at.height - 20.0,
        ..at
    };
    times(svg, drawn, range);
    let row = drawn.height / pixels(panel.series.len());
    for (line, series) in panel.series.iter().enumerate() {
        let y = drawn.y + pixels(line) * row;
        let _ = write!(
            svg,
            "<text class=\"end\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            drawn.x - 8.0,
            y + row / 2.0 + 4.0,
            escaped(&series.legend)
        );
        // successive equal values form one run
        for run in series
            .points
            .chunk_by(|a, b| a.1.to_bits() == b.1.to_bits())
        {
            let (Some(first), Some(last)) = (run.first(), run.last()) else {
                continue;
            };
            let [start, end] = [first.0, last.0].map(|time| along(time, drawn, range));
            let _ = write!(
                svg,
                "<rect x=\"{start:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{}\" opacity=\"0.75\"/>",
                y + 2.0,
                (end - start).max(1.0),
                row - 4.0,
                panel.color(first.1)
            );
        }
    }
}

fn timeseries(svg: &mut String, panel: &Panel, at: Rectangle, range: Range) {
    let names = legend(panel, at);
    let lines = names.last().map_or(0.0, |(_, y, _)| y + LEGEND_LINE);
    let drawn = Rectangle {
        x: at.x + AXIS,
        width: at.width - AXIS - 20.0,
        height: at.height - 26.0 - lines,
        ..at
    };
    let values = panel.series.iter().flat_map(|it| &it.points).map(|it| it.1);
    let (top, step) = scale(values.filter(|it| it.is_finite()).fold(0.0, f64::max));
    times(svg, drawn, range);
    let mut value = 0.0;
    while value <= top * 1.001 {
        let y = drawn.y + drawn.height * (1.0 - value / top);
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
             <text class=\"muted end\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            drawn.x,
            drawn.x + drawn.width,
            drawn.x - 8.0,
            y + 4.0,
            number(value, panel.unit())
        );
        value += step;
    }
    for (index, series) in panel.series.iter().enumerate() {
        let points = series.points.iter().filter(|it| it.1.is_finite());
        let points = points.map(|(time, value)| {
            let y = drawn.y + drawn.height * (1.0 - value / top);
            format!("{:.1},{y:.1}", along(*time, drawn, range))
        });
        let _ = write!(
            svg,
            "<polyline class=\"line\" stroke=\"{}\" points=\"{}\"/>",
            color(index),
            points.collect::<Vec<_>>().join(" ")
        );
    }
    for (index, (x, y, name)) in names.into_iter().enumerate() {
        let (left, below) = (at.x + x, drawn.y + drawn.height + 34.0 + y);
        let _ = write!(
            svg,
            "<rect x=\"{left:.1}\" y=\"{:.1}\" width=\"12\" height=\"3\" fill=\"{}\"/>\
             <text x=\"{:.1}\" y=\"{below:.1}\">{}</text>",
            below - 5.0,
            color(index),
            left + 17.0,
            escaped(&name)
        );
    }
}

fn color(index: usize) -> &'static str {
    COLORS[index % COLORS.len()]
}

/// Returns the legend's names, each with its position from the upper left corner. The legend has at most a third of the
/// panel's height. Grafana would show a scroll bar.
fn legend(panel: &Panel, at: Rectangle) -> Vec<(f64, f64, String)> {
    let (mut x, mut y) = (0.0, 0.0);
    let mut names = Vec::new();
    for (index, series) in panel.series.iter().enumerate() {
        let own = 34.0 + LETTER * pixels(series.legend.chars().count());
        if x > 0.0 && x + own > at.width {
            (x, y) = (0.0, y + LEGEND_LINE);
        }
        if y + LEGEND_LINE > at.height / 3.0 {
            if let Some((_, _, last)) = names.last_mut() {
                *last = format!("and {} more", panel.series.len() - index + 1);
            }
            break;
        }
        names.push((x, y, series.legend.clone()));
        x += own;
    }
    names
}

/// Returns the columns that the panel's transformation keeps, in their order.
fn columns(panel: &Panel) -> Vec<String> {
    let transformations = panel.definition["transformations"].as_array();
    let mut all = transformations.into_iter().flatten();
    let organize = all.find(|it| it["id"] == "organize").expect("an order");
    let order = organize["options"]["indexByName"].as_object();
    let mut order: Vec<_> = order.expect("columns").iter().collect();
    order.sort_by_key(|(_, place)| place.as_u64());
    order.into_iter().map(|(name, _)| name.clone()).collect()
}

fn table(svg: &mut String, panel: &Panel, at: Rectangle) {
    let columns = columns(panel);
    let width = at.width / pixels(columns.len());
    let mut y = at.y + 12.0;
    let mut row = |cells: Vec<String>, class: &str| {
        let mut x = at.x;
        for cell in cells {
            let _ = write!(
                svg,
                "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>",
                escaped(&cell)
            );
            x += width;
        }
        y += 19.0;
        y < at.y + at.height
    };
    let mut is_retryable = row(columns.clone(), "muted");
    for series in &panel.series {
        if !is_retryable {
            break;
        }
        let cell = |name: &String| series.labels.get(name).cloned().unwrap_or_default();
        is_retryable = row(columns.iter().map(cell).collect(), "cell");
    }
}

fn pixels(count: usize) -> f64 {
    f64::from(u32::try_from(count).expect("no more than fit"))
}

fn along(time: f64, at: Rectangle, range: Range) -> f64 {
    at.x + at.width * (time - range.from) / (range.to - range.from)
}

/// Returns the end of an axis for values up to `most`, and the step between its lines.
fn scale(most: f64) -> (f64, f64) {
    let most = if most > 0.0 { most } else { 1.0 };
    let decade = 10_f64.powf((most / 4.0).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|it| it * decade);
    let step = steps.into_iter().find(|it| it * 5.0 >= most);
    let step = step.unwrap_or(10.0 * decade);
    ((most / step).ceil() * step, step)
}

/// Formats a value with its unit like Grafana.
fn number(value: f64, unit: &str) -> String {
    let with = |value: f64, unit: &str| {
        let text = format!("{value:.1}");
        let text = text.strip_suffix(".0").unwrap_or(&text).to_owned();
        if unit.is_empty() {
            text
        } else {
            format!("{text} {unit}")
        }
    };
    let prefixed = |unit: &str| match value {
        it if it >= 1e9 => with(it / 1e9, &format!("G{unit}")),
        it if it >= 1e6 => with(it / 1e6, &format!("M{unit}")),
        it if it >= 1e3 => with(it / 1e3, &format!("k{unit}")),
        it => with(it, unit),
    };
    match unit {
        "none" => with(value, ""),
        "bps" => prefixed("b/s"),
        "pps" => prefixed("p/s"),
        "percentunit" => with(value * 100.0, "%"),
        "s" if value < 1.0 => with(value * 1e3, "ms"),
        "s" => with(value, "s"),
        other => panic!("a unit that is not written: {other}"),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}
