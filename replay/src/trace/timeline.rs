//! Reads memory timelines of `torch.profiler`, as `export_memory_timeline` writes them.
//!
//! ```text
//! .raw.json.gz   [[time, action, bytes, category], …]
//! .json          [[time, …], [[0, bytes of each category …], …]]
//! ```
//!
//! A timeline has bytes by category, and neither addresses nor blocks. It says how much was in use
//! at most, and of what, and nothing about an allocator.

use super::kind::record_instead;
use super::start::size;
use serde::de::{Deserialize, Deserializer, SeqAccess, Visitor};
use std::fmt;
use std::io::BufRead;

/// The categories, by their numbers.
const CATEGORIES: [&str; 8] = [
    "parameters",
    "optimizer state",
    "inputs",
    "temporary memory",
    "activations",
    "gradients",
    "details of autograd",
    "memory without a category",
];

/// The action of a tensor that is written again: two entries, of which the first takes its bytes
/// away.
const WRITTEN_AGAIN: i64 = 3;

/// Returns what a timeline is, and what it says of its peak.
pub(super) fn described(reader: impl BufRead) -> String {
    let instead = record_instead!();
    match serde_json::Deserializer::from_reader(reader).into_iter::<Timeline>().next() {
        Some(Ok(Timeline { peak: Some(peak), .. })) => {
            let mut parts: Vec<(i64, &str)> =
                peak.into_iter().zip(CATEGORIES).filter(|(bytes, _)| *bytes > 0).collect();
            parts.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
            let bytes = |bytes: i64| size(bytes.cast_unsigned());
            let shown: Vec<String> = parts.iter().map(|(part, name)| format!("{} of {name}", bytes(*part))).collect();
            let total = bytes(parts.iter().map(|(part, _)| part).fold(0, |sum, part| sum.saturating_add(*part)));
            format!(
                "this is a memory timeline of torch.profiler, with at most {total} in use ({}), and without the blocks of an \
                 allocator: {instead}",
                shown.join(", ")
            )
        }
        _ => format!("this is a list of numbers, and no memory timeline of torch.profiler that can be read: {instead}"),
    }
}

/// The peak of a timeline.
#[derive(Default)]
struct Timeline {
    /// Bytes of each category.
    now: [i64; 8],
    /// The largest sum so far, with its bytes of each category.
    peak: Option<[i64; 8]>,
}

impl Timeline {
    fn look(&mut self) {
        let sum = |of: &[i64; 8]| of.iter().fold(0_i64, |sum, bytes| sum.saturating_add(*bytes));
        if self.peak.is_none_or(|peak| sum(&self.now) > sum(&peak)) {
            self.peak = Some(self.now);
        }
    }

    /// Adds an entry of a raw timeline, or a line of the other form.
    fn add(&mut self, line: &[i64]) {
        match *line {
            [_, action, bytes, category] => {
                let place = usize::try_from(category).ok().and_then(|category| self.now.get_mut(category));
                if let Some(place) = place {
                    *place = place.saturating_add(bytes);
                }
                if action != WRITTEN_AGAIN || bytes > 0 {
                    self.look();
                }
            }
            [_, ref categories @ ..] => {
                if let Ok(now) = categories.try_into() {
                    self.now = now;
                    self.look();
                }
            }
            [] => {}
        }
    }
}

impl<'de> Deserialize<'de> for Timeline {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Lines;
        impl<'de> Visitor<'de> for Lines {
            type Value = Timeline;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of lists of numbers")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Timeline, A::Error> {
                let mut timeline = Timeline::default();
                while let Some(line) = list.next_element()? {
                    match line {
                        Line::Numbers(numbers) => timeline.add(&numbers),
                        // The list before was that of the times.
                        Line::Peak(peak) => return Ok(Timeline { peak, ..Timeline::default() }),
                    }
                }
                Ok(timeline)
            }
        }
        deserializer.deserialize_seq(Lines)
    }
}

/// An element of the first level: the numbers of an entry, or of the lines of the other form the
/// peak.
enum Line {
    Numbers(Vec<i64>),
    Peak(Option<[i64; 8]>),
}

impl<'de> Deserialize<'de> for Line {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(serde::Deserialize)]
        #[serde(untagged)]
        enum Element {
            Number(i64),
            Line(Vec<i64>),
        }
        struct Elements;
        impl<'de> Visitor<'de> for Elements {
            type Value = Line;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("numbers, or lists of numbers")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Line, A::Error> {
                let (mut numbers, mut lines) = (Vec::new(), Timeline::default());
                while let Some(element) = list.next_element()? {
                    match element {
                        Element::Number(number) => numbers.push(number),
                        Element::Line(line) => lines.add(&line),
                    }
                }
                Ok(if lines.peak.is_some() { Line::Peak(lines.peak) } else { Line::Numbers(numbers) })
            }
        }
        deserializer.deserialize_seq(Elements)
    }
}

#[cfg(test)]
mod tests {
    use super::described;

    #[test]
    fn the_peak_of_both_forms_is_the_same() {
        let raw =
            "[[-1, 1, 1048576, 0], [5, 2, 2097152, 4], [6, 3, -2097152, 4], [6, 3, 2097152, 5], [7, 4, -2097152, 5]]";
        let lines = "[[1, 5, 6, 7], [[0, 1048576, 0, 0, 0, 0, 0, 0, 0], [0, 1048576, 0, 0, 0, 2097152, 0, 0, 0], \
                     [0, 1048576, 0, 0, 0, 0, 2097152, 0, 0], [0, 1048576, 0, 0, 0, 0, 0, 0, 0]]]";
        let what = "with at most 3.00 MiB in use (2.00 MiB of activations, 1.00 MiB of parameters)";
        for text in [raw, lines] {
            assert!(described(text.as_bytes()).contains(what), "{}", described(text.as_bytes()));
        }
        for text in
            ["[[1, 2", "[[]]", "[[1.5]]", "[[9223372036854775808]]", "[[0, 1, 9223372036854775807, 0], [0, 1, 1, 1]]"]
        {
            assert!(!described(text.as_bytes()).is_empty());
        }
    }
}
