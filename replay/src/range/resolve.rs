//! Finds the events of a range in a snapshot, or says what the snapshot has instead.

use super::marks::{Marks, Occurrence};
use super::moment::{Moment, duration};
use cachalot_snapshot::{Event, Snapshot};
use serde::Serialize;

/// The events of a device that are in a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Span {
    /// The device.
    pub device: i64,
    /// Number of the device's events before the range.
    pub from_event: usize,
    /// Number of the device's events before the end of the range.
    pub to_event: usize,
    /// Number of all events of the device.
    pub events: usize,
    /// The time of the first event in the range, in microseconds after the first event of the file.
    pub from_us: Option<i64>,
    /// The time of the last event in the range, as above.
    pub to_us: Option<i64>,
}

/// A range of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HistoryRange {
    /// The devices with a history, by number.
    pub devices: Vec<Span>,
}

/// Which end of a range a moment is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RangeEnd {
    From,
    To,
}

/// A history, for questions about moments.
struct Histories<'s> {
    /// The events of each device that has any.
    traces: Vec<(i64, &'s [Event])>,
    marks: Marks,
    /// The times of the first and of the last event of the file. `None` without times.
    ends_us: Option<(i64, i64)>,
}

/// Most names in a message.
const MOST_NAMES: usize = 8;

/// Finds the events of a range. Without a start, it begins with the history, and without an end, it
/// ends with it.
///
/// # Errors
/// A text about the option that cannot be found, with what the snapshot has, or about an empty
/// range.
pub fn resolve(snapshot: &Snapshot, from: Option<&Moment>, to: Option<&Moment>) -> Result<HistoryRange, String> {
    let traces: Vec<_> = (0..).zip(&snapshot.device_traces).filter(|(_, trace)| !trace.is_empty()).collect();
    let traces: Vec<(i64, &[Event])> = traces.into_iter().map(|(device, trace)| (device, &trace[..])).collect();
    if traces.is_empty() {
        return Err("no events were recorded, and without a history there is no range".to_owned());
    }
    let times = || traces.iter().flat_map(|(_, trace)| trace.iter()).filter_map(|event| event.time_us);
    let ends_us = times().min().zip(times().max());
    let histories = Histories { traces, marks: Marks::of(snapshot), ends_us };
    let from = histories.places(from, RangeEnd::From).map_err(|what| format!("--from: {what}"))?;
    let to = histories.places(to, RangeEnd::To).map_err(|what| format!("--to: {what}"))?;
    if from.iter().zip(&to).all(|(from, to)| from >= to) {
        let [from, to] = [from[0], to[0]].map(|number| count(number, "event"));
        return Err(format!("no event is in the range: it begins after {from} and ends after {to}"));
    }
    Ok(HistoryRange { devices: histories.spans(&from, &to) })
}

/// Formats a count with its noun.
fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

impl Histories<'_> {
    /// Returns the number of events before a moment, for each device.
    fn places(&self, moment: Option<&Moment>, end: RangeEnd) -> Result<Vec<usize>, String> {
        let whole = || match end {
            RangeEnd::From => vec![0; self.traces.len()],
            RangeEnd::To => self.traces.iter().map(|(_, trace)| trace.len()).collect(),
        };
        let Some(moment) = moment else { return Ok(whole()) };
        let at = match moment {
            Moment::Event(number) => return self.event(*number).map(|place| vec![place]),
            Moment::Time(us) => Some(self.time(*us)?),
            Moment::Annotation(name) => self.annotation(name, end)?,
            Moment::Step(number) => self.step(*number, end)?,
        };
        Ok(at.map_or_else(whole, |at| self.traces.iter().map(|(_, trace)| place_of(trace, at, end)).collect()))
    }

    fn event(&self, number: u64) -> Result<usize, String> {
        let [(_, trace)] = &self.traces[..] else {
            return Err(format!(
                "events are counted for each device, and {} devices have events: name a time, an annotation or a step",
                self.traces.len()
            ));
        };
        let place = usize::try_from(number).ok().filter(|&place| place <= trace.len());
        place.ok_or_else(|| format!("there is no event {number}: the history has {}", count(trace.len(), "event")))
    }

    /// Returns the times of the first and of the last event.
    fn ends_us(&self) -> Result<(i64, i64), String> {
        self.ends_us.ok_or_else(|| "the events have no times: name a number of events".to_owned())
    }

    fn time(&self, us: i64) -> Result<i64, String> {
        let (first, last) = self.ends_us()?;
        let length = last.saturating_sub(first);
        if us > length {
            return Err(format!("{} is after the end: the history is {} long", duration(us), duration(length)));
        }
        Ok(first.saturating_add(us))
    }

    /// Returns the time of an annotation's start or end. `None` for the start or the end of the
    /// history.
    fn annotation(&self, text: &str, end: RangeEnd) -> Result<Option<i64>, String> {
        let (first_us, _) = self.ends_us()?;
        let (mut name, mut number) = (text, 1);
        let mut found = self.marks.named(name);
        // A name may end with a number itself, as `ProfilerStep#3` does.
        if found.is_empty()
            && let Some((start, digits)) = text.rsplit_once('#')
            && let Ok(parsed) = digits.parse::<usize>()
        {
            (name, number) = (start, parsed);
            found = self.marks.named(name);
        }
        if found.is_empty() {
            return Err(format!("no annotation is named `{name}`: {}", self.named()));
        }
        let one = number.checked_sub(1).and_then(|at| found.get(at));
        let one = one.ok_or_else(|| format!("`{name}` occurs {}", count(found.len(), "time")))?;
        let Occurrence { start, end: stop, .. } = **one;
        if stop.is_some_and(|stop| stop < first_us) {
            return Err(format!("`{text}` ended before the first event of the history"));
        }
        Ok(if end == RangeEnd::From { start } else { stop })
    }

    /// Says which annotations there are.
    fn named(&self) -> String {
        let names = self.marks.names();
        let shown: Vec<String> = names
            .iter()
            .take(MOST_NAMES)
            .map(|&(name, times)| match times {
                1 => format!("`{name}`"),
                _ => format!("`{name}` ({times} times)"),
            })
            .collect();
        match names.len().saturating_sub(MOST_NAMES) {
            _ if shown.is_empty() => "the file has no annotations".to_owned(),
            0 => format!("the file has {}", shown.join(", ")),
            more => format!("the file has {} and {more} more", shown.join(", ")),
        }
    }

    /// Returns the time of a step's start or end. `None` for the start or the end of the history.
    fn step(&self, number: u64, end: RangeEnd) -> Result<Option<i64>, String> {
        let (first_us, _) = self.ends_us()?;
        let Some(steps) = self.marks.steps(first_us) else {
            return Err(format!(
                "nothing marks steps: annotations such as `ProfilerStep#{number}` or `step {number}` do, and calls of \
                 `Optimizer.step`; {}",
                self.named()
            ));
        };
        let (known, by) = (&steps.steps, &steps.by);
        let Some(&(start, stop)) = known.get(&number) else {
            return Err(match (known.keys().next(), known.keys().next_back()) {
                (Some(first), Some(last)) => {
                    format!("there is no step {number}: the file has steps {first} to {last}, by {by}")
                }
                _ => format!("there is no step {number}: no step has ended in the history"),
            });
        };
        if stop.is_some_and(|stop| stop < first_us) {
            return Err(format!("step {number} ended before the first event of the history"));
        }
        Ok(if end == RangeEnd::From { start } else { stop })
    }

    fn spans(&self, from: &[usize], to: &[usize]) -> Vec<Span> {
        let spans = self.traces.iter().zip(from.iter().zip(to)).map(|(&(device, trace), (&from, &to))| {
            let to = to.max(from);
            let within = &trace[from..to];
            let after = |event: Option<&Event>| Some(event?.time_us?.saturating_sub(self.ends_us?.0));
            Span {
                device,
                from_event: from,
                to_event: to,
                events: trace.len(),
                from_us: after(within.first()),
                to_us: after(within.last()),
            }
        });
        spans.collect()
    }
}

/// Returns the number of events before a time, or as the end of a range, up to a time.
fn place_of(trace: &[Event], at: i64, end: RangeEnd) -> usize {
    let is_in = |event: &Event| match end {
        RangeEnd::From => event.time_us.is_some_and(|time| time >= at),
        RangeEnd::To => event.time_us.is_some_and(|time| time <= at),
    };
    match end {
        RangeEnd::From => trace.iter().position(is_in).unwrap_or(trace.len()),
        RangeEnd::To => trace.iter().rposition(is_in).map_or(0, |last| last + 1),
    }
}
