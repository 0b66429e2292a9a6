//! Measures `malloc` and `free` of a cached block among many free blocks, for every subject.
#![allow(missing_docs, reason = "made by a macro")]

use cachalot_benches::crowd::{Crowd, Layout};
use cachalot_benches::lanes::lanes;
use cachalot_core::MIB;
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};

fn crowded(criterion: &mut Criterion) {
    for layout in Layout::ALL {
        for bytes in [4 << 10, 8 * MIB] {
            let mut group = criterion.benchmark_group(format!("crowded/{}/{bytes}", layout.name()));
            for count in [10, 1_000, 100_000] {
                for mut lane in Crowd::new(layout, bytes, count).iter().flat_map(lanes) {
                    group.bench_function(BenchmarkId::new(lane.name, count), |bencher| {
                        bencher.iter_custom(|times| lane.time(times));
                    });
                }
            }
        }
    }
}

criterion_group!(benches, crowded);
criterion_main!(benches);
