//! Builds events while a pickle is read, so that the values of millions of events never exist at
//! the same time.

use crate::lenient::HARVESTED;
use crate::model::Event;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use std::cell::RefCell;
use std::fmt;
use std::ops::Range;

thread_local! {
    /// Finished events of the calling thread's reader, in order.
    static MADE: RefCell<Vec<Event>> = const { RefCell::new(Vec::new()) };
}

/// Runs a reader of one file, and discards the remaining events afterwards.
pub(crate) fn reading<T>(read: impl FnOnce() -> T) -> T {
    MADE.take();
    let done = read();
    MADE.take();
    done
}

/// Returns all finished events of the present file.
pub(crate) fn take() -> Vec<Event> {
    MADE.take()
}

/// Stores a finished event and returns the number of the event.
pub(crate) fn keep(event: Event) -> u32 {
    MADE.with_borrow_mut(|made| {
        made.push(event);
        made.len() as u32 - 1
    })
}

/// Returns a finished event as plain values, for a place where no event belongs.
pub(crate) fn expand(number: u32) -> Option<serde_json::Value> {
    serde_json::to_value(copy(number)?).ok()
}

fn copy(number: u32) -> Option<Event> {
    MADE.with_borrow(|made| made.get(number as usize).cloned())
}

/// An event of a list, or the number of a finished event.
pub(crate) enum Numbered {
    Made(u32),
    Own(Box<Event>),
}

impl<'de> Deserialize<'de> for Numbered {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_newtype_struct(HARVESTED, HarvestReader)
    }
}

impl<'de> Deserialize<'de> for Event {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Numbered::deserialize(deserializer)? {
            Numbered::Own(event) => Ok(*event),
            Numbered::Made(number) => copy(number).ok_or_else(|| serde::de::Error::custom("there is no such event")),
        }
    }
}

struct HarvestReader;

impl<'de> Visitor<'de> for HarvestReader {
    type Value = Numbered;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an event")
    }

    fn visit_u32<E>(self, number: u32) -> Result<Numbered, E> {
        Ok(Numbered::Made(number))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<Numbered, D::Error> {
        Event::read(deserializer).map(|event| Numbered::Own(Box::new(event)))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Numbered, A::Error> {
        Event::read(MapAccessDeserializer::new(map)).map(|event| Numbered::Own(Box::new(event)))
    }
}

/// The events of a list: finished events as ranges of consecutive numbers.
#[derive(Default)]
pub(crate) struct EventList(Vec<Part>);

/// A part of a list of events.
enum Part {
    Made(Range<usize>),
    Own(Box<Event>),
}

impl<'de> Deserialize<'de> for EventList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Lister;
        impl<'de> Visitor<'de> for Lister {
            type Value = EventList;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of events")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<EventList, A::Error> {
                let mut list = EventList::default();
                while let Some(entry) = entries.next_element()? {
                    list.push(entry);
                }
                Ok(list)
            }
        }
        deserializer.deserialize_seq(Lister)
    }
}

impl EventList {
    fn push(&mut self, entry: Numbered) {
        match (entry, self.0.last_mut()) {
            (Numbered::Made(number), Some(Part::Made(range))) if range.end == number as usize => range.end += 1,
            (Numbered::Made(number), _) => self.0.push(Part::Made(number as usize..number as usize + 1)),
            (Numbered::Own(event), _) => self.0.push(Part::Own(event)),
        }
    }

    /// Returns the range of the list's events, or `None` unless the numbers are consecutive. An
    /// empty list starts at 0.
    fn range(&self) -> Option<Range<usize>> {
        match &self.0[..] {
            [] => Some(0..0),
            [Part::Made(range)] => Some(range.clone()),
            _ => None,
        }
    }
}

/// Returns the converted events of every list. `made` has the finished events in order. If every
/// list has consecutive events, no event is copied.
pub(crate) fn gather<T: Clone>(
    lists: Vec<EventList>,
    mut made: Vec<T>,
    mut convert: impl FnMut(Event) -> T,
) -> Vec<Vec<T>> {
    let ranges = lists.iter().map(EventList::range).collect::<Option<Vec<Range<usize>>>>();
    let in_order = |ranges: &Vec<Range<usize>>| {
        ranges.iter().filter(|range| !range.is_empty()).is_sorted_by(|one, next| one.end <= next.start)
    };
    let Some(ranges) = ranges.filter(in_order) else {
        return copied(lists, &made, &mut convert);
    };
    // From the end backwards, so that the remaining events need not move.
    let mut gathered: Vec<Vec<T>> = ranges
        .iter()
        .rev()
        .map(|range| {
            if range.is_empty() {
                return Vec::new();
            }
            made.truncate(range.end);
            if range.start == 0 { std::mem::take(&mut made) } else { made.split_off(range.start.min(made.len())) }
        })
        .collect();
    gathered.reverse();
    gathered
}

fn copied<T: Clone>(lists: Vec<EventList>, made: &[T], convert: &mut impl FnMut(Event) -> T) -> Vec<Vec<T>> {
    let mut events = |part| match part {
        Part::Own(event) => vec![convert(*event)],
        Part::Made(range) => made.get(range).unwrap_or_default().to_vec(),
    };
    lists.into_iter().map(|list| list.0.into_iter().flat_map(&mut events).collect()).collect()
}
