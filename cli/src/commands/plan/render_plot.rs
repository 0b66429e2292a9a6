//! The picture of `--plot`: a panel for each problem, with every buffer as a rectangle over time and address.

use super::{Planned, title};
use cachalot_planner::{Buffer, Plan};
use plotters::coord::Shift;
use plotters::prelude::*;
use std::collections::BTreeMap;
use std::error::Error;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

const WIDTH: u32 = 1200;
const PANEL_HEIGHT: u32 = 600;
const FONT: &str = "sans-serif";
/// Colours that most people tell apart. Buffers of one size have one colour, so that what comes again is seen to.
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(139, 69, 19),
    RGBColor(106, 61, 154),
];
/// Above so many buffers, rectangles have no outlines: there would be little else to see.
const OUTLINED: usize = 5000;

/// Draws the picture as text in SVG.
pub(super) fn draw(planned: &[&Planned]) -> Result<String, Box<dyn Error>> {
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

fn draw_panel(area: &Area<'_>, one: &Planned, plan: &Plan) -> Result<(), Box<dyn Error>> {
    let buffers = &one.task.problem.buffers;
    let time = Time::of(buffers);
    let (scale, unit) = unit(plan.peak);
    let top = plan.peak as f64 / scale;
    let caption =
        format!("{}: peak {} bytes, lower bound {}", title(&one.file, &one.task), plan.peak, one.solved.lower_bound);
    let mut chart = ChartBuilder::on(area)
        .caption(caption, (FONT, 18))
        .margin(8)
        .x_label_area_size(34)
        .y_label_area_size(72)
        .build_cartesian_2d(0.0..time.end, 0.0..top * 1.02)?;
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
    for (buffer, &offset) in buffers.iter().zip(&plan.offsets) {
        let corners = [
            (time.at(buffer.start), offset as f64 / scale),
            (time.at(buffer.end), (offset + buffer.size) as f64 / scale),
        ];
        chart.draw_series([Rectangle::new(corners, colours[&buffer.size].mix(0.6).filled())])?;
        if buffers.len() <= OUTLINED {
            chart.draw_series([Rectangle::new(corners, BLACK.mix(0.5))])?;
        }
    }
    let bound = one.solved.lower_bound as f64 / scale;
    chart.draw_series(LineSeries::new([(0.0, bound), (time.end, bound)], BLACK.stroke_width(1)))?;
    chart.draw_series(LineSeries::new([(0.0, top), (time.end, top)], RED.stroke_width(1)))?;
    Ok(())
}

/// The steps of a problem. What never ends, ends a little after everything else.
struct Time {
    start: u64,
    end: f64,
}

impl Time {
    fn of(buffers: &[Buffer]) -> Self {
        let start = buffers.iter().map(|buffer| buffer.start).min().unwrap_or(0);
        let ends = buffers.iter().flat_map(|buffer| [buffer.start + 1, buffer.end]);
        let end = ends.filter(|&end| end < u64::MAX).max().unwrap_or(start + 1);
        Self { start, end: (end - start) as f64 }
    }

    fn at(&self, step: u64) -> f64 {
        ((step - self.start) as f64).min(self.end)
    }
}

/// The unit of the addresses.
fn unit(peak: u64) -> (f64, &'static str) {
    match peak {
        0..0x10_0000 => (1.0, "bytes"),
        0x10_0000..0x4000_0000 => (1_048_576.0, "MiB"),
        _ => (1_073_741_824.0, "GiB"),
    }
}
