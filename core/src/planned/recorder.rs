//! The log of one observed iteration: what is requested on each stream, and when it is freed.

use super::LANES;
use super::sequence::Step;
use crate::units::{StreamId, UNIT};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use cachalot_planner::{Buffer, Problem};

/// The most requests of one iteration: tables of 24 bytes for each are made. One that is longer is not planned.
const MOST_REQUESTS: usize = 1 << 20;

/// One request.
#[derive(Clone, Copy, Debug)]
struct Noted {
    /// Length in bytes, a multiple of the [`UNIT`].
    size: u64,
    /// After so many requests of its stream it was freed; 0: it was not.
    until: u32,
    /// Other streams used it, or it was freed at a count: its bytes are not free as soon as it is.
    used: bool,
}

struct StreamLog {
    stream: StreamId,
    requests: Vec<Noted>,
}

/// What was noted so far.
#[derive(Default)]
pub(crate) struct Log {
    /// The first [`LANES`] streams that requested anything.
    streams: Vec<StreamLog>,
    /// Blocks that are held, by address: their stream's number and their own.
    held: BTreeMap<u64, (usize, usize)>,
    /// How many requests there are in all.
    requests: usize,
    /// Something was not noted: there is nothing to be planned.
    spoilt: bool,
}

/// One stream's part of an observed iteration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ObservedStream {
    /// The stream.
    pub stream: StreamId,
    /// What is to be planned. A step is a request of the stream; blocks that outlived the iteration are left out.
    pub problem: Problem,
    /// Every request, those that outlive the iteration too; nothing has an offset.
    pub(crate) steps: Vec<Step>,
}

/// An observed iteration: one problem for each stream, each to be planned by itself, since streams share no bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Observed {
    /// Which observation it is of the device's.
    pub(crate) serial: u64,
    /// The streams, in the order of their first requests.
    pub streams: Vec<ObservedStream>,
}

impl Log {
    /// A request was served.
    pub(crate) fn malloc(&mut self, stream: StreamId, bytes: u64, addr: u64) {
        if self.spoilt {
            return;
        }
        let known = self.streams.iter().position(|log| log.stream == stream);
        let number = known.unwrap_or(self.streams.len());
        if number == LANES {
            return;
        }
        if known.is_none() {
            self.streams.push(StreamLog { stream, requests: Vec::new() });
        }
        let requests = &mut self.streams[number].requests;
        self.requests += 1;
        if self.requests > MOST_REQUESTS || requests.try_reserve(1).is_err() {
            *self = Self { spoilt: true, ..Self::default() };
            return;
        }
        self.held.insert(addr, (number, requests.len()));
        requests.push(Noted { size: bytes.next_multiple_of(UNIT), until: 0, used: false });
    }

    /// The program gives up a block.
    pub(crate) fn free(&mut self, addr: u64) {
        if let Some((stream, request)) = self.held.remove(&addr) {
            let requests = &mut self.streams[stream].requests;
            requests[request].until = requests.len() as u32;
        }
    }

    /// A block is not free as soon as the program gives it up.
    pub(crate) fn used(&mut self, addr: u64) {
        if let Some(&(stream, request)) = self.held.get(&addr) {
            self.streams[stream].requests[request].used = true;
        }
    }

    /// Whether a stream has requested anything.
    pub(crate) fn knows(&self, stream: StreamId) -> bool {
        self.streams.iter().any(|log| log.stream == stream)
    }

    /// Nothing of this iteration is to be planned.
    pub(crate) fn spoil(&mut self) {
        *self = Self { spoilt: true, ..Self::default() };
    }

    /// The iteration is over: what is to be planned, if anything is.
    pub(crate) fn finish(self, serial: u64) -> Option<Observed> {
        let streams: Vec<ObservedStream> =
            self.streams.iter().map(observed).filter(|stream| !stream.problem.buffers.is_empty()).collect();
        (!streams.is_empty()).then_some(Observed { serial, streams })
    }
}

fn observed(log: &StreamLog) -> ObservedStream {
    let all = log.requests.len() as u32;
    let mut problem = Problem::default();
    let step = |(start, noted): (u64, &Noted)| {
        let Noted { size, until, used } = *noted;
        let end = if used { all } else { until };
        if until > 0 {
            problem.buffers.push(Buffer { start, end: u64::from(end), size, alignment: UNIT, fixed: None });
        }
        Step { size, until: end, offset: None }
    };
    let steps = (0..).zip(&log.requests).map(step).collect();
    ObservedStream { stream: log.stream, problem, steps }
}
