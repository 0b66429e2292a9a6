//! Measures warm recorded programs, for every subject that can run the program. The unit is one
//! operation.
#![allow(missing_docs, reason = "made by a macro")]

use cachalot_benches::lanes::lanes;
use cachalot_benches::program::programs;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use std::path::Path;

fn replay(criterion: &mut Criterion) {
    let traces = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/traces"));
    for program in programs(traces).expect("the recordings can be read") {
        let mut group = criterion.benchmark_group(format!("replay/{}", program.name));
        group.sample_size(20);
        for mut lane in lanes(&program) {
            group.throughput(Throughput::Elements(lane.operations));
            group.bench_function(lane.name, |bencher| bencher.iter_custom(|times| lane.time(times)));
        }
    }
}

criterion_group!(benches, replay);
criterion_main!(benches);
