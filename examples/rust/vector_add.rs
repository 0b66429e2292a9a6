//! Adds two vectors from Rust: blocks of a cachalot allocator over a CUDA device, one stream, one
//! kernel.
//!
//! `cargo run -p cachalot --example vector_add [elements]`

use cachalot::DeviceResult;
use cachalot::cuda::driver::types::{CuStream, CuStreamFlags};
use cachalot::{Config, CudaAllocator, CudaDevice, DeviceIndex, DevicePtr, Driver};
use cachalot_kernels::{Kernels, Region};
use std::error::Error;

const DEVICE: DeviceIndex = DeviceIndex(0);

fn main() -> Result<(), Box<dyn Error>> {
    let count = std::env::args().nth(1).map_or(Ok(1 << 20), |count| count.parse::<usize>())?;
    let bytes = (count * size_of::<f32>()) as u64;
    let allocator = CudaAllocator::new([CudaDevice::open(Driver::load()?, 0)?], &Config::new())?;
    let device = allocator.device(DEVICE).expect("it was just given");
    let kernels = Kernels::load(device)?;
    let stream = new_stream(device)?;
    let number = device.stream_id(stream)?;
    for round in 0_u16..3 {
        let numbers: Vec<f32> = (0..count).map(|index| f32::from((index % 1000) as u16 + round)).collect();
        let left = allocator.malloc(DEVICE, bytes, number)?;
        let right = allocator.malloc(DEVICE, bytes, number)?;
        let sum = allocator.malloc(DEVICE, bytes, number)?;
        upload(device, left, &numbers, stream)?;
        upload(device, right, &vec![1.0; count], stream)?;
        // SAFETY: the blocks are this program's, as long as it says, until the kernels are done.
        let [to, from, and] = [sum, left, right].map(|block| unsafe { Region::new(block, bytes) });
        kernels.add(stream, to, from, and)?;
        // The kernel is queued, so its inputs may be freed: whoever gets them next on this stream
        // comes after it.
        allocator.free_sized(left, bytes)?;
        allocator.free_sized(right, bytes)?;
        let sums = download(device, sum, count, stream)?;
        allocator.free(sum)?;
        if !sums.iter().zip(&numbers).all(|(sum, number)| (sum - number - 1.0).abs() < f32::EPSILON) {
            return Err(format!("round {round} is wrong").into());
        }
    }
    let stats = allocator.stats(DEVICE)?.totals();
    println!(
        "vector_add: {count} elements, 3 rounds right; {} bytes at most in use, {} calls for memory",
        stats.allocated_bytes().peak,
        stats.device_allocs()
    );
    allocator.stream_destroyed(DEVICE, device.stream_destroyed(stream)?)?;
    destroy(device, stream)?;
    allocator.empty_cache(DEVICE)?;
    kernels.unload()?;
    device.close()?;
    Ok(())
}

/// A stream that is not ordered with the default one.
fn new_stream(device: &CudaDevice) -> DeviceResult<CuStream> {
    let mut stream = CuStream::NULL;
    device.with_context(|driver| {
        // SAFETY: the variable outlives the call, which writes one handle to it.
        unsafe { driver.stream_create(&raw mut stream, CuStreamFlags::NON_BLOCKING) }
    })?;
    Ok(stream)
}

/// Destroys a stream that the allocator was told of.
fn destroy(device: &CudaDevice, stream: CuStream) -> DeviceResult<()> {
    device.with_context(|driver| {
        // SAFETY: the stream was made by this program, which does not use it again.
        unsafe { driver.stream_destroy(stream) }
    })
}

/// Copies numbers to a block, and waits until that is done.
fn upload(device: &CudaDevice, to: DevicePtr, numbers: &[f32], stream: CuStream) -> DeviceResult<()> {
    device.with_context(|driver| {
        // SAFETY: the block is at least as long as the numbers, which outlive the copy: it is
        // waited for below.
        unsafe { driver.memcpy_htod_async(to.0, numbers.as_ptr().cast(), size_of_val(numbers), stream) }
    })?;
    wait(device, stream)
}

/// Copies numbers from a block, once what was queued before is done.
fn download(device: &CudaDevice, from: DevicePtr, count: usize, stream: CuStream) -> DeviceResult<Vec<f32>> {
    let mut numbers = vec![0.0_f32; count];
    device.with_context(|driver| {
        // SAFETY: the block is at least as long as the vector, which outlives the copy: it is
        // waited for below.
        unsafe { driver.memcpy_dtoh_async(numbers.as_mut_ptr().cast(), from.0, size_of_val(&*numbers), stream) }
    })?;
    wait(device, stream)?;
    Ok(numbers)
}

/// Waits for everything queued on a stream.
fn wait(device: &CudaDevice, stream: CuStream) -> DeviceResult<()> {
    device.with_context(|driver| {
        // SAFETY: takes no host pointers; the stream is live.
        unsafe { driver.stream_synchronize(stream) }
    })
}
