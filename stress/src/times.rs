//! Times of calls, and counts of operations.

use hdrhistogram::Histogram;
use serde::Serialize;
use std::time::Duration;

/// Histogram of the times of calls of a kind, in nanoseconds.
#[derive(Clone, Debug)]
pub(crate) struct Times(Histogram<u64>);

/// Upper end of the histogram; longer times count as this time.
const LONGEST_NS: u64 = 100_000_000_000;
/// Significant digits of every time.
const DIGITS: u8 = 3;

/// A summary of the times of calls of a kind.
#[derive(Clone, Copy, Serialize, Debug)]
pub(crate) struct Summary {
    pub(crate) calls: u64,
    pub(crate) p50_ns: u64,
    pub(crate) p99_ns: u64,
    #[serde(rename = "p99.9_ns")]
    pub(crate) p999_ns: u64,
    pub(crate) max_ns: u64,
}

impl Default for Times {
    fn default() -> Self {
        Self(Histogram::new_with_max(LONGEST_NS, DIGITS).expect("a range that a histogram can have"))
    }
}

impl Times {
    /// Adds a call.
    pub(crate) fn add(&mut self, time: Duration) {
        self.0.saturating_record(time.as_nanos() as u64);
    }

    /// Adds another thread's calls.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.0.add(&other.0).expect("both have the same range");
    }

    /// Returns the percentiles.
    pub(crate) fn summary(&self) -> Summary {
        let at = |quantile| self.0.value_at_quantile(quantile);
        Summary { calls: self.0.len(), p50_ns: at(0.5), p99_ns: at(0.99), p999_ns: at(0.999), max_ns: self.0.max() }
    }
}

/// Times of calls, by kind of result.
#[derive(Clone, Default, Debug)]
pub(crate) struct Latency {
    /// Requests served from the cache.
    pub(crate) malloc_hit: Times,
    /// Requests served with new memory from the device.
    pub(crate) malloc_miss: Times,
    /// Frees of blocks used by their own stream alone.
    pub(crate) free: Times,
    /// Frees of blocks used by other streams.
    pub(crate) free_visited: Times,
}

impl Latency {
    /// Adds another thread's calls.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.malloc_hit.merge(&other.malloc_hit);
        self.malloc_miss.merge(&other.malloc_miss);
        self.free.merge(&other.free);
        self.free_visited.merge(&other.free_visited);
    }
}

/// Counts of a thread's operations.
#[derive(Clone, Copy, Default, Serialize, Debug)]
pub(crate) struct Counts {
    /// Requests and frees, refused calls included.
    pub(crate) ops: u64,
    pub(crate) mallocs: u64,
    pub(crate) frees: u64,
    /// Requests refused for lack of memory.
    pub(crate) ooms: u64,
    /// Calls unable to release memory to the device, because a stream captured.
    pub(crate) captured: u64,
    /// Errors of the device while faults were planned.
    pub(crate) errors: u64,
    /// Blocks and bytes checked by kernels.
    pub(crate) verified_blocks: u64,
    pub(crate) verified_bytes: u64,
    /// Uses of blocks on other streams.
    pub(crate) visits: u64,
    /// Blocks passed from one thread to another.
    pub(crate) exchanged: u64,
    pub(crate) graphs: u64,
    pub(crate) replays: u64,
    pub(crate) pools: u64,
    /// Streams created and destroyed within a round.
    pub(crate) guests: u64,
    /// Graphs captured without a report to the allocator.
    pub(crate) bare_graphs: u64,
    pub(crate) disturbances: u64,
    /// Parks and wakes of memory that succeeded.
    pub(crate) parks: u64,
    pub(crate) wakes: u64,
    /// Elastic ranges reserved, and their commits, decommits and releases that succeeded.
    pub(crate) ranges: u64,
    pub(crate) commits: u64,
    pub(crate) decommits: u64,
    pub(crate) releases: u64,
    /// Parks, wakes, commits, decommits and releases refused for a documented reason.
    pub(crate) refused: u64,
    /// Bytes of the pages that moved to the host or back under live blocks.
    pub(crate) advised_bytes: u64,
    /// Digest of the addresses and sizes of all served blocks, in order: equal in a repeated run.
    pub(crate) digest: u64,
}

impl Counts {
    /// Adds another thread's counts.
    pub(crate) fn merge(&mut self, other: &Self) {
        let Self { ops, mallocs, frees, ooms, captured, errors, verified_blocks, verified_bytes, .. } = other;
        let Self { visits, exchanged, graphs, replays, pools, guests, bare_graphs, disturbances, digest, .. } = other;
        let Self { parks, wakes, ranges, commits, decommits, releases, refused, advised_bytes, .. } = other;
        self.ops += ops;
        self.mallocs += mallocs;
        self.frees += frees;
        self.ooms += ooms;
        self.captured += captured;
        self.errors += errors;
        self.verified_blocks += verified_blocks;
        self.verified_bytes += verified_bytes;
        self.visits += visits;
        self.exchanged += exchanged;
        self.graphs += graphs;
        self.replays += replays;
        self.pools += pools;
        self.guests += guests;
        self.bare_graphs += bare_graphs;
        self.disturbances += disturbances;
        self.parks += parks;
        self.wakes += wakes;
        self.ranges += ranges;
        self.commits += commits;
        self.decommits += decommits;
        self.releases += releases;
        self.refused += refused;
        self.advised_bytes += advised_bytes;
        self.digest ^= digest;
    }

    /// Adds a served block to the digest.
    pub(crate) fn digest(&mut self, address: u64, bytes: u64) {
        for number in [address, bytes] {
            // FNV-1a, one word per step.
            self.digest = (self.digest ^ number).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}
