//! Annotations and steps of a program, from the marks of profilers and of the program.

use cachalot_snapshot::Snapshot;
use std::collections::{BTreeMap, HashMap};

/// A marked part of the program, in microseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Occurrence {
    pub(super) name: String,
    device: i64,
    /// `None` if the mark of the start was lost.
    pub(super) start: Option<i64>,
    /// `None` if the part had not ended.
    pub(super) end: Option<i64>,
}

/// The marks of a file, by their start.
#[derive(Debug, Default)]
pub(super) struct Marks(Vec<Occurrence>);

/// The steps of a program.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MarkedSteps {
    /// What marks them, for a reader.
    pub(super) by: String,
    /// Start and end of each step by number. `None` is the start or the end of the history.
    pub(super) steps: BTreeMap<u64, (Option<i64>, Option<i64>)>,
}

/// The name that PyTorch gives to each call of an optimizer, before the class.
const OPTIMIZER: &str = "Optimizer.step#";

/// The name that torch.profiler gives to a step, in lower case and without the number.
const PROFILER: &str = "profilerstep";

impl Marks {
    /// Returns the marks of a snapshot: `external_annotations`, and events with a text of the
    /// program.
    pub(super) fn of(snapshot: &Snapshot) -> Self {
        let mut found: Vec<Occurrence> = Vec::new();
        let mut open: Vec<usize> = Vec::new();
        for mark in snapshot.external_annotations.iter().flatten() {
            let (name, device) = (mark.name.clone(), mark.device);
            if mark.stage == "START" {
                open.push(found.len());
                found.push(Occurrence { name, device, start: Some(mark.time_us), end: None });
                continue;
            }
            let is_same = |&at: &usize| (&found[at].name, found[at].device) == (&name, device);
            match open.iter().rposition(is_same) {
                Some(place) => found[open.remove(place)].end = Some(mark.time_us),
                None => found.push(Occurrence { name, device, start: None, end: Some(mark.time_us) }),
            }
        }
        for (device, trace) in (0..).zip(&snapshot.device_traces) {
            for event in trace.iter().filter(|event| matches!(&*event.action, "annotate" | "user_defined")) {
                let text = event.details.as_ref().and_then(|details| details.user_metadata.as_deref());
                if let Some(name) = text.filter(|text| !text.is_empty())
                    && event.time_us.is_some()
                {
                    let (start, end) = (event.time_us, event.time_us);
                    found.push(Occurrence { name: name.to_owned(), device, start, end });
                }
            }
        }
        found.sort_by_key(|occurrence| occurrence.start.or(occurrence.end));
        Self(found)
    }

    /// Returns every occurrence of a name. Of a name on several devices, those on the first.
    pub(super) fn named(&self, name: &str) -> Vec<&Occurrence> {
        let all = || self.0.iter().filter(|occurrence| occurrence.name == name);
        let first = all().map(|occurrence| occurrence.device).min();
        all().filter(|occurrence| Some(occurrence.device) == first).collect()
    }

    /// Returns the names with the number of their occurrences, in the order of their first one.
    pub(super) fn names(&self) -> Vec<(&str, usize)> {
        let mut devices = HashMap::<&str, i64>::new();
        for Occurrence { name, device, .. } in &self.0 {
            devices.entry(name).and_modify(|first| *first = (*first).min(*device)).or_insert(*device);
        }
        let (mut names, mut places) = (Vec::<(&str, usize)>::new(), HashMap::<&str, usize>::new());
        for Occurrence { name, .. } in self.0.iter().filter(|one| devices[&*one.name] == one.device) {
            let place = *places.entry(name).or_insert(names.len());
            match names.get_mut(place) {
                Some((_, count)) => *count += 1,
                None => names.push((name, 1)),
            }
        }
        names
    }

    /// Returns the steps that end after a time: those that annotations number, or else those
    /// between the ends of an optimizer's calls. `None` if nothing marks steps.
    pub(super) fn steps(&self, first_us: i64) -> Option<MarkedSteps> {
        self.numbered().or_else(|| self.by_optimizer(first_us))
    }

    /// Returns the steps of the first family of numbered annotations. That of torch.profiler comes
    /// before all others.
    fn numbered(&self) -> Option<MarkedSteps> {
        let numbered = || self.0.iter().filter_map(|occurrence| Some((occurrence, step_of(&occurrence.name)?)));
        let family = numbered().map(|(_, (family, _))| family);
        let family = family.clone().find(|family| family == PROFILER).or_else(|| family.clone().next())?;
        let mut steps = BTreeMap::new();
        let mut by = String::new();
        for (occurrence, (_, number)) in numbered().filter(|(_, (of, _))| *of == family) {
            if by.is_empty() {
                by.clone_from(&occurrence.name);
            }
            steps.entry(number).or_insert((occurrence.start, occurrence.end));
        }
        Some(MarkedSteps { by: format!("annotations such as `{by}`"), steps })
    }

    fn by_optimizer(&self, first_us: i64) -> Option<MarkedSteps> {
        let name = &self.0.iter().find(|occurrence| occurrence.name.starts_with(OPTIMIZER))?.name;
        let mut ends: Vec<i64> = self.named(name).into_iter().filter_map(|occurrence| occurrence.end).collect();
        ends.retain(|&end| end >= first_us);
        ends.sort_unstable();
        let starts = std::iter::once(None).chain(ends.iter().map(|end| Some(end.saturating_add(1))));
        let steps = (0..).zip(starts.zip(ends.iter().map(|&end| Some(end)))).collect();
        Some(MarkedSteps { by: format!("the ends of `{name}`"), steps })
    }
}

/// Returns the family and the number of a step's annotation, such as `ProfilerStep#3`, `step 3` or
/// `## train_step: 3 ##`. `None` for any other name.
fn step_of(name: &str) -> Option<(String, u64)> {
    let is_other = |letter: char| !letter.is_alphanumeric();
    let name = name.trim_matches(is_other);
    let family = name.trim_end_matches(|letter: char| letter.is_ascii_digit());
    let number = name[family.len()..].parse().ok()?;
    let family = family.trim_end_matches(is_other).to_lowercase();
    family.ends_with("step").then_some((family, number))
}

#[cfg(test)]
mod tests {
    use super::step_of;

    #[test]
    fn a_step_is_numbered_at_its_end() {
        let number = |name: &str| step_of(name).map(|(_, number)| number);
        for (name, expected) in [
            ("ProfilerStep#3", Some(3)),
            ("step 0", Some(0)),
            ("## step 12 ##", Some(12)),
            ("train_step: 4", Some(4)),
            ("Optimizer.step#AdamW.step", None),
            ("layer 3", None),
            ("step", None),
            ("3", None),
        ] {
            assert_eq!(number(name), expected, "{name}");
        }
    }
}
