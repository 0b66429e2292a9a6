//! Measures a pair of `cuMemAlloc` and `cuMemFree`, served and by the driver alone.
//!
//! ```sh
//! cargo run --release -p cachalot-run --example pairs -- libcuda.so.1
//! ```

use cachalot_cuda::driver::types::{CuContext, CuDevice};
use cachalot_run::Options;
use cachalot_run::real::Real;
use cachalot_run::serve::Process;
use std::path::Path;
use std::time::Instant;

/// Sizes of the requests in bytes.
const SIZES: [usize; 7] = [512, 64 << 10, 1 << 20, 2 << 20, 20 << 20, 200 << 20, 1 << 30];

/// Returns the nanoseconds of a call, the least of 5 rounds.
fn nanoseconds(count: u32, mut call: impl FnMut()) -> f64 {
    let round = |_| {
        let start = Instant::now();
        (0..count).for_each(|_| call());
        start.elapsed().as_secs_f64() * 1e9 / f64::from(count)
    };
    (0..5).map(round).fold(f64::INFINITY, f64::min)
}

fn main() {
    let library = std::env::args().nth(1).unwrap_or_else(|| "libcuda.so.1".to_owned());
    let real = Real::load(Path::new(&library)).expect("a driver");
    let process = Process::new(real, Options::default()).expect("settings");
    let mut context = CuContext::NULL;
    real.driver().expect("a driver that starts");
    // SAFETY: `context` outlives the call.
    assert!(unsafe { process.device_primary_ctx_retain(&raw mut context, CuDevice(0)) }.is_success());
    // SAFETY: the context was retained.
    assert!(unsafe { real.ctx_set_current(context) }.is_success());
    println!("{:>12} {:>12} {:>12} {:>8}", "bytes", "driver ns", "served ns", "ratio");
    for bytes in SIZES {
        let plain = nanoseconds(if bytes > 1 << 20 { 100 } else { 2000 }, || {
            let mut address = 0;
            // SAFETY: `address` outlives the call.
            assert!(unsafe { real.mem_alloc(&raw mut address, bytes) }.is_success());
            // SAFETY: no work uses the memory.
            assert!(unsafe { real.mem_free(address) }.is_success());
        });
        let served = nanoseconds(100_000, || {
            let mut address = 0;
            // SAFETY: `address` outlives the call.
            assert!(unsafe { process.mem_alloc(&raw mut address, bytes) }.is_success());
            // SAFETY: no work uses the memory.
            assert!(unsafe { process.mem_free(address) }.is_success());
        });
        println!("{bytes:>12} {plain:>12.0} {served:>12.1} {:>8.1}", plain / served);
    }
    println!("{:?}", process.counts());
}
