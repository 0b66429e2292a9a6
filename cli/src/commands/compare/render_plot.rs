//! Draws the picture of `--plot`: a panel for each trace, with a line of reserved memory for each
//! contender, over the area of live memory.
//!
//! ```text
//! name of the trace
//! GiB │        ┌──────────── 15.73 GiB caching, slab     the label of a line: value at the end, and contenders
//!     │   ┌────┘  ┌───────── 5.17 GiB caching expandable_segments:True
//!     │───┴───────┘
//!     └──────────────────
//!            operations
//! ```

use super::Compared;
use crate::commands::bytes;
use cachalot_replay::compare::{Curve, Figures};
use plotters::coord::Shift;
use plotters::prelude::*;
use std::cmp::Reverse;
use std::error::Error;

type PanelArea<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Width of a panel without the labels.
const LINES_WIDTH: u32 = 700;
/// Least width of the labels, with the strokes to the labels.
const LABELS_WIDTH: u32 = 400;
/// Width of the strokes, and the largest width of a label's character in most fonts.
const STROKES_WIDTH: u32 = 40;
const CHARACTER_WIDTH: u32 = 7;
const PANEL_HEIGHT: u32 = 260;
/// Least distance of two labels.
const LABEL_HEIGHT: i32 = 18;
/// Height of a panel above and below the lines.
const FRAME_HEIGHT: i32 = 90;
const FONT: &str = "sans-serif";
/// Colour of the area of live memory.
const LIVE: RGBColor = RGBColor(205, 205, 205);
/// Colours that colour-blind people tell apart, by Okabe and Ito. The yellow is left out as too
/// light for a line.
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
];
/// Pixels of line and of gap in a dashed line. Lines are dashed when the colours start again.
const DASH: (i32, i32) = (7, 4);
/// Two amounts are drawn in one place if the difference is at most this part of the highest amount.
const INDISTINCT: u64 = 150;
/// Width of the widest line in pixels.
const WIDEST: u32 = 6;
const GIB: f64 = (1_u64 << 30) as f64;

/// A line of a panel.
struct PlotLine<'a> {
    curve: &'a Curve,
    /// Number of the line's first contender.
    contender: usize,
    /// Names of all contenders of the line.
    names: String,
}

/// Draws the picture as text in SVG.
pub(super) fn draw(compared: &[Compared]) -> Result<String, Box<dyn Error>> {
    let mut image = String::new();
    {
        let lines: Vec<Vec<PlotLine<'_>>> = compared.iter().map(lines).collect();
        // Every line and the live area have a label.
        let labels = lines.iter().map(Vec::len).max().unwrap_or(0) as u32 + 1;
        let height = PANEL_HEIGHT.max(labels * LABEL_HEIGHT as u32 + FRAME_HEIGHT as u32);
        let names = lines.iter().flatten().map(|line| value(line.curve, &line.names).chars().count());
        let longest = names.max().unwrap_or(0) as u32 * CHARACTER_WIDTH + STROKES_WIDTH;
        let size = (LINES_WIDTH + longest.max(LABELS_WIDTH), height * compared.len() as u32);
        let whole = SVGBackend::with_string(&mut image, size).into_drawing_area();
        whole.fill(&WHITE)?;
        let panels = whole.split_evenly((compared.len(), 1));
        for (panel, (trace, lines)) in panels.iter().zip(compared.iter().zip(&lines)) {
            draw_panel(panel, trace, lines)?;
        }
        whole.present()?;
    }
    Ok(image)
}

/// Returns the lines of a trace. Contenders with the same curve share a line.
fn lines(trace: &Compared) -> Vec<PlotLine<'_>> {
    let mut lines: Vec<PlotLine<'_>> = Vec::new();
    for (contender, figures) in trace.comparison.figures.iter().enumerate() {
        let Ok(Figures { reserved: curve, .. }) = figures else { continue };
        let name = trace.title(contender);
        match lines.iter_mut().find(|line| line.curve == curve) {
            Some(line) => line.names = format!("{}, {name}", line.names),
            None => lines.push(PlotLine { curve, contender, names: name }),
        }
    }
    lines
}

/// Returns whether two lines coincide over at least a fifth of their length.
fn coincide(one: &Curve, other: &Curve, indistinct: u64) -> bool {
    let together =
        one.corners().zip(other.corners()).filter(|((_, one), (_, other))| one.abs_diff(*other) <= indistinct);
    together.count() * 5 >= one.corners().count()
}

fn draw_panel(area: &PanelArea<'_>, trace: &Compared, lines: &[PlotLine<'_>]) -> Result<(), Box<dyn Error>> {
    let comparison = &trace.comparison;
    let highest = lines.iter().map(|line| line.curve.peak()).max().unwrap_or(0).max(comparison.live.peak());
    // A program may hold nothing at all; an axis has a length all the same.
    let (end, top) = (comparison.operations.max(1), (highest as f64 / GIB * 1.05).max(1e-9));
    let (left, right) = area.split_horizontally(LINES_WIDTH);
    let mut chart = ChartBuilder::on(&left)
        .caption(&trace.name, (FONT, 18))
        .margin(8)
        .margin_right(0)
        .x_label_area_size(34)
        .y_label_area_size(64)
        .build_cartesian_2d(0..end, 0.0..top)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(BLACK.mix(0.1))
        .x_labels(8)
        .y_labels(5)
        .x_desc("operations")
        .y_desc("GiB")
        .label_style((FONT, 14))
        .axis_desc_style((FONT, 14))
        .draw()?;
    let corners =
        |curve: &Curve| -> Vec<(usize, f64)> { curve.corners().map(|(at, bytes)| (at, bytes as f64 / GIB)).collect() };
    chart.draw_series(AreaSeries::new(corners(&comparison.live), 0.0, LIVE))?;
    // The first contender is drawn last. A line that others cover is wider than they are, so none
    // is hidden.
    for (above, line) in lines.iter().enumerate().rev() {
        let covers = lines[..above].iter().filter(|other| coincide(line.curve, other.curve, highest / INDISTINCT));
        let style = colour(line.contender).stroke_width(WIDEST.min(2 + 2 * covers.count() as u32));
        if is_dashed(line.contender) {
            chart.draw_series(DashedLineSeries::new(corners(line.curve), DASH.0, DASH.1, style))?;
        } else {
            chart.draw_series(LineSeries::new(corners(line.curve), style))?;
        }
    }
    let (_, rows) = chart.plotting_area().get_pixel_range();
    let origin = right.get_base_pixel().1;
    let height = |bytes: u64| rows.end - origin - (bytes as f64 / GIB / top * f64::from(rows.end - rows.start)) as i32;
    let mut labels: Vec<EndLabel> = lines.iter().map(|line| EndLabel::of(line, height(line.curve.last()))).collect();
    let live = &comparison.live;
    let (text, bytes) = (value(live, "live: what the program asks for"), live.last());
    labels.push(EndLabel { text, colour: LIVE, bytes, at: height(bytes) });
    draw_labels(&right, labels, rows.start - origin..rows.end - origin)
}

/// The label at the end of a line.
struct EndLabel {
    text: String,
    colour: RGBColor,
    /// The amount at the end of the line.
    bytes: u64,
    /// The row of pixels in which the line ends.
    at: i32,
}

impl EndLabel {
    fn of(line: &PlotLine<'_>, at: i32) -> Self {
        Self { text: value(line.curve, &line.names), colour: colour(line.contender), bytes: line.curve.last(), at }
    }
}

/// Returns the text of a label: the value of a curve at the end, the name, and a different peak.
fn value(curve: &Curve, name: &str) -> String {
    let (last, peak) = (bytes::show(curve.last()), bytes::show(curve.peak()));
    if last == peak { format!("{last} {name}") } else { format!("{last} {name} (peak {peak})") }
}

/// Draws labels as near to their lines as possible without overlap, each with a stroke from the
/// line.
fn draw_labels(
    area: &PanelArea<'_>,
    mut labels: Vec<EndLabel>,
    rows: std::ops::Range<i32>,
) -> Result<(), Box<dyn Error>> {
    // By the amount: several may end in one row of pixels.
    labels.sort_by_key(|label| Reverse(label.bytes));
    let mut places: Vec<i32> = Vec::new();
    for label in &labels {
        let free = places.last().map_or(rows.start, |last| last + LABEL_HEIGHT);
        places.push(label.at.max(free));
    }
    // Labels that were pushed below the axis move up again, and push those above them.
    let mut lowest = rows.end;
    for place in places.iter_mut().rev() {
        *place = (*place).min(lowest);
        lowest = *place - LABEL_HEIGHT;
    }
    for (label, place) in labels.iter().zip(places) {
        area.draw(&PathElement::new([(2, label.at), (14, place), (30, place)], label.colour.stroke_width(2)))?;
        area.draw(&Text::new(label.text.clone(), (36, place - 7), (FONT, 14)))?;
    }
    Ok(())
}

/// Returns the colour of a contender's line.
fn colour(contender: usize) -> RGBColor {
    COLOURS[contender % COLOURS.len()]
}

/// Returns whether a contender's line is dashed: an earlier contender has the colour.
fn is_dashed(contender: usize) -> bool {
    contender / COLOURS.len() % 2 == 1
}
