//! Draws the picture of `--plot`: a panel for each problem, with every buffer as a rectangle over
//! time and address.

use super::{PlannedProblem, title};
use crate::commands::bytes::grouped;
use cachalot_planner::{Buffer, Plan};
use plotters::coord::Shift;
use plotters::prelude::*;
use std::collections::BTreeMap;
use std::error::Error;

type PlanArea<'a> = DrawingArea<SVGBackend<'a>, Shift>;

const WIDTH: u32 = 1200;
const PANEL_HEIGHT: u32 = 600;
/// The most characters of a caption, which in most fonts fit the width.
const CAPTION: usize = 120;
const FONT: &str = "sans-serif";
/// Colours distinguishable for colour-blind people (Okabe and Ito). Buffers of one size share a
/// colour, so repetition is visible.
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(240, 228, 66),
];
/// The opacity of a rectangle.
const FILL: f64 = 0.6;
/// Opacity of outlines. With more than `FEW` buffers outlines are fainter, because most of the ink
/// would be outlines.
const OUTLINE: f64 = 0.5;
/// Greatest number of buffers with full outlines.
const FEW: usize = 300;
/// Size in pixels below which a rectangle has no outline and is opaque.
const THIN: f64 = 4.0;
/// Least opacity of an outline. A fainter outline is not drawn.
const FAINTEST: f64 = 0.04;
/// Ratio of the axis of addresses to the peak.
const HEADROOM: f64 = 1.02;
/// Colour of the line at the peak.
const PEAK: RGBColor = RGBColor(213, 94, 0);

/// Draws the picture as text in SVG.
pub(super) fn draw(planned: &[&PlannedProblem]) -> Result<String, Box<dyn Error>> {
    let mut image = String::new();
    {
        let size = (WIDTH, PANEL_HEIGHT * planned.len() as u32);
        let whole = SVGBackend::with_string(&mut image, size).into_drawing_area();
        whole.fill(&WHITE)?;
        for (panel, one) in whole.split_evenly((planned.len(), 1)).iter().zip(planned) {
            if let Some(plan) = &one.solved.plan {
                draw_panel(panel, one, plan)?;
            }
        }
        whole.present()?;
    }
    Ok(image)
}

fn draw_panel(area: &PlanArea<'_>, one: &PlannedProblem, plan: &Plan) -> Result<(), Box<dyn Error>> {
    let buffers = &one.task.problem.buffers;
    let time = TimeAxis::of(buffers);
    let (scale, unit) = unit(plan.peak);
    let top = plan.peak as f64 / scale;
    let (peak, bound) = (grouped(plan.peak), grouped(one.solved.lower_bound));
    let caption = format!("{}: peak {peak} bytes, lower bound {bound}", title(&one.file, &one.task));
    let mut chart = ChartBuilder::on(area)
        .caption(shortened(&caption), (FONT, 18))
        .margin(8)
        .x_label_area_size(34)
        .y_label_area_size(72)
        .build_cartesian_2d(0.0..time.end, 0.0..(top * HEADROOM).max(1e-9))?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(BLACK.mix(0.1))
        .x_desc("time")
        .y_desc(unit)
        .x_label_formatter(&|&at| format!("{}", at + time.start as f64))
        .label_style((FONT, 14))
        .axis_desc_style((FONT, 14))
        .draw()?;
    let mut colours = BTreeMap::new();
    for buffer in buffers {
        let next = COLOURS[colours.len() % COLOURS.len()];
        colours.entry(buffer.size).or_insert(next);
    }
    // Steps and bytes of a pixel. Coordinates reach from the first pixel to the last but one.
    let (width, height) = chart.plotting_area().dim_in_pixel();
    let pixel = (time.end / f64::from(width - 2), top * HEADROOM / f64::from(height - 2));
    let outline = BLACK.mix(OUTLINE * (FEW as f64 / buffers.len() as f64).min(1.0));
    for (buffer, &offset) in buffers.iter().zip(&plan.offsets) {
        let (left, bottom) = (time.at(buffer.start), offset as f64 / scale);
        // At least a pixel, because the buffer at the peak may live for a step of many thousands.
        let (wide, high) = (time.at(buffer.end) - left, buffer.size as f64 / scale);
        let corners = [(left, bottom), (left + wide.max(pixel.0), bottom + high.max(pixel.1))];
        let is_thin = wide < THIN * pixel.0 || high < THIN * pixel.1;
        let colour = colours[&buffer.size].mix(if is_thin { 1.0 } else { FILL });
        chart.draw_series([Rectangle::new(corners, colour.filled())])?;
        if !is_thin && outline.alpha() > FAINTEST {
            chart.draw_series([Rectangle::new(corners, outline)])?;
        }
    }
    let bound = one.solved.lower_bound as f64 / scale;
    chart.draw_series(LineSeries::new([(0.0, top), (time.end, top)], PEAK.stroke_width(2)))?;
    chart.draw_series(LineSeries::new([(0.0, bound), (time.end, bound)], BLACK.stroke_width(1)))?;
    Ok(())
}

/// A caption without its beginning, the folders of a path, if the caption is too long.
fn shortened(caption: &str) -> String {
    let more = caption.chars().count().saturating_sub(CAPTION);
    if more == 0 { caption.to_owned() } else { format!("…{}", caption.chars().skip(more + 1).collect::<String>()) }
}

/// The steps of a problem. Endless buffers end a little after all others.
struct TimeAxis {
    start: u64,
    end: f64,
}

impl TimeAxis {
    fn of(buffers: &[Buffer]) -> Self {
        let start = buffers.iter().map(|buffer| buffer.start).min().unwrap_or(0);
        let ends = buffers.iter().flat_map(|buffer| [buffer.start + 1, buffer.end]);
        let end = ends.filter(|&end| end < u64::MAX).max().unwrap_or(start + 1);
        Self { start, end: end.saturating_sub(start) as f64 }
    }

    fn at(&self, step: u64) -> f64 {
        ((step - self.start) as f64).min(self.end)
    }
}

/// Returns the unit of the addresses.
fn unit(peak: u64) -> (f64, &'static str) {
    match peak {
        0..0x10_0000 => (1.0, "bytes"),
        0x10_0000..0x4000_0000 => (1_048_576.0, "MiB"),
        _ => (1_073_741_824.0, "GiB"),
    }
}
