//! Measures concurrent threads, on their own streams or on one stream, for every lock.
#![allow(missing_docs, reason = "made by a macro")]

use cachalot_benches::measure::Clock;
use cachalot_benches::threads::{Streams, THREADS, Team, lanes};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

fn threads(criterion: &mut Criterion) {
    for streams in [Streams::Own, Streams::Shared] {
        let mut group = criterion.benchmark_group(format!("threads/{streams:?}"));
        for threads in THREADS {
            for mut lane in lanes(Team { threads, streams, clock: Clock::Wall }) {
                group.throughput(Throughput::Elements(lane.operations));
                group.bench_function(BenchmarkId::new(lane.name, threads), |bencher| {
                    bencher.iter_custom(|times| lane.time(times));
                });
            }
        }
    }
}

criterion_group!(benches, threads);
criterion_main!(benches);
