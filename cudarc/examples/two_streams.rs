//! Numbers that two streams of cudarc work on, in memory of a pool:
//! `cargo run -p cachalot-cudarc --example two_streams`.

use cachalot_cudarc::{Config, Pool};
use cudarc::driver::CudaContext;
use std::error::Error;

const LEN: usize = 1 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let context = CudaContext::new(0)?;
    let (compute, copy) = (context.new_stream()?, context.new_stream()?);
    let pool = Pool::new(&context, &Config::parse("policy:stitched")?)?;
    for round in 0..100u8 {
        let numbers = pool.clone_htod(&compute, &vec![round; LEN])?;
        let mut kept = pool.alloc_zeros::<u8>(&copy, LEN)?;
        // cudarc has `copy` wait for `compute`, and the drop of `numbers` has `compute` wait for
        // `copy`.
        copy.memcpy_dtod(&numbers, &mut kept)?;
        drop(numbers);
        if copy.clone_dtoh(&kept)? != vec![round; LEN] {
            return Err(format!("round {round} is wrong").into());
        }
    }
    let calls = pool.stats(cachalot_cudarc::DEVICE)?.totals().device_allocs();
    println!("two_streams: 200 slices of 1 MiB, {calls} of them from the driver");
    Ok(())
}
