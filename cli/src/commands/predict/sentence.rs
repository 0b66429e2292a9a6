//! The first sentence of a prediction: whether the program fits, what it needs, and the largest
//! batch that fits.

use super::{PredictArgs, Predicted};
use crate::commands::bytes;

/// What is known of the largest batch that fits.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum LargestBatch {
    /// A multiple of the recorded batch.
    Scale(f64),
    /// Not even a thousandth of the recorded batch fits, or everything does.
    None,
    /// The record does not tell what grows, for this reason.
    Untold(String),
}

impl Predicted {
    /// Returns whether the program fits into its limit, in words. `None` without a limit.
    pub(super) fn fits(&self, args: &PredictArgs) -> Option<String> {
        let limit = bytes::show(self.named.limit?);
        let device = args.device.as_ref().map_or_else(|| limit.clone(), |device| format!("{device} ({limit})"));
        let (first, whom) = (&self.predictions[0], self.title(0));
        let batch = self.largest_batch(args).map(|batch| format!("; {batch}")).unwrap_or_default();
        if first.ooms == 0 {
            let peak = bytes::show(first.peak_reserved_bytes);
            return Some(format!("Fits into {device} with {whom}: {peak} reserved at the peak{batch}."));
        }
        let failed = bytes::plural(first.ooms, "request");
        let verb = if first.ooms == 1 { "fails" } else { "fail" };
        let needs = self.needs.map(|needs| format!("needs {}", bytes::show(needs))).unwrap_or_default();
        let fitting = (1..self.predictions.len()).find(|&at| self.predictions[at].ooms == 0);
        let instead = fitting.map(|at| format!(" It fits with {}.", self.title(at))).unwrap_or_default();
        let colon = if needs.is_empty() && batch.is_empty() { "" } else { ": " };
        Some(format!("Does not fit into {device} with {whom}{colon}{needs}{batch}. {failed} {verb}.{instead}"))
    }

    /// Returns the largest batch that fits into the limit, in words.
    fn largest_batch(&self, args: &PredictArgs) -> Option<String> {
        let scale = match self.largest.as_ref()? {
            LargestBatch::Scale(scale) => *scale,
            // A thousand times the batch fits, or not even its thousandth part.
            LargestBatch::None if self.predictions[0].ooms == 0 => return None,
            LargestBatch::None => return Some("no batch fits".to_owned()),
            LargestBatch::Untold(_) => return None,
        };
        let whose = if self.named.is_list { "this one" } else { "the recorded one" };
        Some(match args.batch.map(|batch| (batch as f64 * scale) as u64) {
            Some(0) => "no batch fits".to_owned(),
            Some(batch) => format!("the largest batch is {}", bytes::grouped(batch)),
            None => format!("the largest batch is {} times {whose}", rounded_down(scale)),
        })
    }

    /// Returns why the largest batch is not told, in words.
    pub(super) fn untold(&self) -> Option<String> {
        match self.largest.as_ref()? {
            LargestBatch::Untold(why) => Some(format!("The largest batch is not known: {why}.")),
            LargestBatch::Scale(_) | LargestBatch::None => None,
        }
    }
}

/// Returns a factor with three digits, rounded down, so that it fits.
fn rounded_down(scale: f64) -> String {
    let digits = if scale < 1.0 { 3 } else { (2 - scale.log10() as i32).max(0) };
    let unit = 10_f64.powi(digits);
    let rounded = (scale * unit).floor() / unit;
    format!("{rounded}")
}

#[cfg(test)]
mod tests {
    use super::rounded_down;

    #[test]
    fn a_factor_is_never_rounded_up() {
        let shown = [0.4999, 1.0, 1.999, 12.39, 128.7, 1024.0].map(rounded_down);
        assert_eq!(shown, ["0.499", "1", "1.99", "12.3", "128", "1024"]);
    }
}
