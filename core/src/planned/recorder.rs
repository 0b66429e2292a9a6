//! Records an iteration: the sizes requested on each stream, and when each block is freed.

use super::LANES;
use super::sequence::SequenceStep;
use crate::units::{StreamId, UNIT};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use cachalot_planner::{Buffer, Problem};

/// The most requests of an iteration. Each needs 24 bytes in tables. A longer iteration is not
/// planned.
const MAX_REQUESTS: usize = 1 << 20;

/// A request of the iteration.
#[derive(Clone, Copy, Debug)]
struct LoggedRequest {
    /// The size in bytes, a multiple of the [`UNIT`].
    size: u64,
    /// How many requests the stream had made when the block was freed; 0 if the block is still
    /// live.
    until: u32,
    /// Whether other streams used the block, or it was freed with a count, so that its bytes can be
    /// reused only later.
    used: bool,
}

/// The requests of a stream, in order.
#[derive(Clone)]
struct StreamLog {
    stream: StreamId,
    requests: Vec<LoggedRequest>,
}

/// The record of the iteration so far.
#[derive(Clone, Default)]
pub(crate) struct Log {
    /// The first [`LANES`] streams that made requests.
    streams: Vec<StreamLog>,
    /// The live blocks, by address: the index of the stream, and of the request.
    held: BTreeMap<u64, (usize, usize)>,
    /// The number of requests on all streams together.
    requests: usize,
    /// Whether the record is incomplete, so that it cannot be planned.
    invalid: bool,
}

/// The observation of one stream in an iteration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ObservedStream {
    /// The stream.
    pub stream: StreamId,
    /// The planning problem. A time step is one request of the stream. Blocks that outlive the
    /// iteration are not part of the problem.
    pub problem: Problem,
    /// Every request, including those for blocks that outlive the iteration. No step has an offset
    /// yet.
    pub(crate) steps: Vec<SequenceStep>,
}

/// An observed iteration: a planning problem for each stream. Streams do not share bytes, so the
/// problems are independent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Observed {
    /// The number of the observation on the device.
    pub(crate) serial: u64,
    /// The streams, in the order of their first requests.
    pub streams: Vec<ObservedStream>,
}

impl Log {
    /// Records a request that was served.
    pub(crate) fn malloc(&mut self, stream: StreamId, bytes: u64, addr: u64) {
        if self.invalid {
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
        if self.requests > MAX_REQUESTS || requests.try_reserve(1).is_err() {
            *self = Self { invalid: true, ..Self::default() };
            return;
        }
        self.held.insert(addr, (number, requests.len()));
        requests.push(LoggedRequest { size: bytes.next_multiple_of(UNIT), until: 0, used: false });
    }

    /// Records the free of a block.
    pub(crate) fn free(&mut self, addr: u64) {
        if let Some((stream, request)) = self.held.remove(&addr) {
            let requests = &mut self.streams[stream].requests;
            requests[request].until = requests.len() as u32;
        }
    }

    /// Records that the bytes of a block can only be reused some time after the program frees it.
    pub(crate) fn used(&mut self, addr: u64) {
        if let Some(&(stream, request)) = self.held.get(&addr) {
            self.streams[stream].requests[request].used = true;
        }
    }

    /// Returns whether the stream requested memory in this iteration.
    pub(crate) fn knows(&self, stream: StreamId) -> bool {
        self.streams.iter().any(|log| log.stream == stream)
    }

    /// Makes the record invalid, so that the iteration is not planned.
    pub(crate) fn invalidate(&mut self) {
        *self = Self { invalid: true, ..Self::default() };
    }

    /// Ends the iteration. Returns the observation, or `None` if there is nothing to plan.
    pub(crate) fn finish(self, serial: u64) -> Option<Observed> {
        let streams: Vec<ObservedStream> =
            self.streams.iter().map(observed).filter(|stream| !stream.problem.buffers.is_empty()).collect();
        (!streams.is_empty()).then_some(Observed { serial, streams })
    }
}

/// Builds the planning problem and the steps of a stream.
fn observed(log: &StreamLog) -> ObservedStream {
    let all = log.requests.len() as u32;
    let mut problem = Problem::default();
    let step = |(start, request): (u64, &LoggedRequest)| {
        let LoggedRequest { size, until, used } = *request;
        let end = if used { all } else { until };
        if until > 0 {
            problem.buffers.push(Buffer { start, end: u64::from(end), size, alignment: UNIT, fixed: None });
        }
        SequenceStep { size, until: end, offset: None }
    };
    let steps = (0..).zip(&log.requests).map(step).collect();
    ObservedStream { stream: log.stream, problem, steps }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const STREAM: StreamId = StreamId(3);

    /// Returns a record of `requests` requests, each freed before the next one.
    fn recorded(requests: usize) -> Log {
        let mut log = Log::default();
        for _ in 0..requests {
            log.malloc(STREAM, 100, 512);
            log.free(512);
        }
        log
    }

    #[test]
    fn an_iteration_with_too_many_requests_is_not_planned() {
        let observed = recorded(MAX_REQUESTS).finish(1).expect("as many as there may be");
        assert_eq!(observed.streams[0].problem.buffers.len(), MAX_REQUESTS);
        let mut log = recorded(MAX_REQUESTS + 1);
        log.malloc(STREAM, 100, 1024);
        log.free(1024);
        assert_eq!(log.finish(1), None, "nor is what comes after");
    }

    #[test]
    fn an_invalid_record_stays_so() {
        let mut log = recorded(2);
        log.invalidate();
        log.malloc(STREAM, 100, 512);
        log.free(512);
        assert_eq!(log.finish(1), None);
    }

    #[test]
    fn sizes_times_and_uses_are_those_of_the_program() {
        let mut log = Log::default();
        log.malloc(STREAM, 1, 512);
        log.malloc(STREAM, 513, 4096);
        log.free(512);
        log.malloc(STREAM, 512, 8192);
        log.used(4096);
        log.free(4096);
        log.malloc(STREAM, 512, 512);
        let observed = log.finish(5).unwrap();
        let [stream] = &observed.streams[..] else { panic!("one stream") };
        let buffers = stream.problem.buffers.iter().map(|buffer| (buffer.start, buffer.end, buffer.size));
        // The block that another stream used lasts until the end. The last two are never freed.
        assert_eq!(buffers.collect::<Vec<_>>(), [(0, 2, 512), (1, 4, 1024)]);
        let untils = stream.steps.iter().map(|step| step.until).collect::<Vec<_>>();
        assert_eq!(untils, [2, 4, 0, 0]);
    }
}
