//! Table of `tests/results/stitching.md`: the frontier of the setting `compact`, utilisation
//! against driver time for a range of budgets, as a table and a picture.

use crate::stitching::{Manner, StitchingExtent, run, summarise};
use cachalot_replay::compare::{Contender, Figures};
use cachalot_replay::program::DriverTime;
use cachalot_replay::replay::ReplayError;
use cachalot_replay::trace::Trace;
use cachalot_tests::figures::Table;
use plotters::prelude::*;
use std::error::Error;

/// Budgets of `compact`, from the least to the most accepted value.
pub const BUDGETS: [&str; 13] =
    ["0", "0.01", "0.02", "0.03", "0.05", "0.075", "0.1", "0.15", "0.2", "0.3", "0.5", "0.75", "1"];

/// Sizes of a segment for several large blocks in MiB, each with the colour of its points.
/// Colour-blind people tell the two colours apart.
const SEGMENTS: [(u32, RGBColor); 2] = [(20, RGBColor(0, 114, 178)), (40, RGBColor(213, 94, 0))];

/// Width and height of the picture.
const SIZE: (u32, u32) = (760, 460);

/// Distance of a label from its point.
const LABEL_OFFSET: (i32, i32) = (5, -18);

const FONT: &str = "sans-serif";

/// The figures of a configuration over all programs.
#[derive(Debug)]
struct Point {
    /// The value of `compact`, or `None` without the setting.
    budget: Option<&'static str>,
    /// The value of `large_segment_size_mb`.
    segment: u32,
    /// Geometric mean of the utilisation.
    utilisation: f64,
    /// Driver time of an allocation in later passes, in microseconds.
    steady_us: f64,
    /// The cells of the table from the utilisation on.
    cells: [String; 7],
}

/// The utilisation and the driver time of the caching policy for each budget.
#[derive(Debug)]
pub struct Frontier(Vec<Point>);

impl Frontier {
    /// Runs every program with every budget in `budgets`, and without a budget.
    ///
    /// # Errors
    /// The first program that cannot be run, or whose call an allocator refused for another reason
    /// than lack of memory.
    ///
    /// # Panics
    /// If a budget is no value of `compact`.
    pub fn measure(traces: &[Trace], budgets: &[&'static str], extent: StitchingExtent) -> Result<Self, ReplayError> {
        let with_budget = |segment: u32| budgets.iter().map(move |&budget| (Some(budget), segment));
        let of_segment = |&(segment, _): &(u32, RGBColor)| [(None, segment)].into_iter().chain(with_budget(segment));
        let settings: Vec<_> = SEGMENTS.iter().flat_map(of_segment).collect();
        let contender = |&(budget, segment): &(Option<&str>, u32)| {
            let compact = budget.map_or(String::new(), |budget| format!("compact:{budget},"));
            Contender::parse(&format!("{compact}large_segment_size_mb:{segment}")).expect("values of the settings")
        };
        let contenders: Vec<Contender> = settings.iter().map(contender).collect();
        let rows = run(traces, &contenders, Manner::of(extent.passes))?;
        let point = |(number, &(budget, segment)): (usize, &(Option<&'static str>, u32))| {
            let figures: Vec<&Figures> = rows.iter().map(|row| &row[number]).collect();
            let (utilisation, cells) = summarise(traces, &figures);
            let time = DriverTime::sum(figures.iter().map(|figures| &figures.driver));
            Point { budget, segment, utilisation, steady_us: time.steady_us().unwrap_or(0.0), cells }
        };
        Ok(Self(settings.iter().enumerate().map(point).collect()))
    }

    /// Returns the table.
    pub fn table(&self) -> Table {
        let header = [
            "`compact`",
            "`large_segment_size_mb`",
            "utilisation",
            "worst",
            "of",
            "cold µs",
            "steady µs",
            "stall ms",
            "out of memory",
            "on the frontier",
        ];
        let mut table = Table::new(header);
        for point in &self.0 {
            let settings = [point.budget.unwrap_or("off").to_owned(), point.segment.to_string()];
            let on_frontier = if self.is_on_frontier(point) { "yes" } else { "" };
            table.add_row(settings.into_iter().chain(point.cells.clone()).chain([on_frontier.to_owned()]));
        }
        table
    }

    /// Returns whether no point is better in one respect and as good in the second.
    fn is_on_frontier(&self, point: &Point) -> bool {
        let is_better = |other: &&Point| {
            let (utilisation, time) = (other.utilisation, other.steady_us);
            utilisation >= point.utilisation
                && time <= point.steady_us
                && (utilisation > point.utilisation || time < point.steady_us)
        };
        !self.0.iter().any(|other| is_better(&other))
    }

    /// Returns the points on the frontier, by driver time.
    fn frontier(&self) -> impl Iterator<Item = &Point> {
        let mut points: Vec<&Point> = self.0.iter().filter(|point| self.is_on_frontier(point)).collect();
        points.sort_by(|one, other| one.steady_us.total_cmp(&other.steady_us));
        points.into_iter()
    }

    /// Draws all points as text in SVG, with a line through the points on the frontier. The budgets
    /// are the labels of the points on the frontier.
    ///
    /// # Errors
    /// The errors of the drawing library.
    pub fn draw(&self) -> Result<String, Box<dyn Error>> {
        let mut image = String::new();
        {
            let area = SVGBackend::with_string(&mut image, SIZE).into_drawing_area();
            area.fill(&WHITE)?;
            let longest = self.0.iter().map(|point| point.steady_us).fold(0.0, f64::max);
            let lowest = self.0.iter().map(|point| point.utilisation).fold(1.0, f64::min);
            let mut chart = ChartBuilder::on(&area)
                .margin(16)
                .x_label_area_size(44)
                .y_label_area_size(60)
                // An axis has a length also if no configuration calls the driver, or if all use
                // everything.
                .build_cartesian_2d(0.0..(longest * 1.1).max(1e-3), (lowest * 10.0).floor().min(9.0) / 10.0..1.0)?;
            chart
                .configure_mesh()
                .light_line_style(TRANSPARENT)
                .bold_line_style(BLACK.mix(0.1))
                .x_desc("steady driver time of an allocation, µs")
                .y_desc("utilisation, geometric mean")
                .label_style((FONT, 14))
                .axis_desc_style((FONT, 14))
                .draw()?;
            let place = |point: &Point| (point.steady_us, point.utilisation);
            chart.draw_series(LineSeries::new(self.frontier().map(place), BLACK.mix(0.4)))?;
            for (segment, colour) in SEGMENTS {
                let points = self.0.iter().filter(|point| point.segment == segment);
                chart
                    .draw_series(points.map(|point| Circle::new(place(point), 4, colour.filled())))?
                    .label(format!("segments of {segment} MiB"))
                    .legend(move |(x, y)| Circle::new((x + 10, y), 4, colour.filled()));
                let label = |point: &Point| {
                    let text = point.budget.unwrap_or("off");
                    EmptyElement::at(place(point))
                        + Text::new(text, LABEL_OFFSET, (FONT, 13).into_font().color(&colour))
                };
                chart.draw_series(self.frontier().filter(|point| point.segment == segment).map(label))?;
            }
            chart
                .configure_series_labels()
                .position(SeriesLabelPosition::LowerRight)
                .label_font((FONT, 14))
                .background_style(WHITE)
                .draw()?;
            area.present()?;
        }
        Ok(image)
    }
}

#[cfg(test)]
mod tests {
    use super::Frontier;
    use crate::stitching::StitchingExtent;
    use cachalot_replay::trace::Trace;
    use std::path::Path;

    /// A record of a block, and then a larger block.
    const RECORD: &str = "action,addr,size,stream\nA,7f0000000000,31457280,0\na,7f0000000000,31457280,0\n\
        f,7f0000000000,31457280,0\nc,7f0000000000,31457280,0\nA,7f1000000000,41943040,0\na,7f1000000000,41943040,0\n\
        f,7f1000000000,41943040,0\nc,7f1000000000,41943040,0\n";

    #[test]
    fn each_budget_has_a_row_and_a_point() {
        let traces = Trace::load_bytes(Path::new("growing.csv"), RECORD.as_bytes()).unwrap();
        let extent = StitchingExtent { passes: 3, limit_factor: 1.05 };
        let frontier = Frontier::measure(&traces, &["0.05", "1"], extent).unwrap();
        let table = frontier.table();
        let row = |wanted: &str| assert!(table.rows.iter().any(|row| row.join(",") == wanted), "{wanted} in\n{table}");
        // Segments of 30 and 40 MiB, kept, for 32.9 and 33.9 µs; both forever.
        row("off,20,0.5714,0.5714,growing,33.416,0.000,0.03,0,");
        // The first is released for the second, in 35.7 µs: the device has finished with it, as a
        // new event tells.
        row("0.05,20,1.0000,1.0000,growing,51.474,0.000,0.07,0,yes");
        // Both are within twice the most in use.
        row("1,20,0.5714,0.5714,growing,33.416,0.000,0.03,0,");
        let image = frontier.draw().unwrap();
        assert!(image.starts_with("<svg") && image.contains("segments of 40 MiB"), "{image}");
        // A point for each of three rows and two sizes of segments, and one for each size in the
        // legend. Of each size, the budget without loss is labelled.
        assert_eq!(image.matches("<circle").count(), 6 + 2);
        let labels = |text: &str| image.lines().filter(|line| line.trim() == text).count();
        assert_eq!(["off", "0.05", "1"].map(labels), [0, 2, 0], "{image}");
    }
}
