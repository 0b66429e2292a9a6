//! Builds events while a pickle is read, so that the values of millions of events never exist at
//! the same time.

use crate::model::Event;
use serde::de::{Deserialize, Deserializer, Visitor};
use std::cell::RefCell;
use std::fmt;
use std::ops::Range;

/// Name of the serde newtype for an event. A reader of pickles passes the number of a finished
/// event to the visitor of the name.
pub(crate) const HARVESTED: &str = "cachalot::Event";

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
        deserializer.deserialize_newtype_struct(HARVESTED, Reader)
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

struct Reader;

impl<'de> Visitor<'de> for Reader {
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
}

/// Returns the events of every list. If every list has consecutive events, no event is copied.
pub(crate) fn gather(lists: Vec<Vec<Numbered>>) -> Vec<Vec<Event>> {
    let mut made = MADE.take();
    let Some(ranges) = lists.iter().map(|list| range(list)).collect::<Option<Vec<Range<usize>>>>() else {
        return copied(lists, &made);
    };
    if !ranges.is_sorted_by(|one, next| one.end <= next.start) {
        return copied(lists, &made);
    }
    // From the end backwards, so that the remaining events need not move.
    let mut gathered: Vec<Vec<Event>> = ranges
        .iter()
        .rev()
        .map(|range| {
            made.truncate(range.end);
            if range.start == 0 { std::mem::take(&mut made) } else { made.split_off(range.start.min(made.len())) }
        })
        .collect();
    gathered.reverse();
    gathered
}

/// Returns the range of a list's events, or `None` unless the numbers are consecutive. An empty
/// list starts at 0.
fn range(list: &[Numbered]) -> Option<Range<usize>> {
    let number = |numbered: &Numbered| if let Numbered::Made(made) = numbered { Some(*made as usize) } else { None };
    let first = list.first().map_or(Some(0), number)?;
    let follows = |(expected, numbered)| number(numbered) == Some(expected);
    (first..).zip(list).all(follows).then(|| first..first + list.len())
}

fn copied(lists: Vec<Vec<Numbered>>, made: &[Event]) -> Vec<Vec<Event>> {
    let event = |numbered| match numbered {
        Numbered::Own(event) => *event,
        Numbered::Made(number) => made[number as usize].clone(),
    };
    lists.into_iter().map(|list| list.into_iter().map(event).collect()).collect()
}
