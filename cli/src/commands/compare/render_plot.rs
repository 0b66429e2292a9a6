//! The picture of `--plot`: a panel for each trace, with a line for what each contender reserves, over what is live.

use super::{Compared, title};
use cachalot_replay::compare::{Contender, Curve, Figures};
use plotters::coord::Shift;
use plotters::prelude::*;
use std::error::Error;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

const WIDTH: u32 = 1000;
const PANEL_HEIGHT: u32 = 260;
/// The height of a line of the legend.
const ENTRY_HEIGHT: u32 = 20;
const FONT: &str = "sans-serif";
/// What is live is an area of this grey.
const LIVE: RGBColor = RGBColor(205, 205, 205);
/// Colours that most people tell apart; with more contenders they begin again.
const COLOURS: [RGBColor; 10] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
    RGBColor(128, 128, 0),
    RGBColor(139, 69, 19),
    RGBColor(106, 61, 154),
];
const GIB: f64 = (1_u64 << 30) as f64;

/// Draws the picture as text in SVG.
pub(super) fn draw(compared: &[Compared], contenders: &[Contender]) -> Result<String, Box<dyn Error>> {
    let legend = ENTRY_HEIGHT * (contenders.len() as u32 + 2);
    let mut image = String::new();
    {
        let size = (WIDTH, legend + PANEL_HEIGHT * compared.len() as u32);
        let whole = SVGBackend::with_string(&mut image, size).into_drawing_area();
        whole.fill(&WHITE)?;
        let (top, panels) = whole.split_vertically(legend);
        draw_legend(&top, contenders)?;
        for (panel, trace) in panels.split_evenly((compared.len(), 1)).iter().zip(compared) {
            draw_panel(panel, trace)?;
        }
        whole.present()?;
    }
    Ok(image)
}

/// The colour of a contender's line.
fn colour(contender: usize) -> RGBColor {
    COLOURS[contender % COLOURS.len()]
}

fn draw_legend(area: &Area<'_>, contenders: &[Contender]) -> Result<(), Box<dyn Error>> {
    let entry = |number: usize, style: ShapeStyle, text: String| -> Result<(), Box<dyn Error>> {
        let top = ENTRY_HEIGHT as i32 / 2 + number as i32 * ENTRY_HEIGHT as i32;
        area.draw(&Rectangle::new([(20, top + 3), (44, top + 9)], style))?;
        area.draw(&Text::new(text, (52, top), (FONT, 15)))?;
        Ok(())
    };
    entry(0, LIVE.filled(), "live: what the program asks for".to_owned())?;
    for (number, contender) in contenders.iter().enumerate() {
        entry(number + 1, colour(number).filled(), format!("reserved: {}", title(contender)))?;
    }
    Ok(())
}

fn draw_panel(area: &Area<'_>, trace: &Compared) -> Result<(), Box<dyn Error>> {
    let comparison = &trace.comparison;
    let reserved =
        || {
            comparison.figures.iter().enumerate().filter_map(|(number, figures)| {
                figures.as_ref().ok().map(|Figures { reserved, .. }| (number, reserved))
            })
        };
    let highest = reserved().map(|(_, curve)| curve.peak()).max().unwrap_or(0).max(comparison.live.peak());
    // A program may hold nothing at all; an axis has a length all the same.
    let (end, top) = (comparison.operations.max(1), (highest as f64 / GIB * 1.05).max(1e-9));
    let mut chart = ChartBuilder::on(area)
        .caption(&trace.name, (FONT, 18))
        .margin(8)
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
    let line =
        |curve: &Curve| -> Vec<(usize, f64)> { curve.corners().map(|(at, bytes)| (at, bytes as f64 / GIB)).collect() };
    chart.draw_series(AreaSeries::new(line(&comparison.live), 0.0, LIVE))?;
    for (number, curve) in reserved() {
        chart.draw_series(LineSeries::new(line(curve), colour(number).stroke_width(1)))?;
    }
    Ok(())
}
