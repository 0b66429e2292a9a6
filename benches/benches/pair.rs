//! Measures `malloc` and `free` of a cached block, by size, for every subject.
#![allow(missing_docs, reason = "made by a macro")]

use cachalot_benches::crowd::{Crowd, Layout, SIZES};
use cachalot_benches::lanes::lanes;
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};

fn pair(criterion: &mut Criterion) {
    for (name, crowd) in [("split", Crowd::alone as fn(u64) -> Crowd), ("exact", exact)] {
        let mut group = criterion.benchmark_group(format!("pair/{name}"));
        for bytes in SIZES {
            for mut lane in lanes(&crowd(bytes)) {
                group.bench_function(BenchmarkId::new(lane.name, bytes), |bencher| {
                    bencher.iter_custom(|times| lane.time(times));
                });
            }
        }
    }
}

fn exact(bytes: u64) -> Crowd {
    Crowd::new(Layout::Equal, bytes, 1).expect("one block fits everywhere")
}

criterion_group!(benches, pair);
criterion_main!(benches);
