//! Events that are made while a pickle is read, so that the millions of them never exist as the pickle's own values.

use crate::model::Event;
use serde::de::{Deserialize, Deserializer, Visitor};
use std::cell::RefCell;
use std::fmt;
use std::ops::Range;

/// The name of a serde newtype that is an event. A reader of pickles gives the visitor of this name the number of an event that
/// was made before.
pub(crate) const HARVESTED: &str = "cachalot::Event";

thread_local! {
    /// The events that this thread's reader has made, in order.
    static MADE: RefCell<Vec<Event>> = const { RefCell::new(Vec::new()) };
}

/// Reads a file, and forgets its events then.
pub(crate) fn reading<T>(read: impl FnOnce() -> T) -> T {
    MADE.take();
    let done = read();
    MADE.take();
    done
}

/// Keeps an event. Answers its number.
pub(crate) fn keep(event: Event) -> u32 {
    MADE.with_borrow_mut(|made| {
        made.push(event);
        made.len() as u32 - 1
    })
}

/// An event that was made, as plain values, for a place where no event belongs.
pub(crate) fn expand(number: u32) -> Result<serde_json::Value, crate::pickle::Error> {
    let event = copy(number).ok_or_else(|| crate::pickle::Error::Unexpected(format!("there is no event {number}")))?;
    serde_json::to_value(event).map_err(|error| crate::pickle::Error::Unexpected(error.to_string()))
}

fn copy(number: u32) -> Option<Event> {
    MADE.with_borrow(|made| made.get(number as usize).cloned())
}

/// An event of a list, or the number of one that was made before.
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

/// The events of every list. Lists of events that were made one after the other take them as they are.
pub(crate) fn gather(lists: Vec<Vec<Numbered>>) -> Vec<Vec<Event>> {
    let mut made = MADE.take();
    let Some(ranges) = lists.iter().map(|list| range(list)).collect::<Option<Vec<Range<usize>>>>() else {
        return copied(lists, &made);
    };
    if !ranges.is_sorted_by(|one, next| one.end <= next.start) {
        return copied(lists, &made);
    }
    // From the end on, so that what is left of the events need not move.
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

/// The events of a list, if they were made one after the other; an empty list has those before the first one.
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
