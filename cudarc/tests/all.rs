//! Slices of a pool in cudarc's copies and launches, on the emulated driver.
//!
//! cudarc loads `libcuda.so` by name, so the emulated driver is loaded first: the loader then finds
//! it by its own name. Where another driver comes before it, the tests say so in a line.

use cachalot_cudarc::{CachalotSlice, Config, DEVICE, Pool, RequestError};
use cachalot_emulated_driver::client::Client;
use cachalot_emulated_driver::install;
use cachalot_kernels::emulated_image;
use cudarc::driver::sys::culib;
use cudarc::driver::{CudaContext, CudaFunction, CudaStream, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use std::ffi::c_int;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

const LEN: usize = 4096;

/// Returns a context on the emulated driver, or prints a line about the skipped tests.
fn context() -> Option<Arc<CudaContext>> {
    context_of(0)
}

/// Returns a context on one of the emulated driver's devices, or prints a line about the skipped
/// tests.
fn context_of(ordinal: usize) -> Option<Arc<CudaContext>> {
    static LOADED: OnceLock<bool> = OnceLock::new();
    let loaded = LOADED.get_or_init(|| {
        let named = std::env::var_os("CACHALOT_LIBCUDA").map(PathBuf::from);
        let path = named.unwrap_or_else(|| {
            let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("driver");
            install::install(&folder, &[]).expect("the emulated driver is built")
        });
        // Stays loaded to the end of the process.
        std::mem::forget(Client::load(path).expect("it loads"));
        // SAFETY: the driver's initializers do nothing.
        let found = unsafe { culib() };
        // SAFETY: the function is not called.
        let is_emulated = unsafe { found.get::<unsafe extern "C" fn() -> c_int>(b"cachalot_emulated_driver") }.is_ok();
        if !is_emulated {
            let _ = writeln!(std::io::stderr(), "skipped: slices of cudarc (cudarc found another libcuda.so first)");
        }
        is_emulated
    });
    loaded.then(|| CudaContext::new(ordinal).expect("the emulated driver has two devices"))
}

/// Returns a pool with settings.
fn pool(context: &Arc<CudaContext>, settings: &str) -> Pool {
    Pool::new(context, &Config::parse(settings).expect("settings")).expect("a pool")
}

/// Returns numbers that differ by a seed.
fn numbers(seed: u16) -> Vec<f32> {
    (0..LEN).map(|index| f32::from(index as u16 ^ seed)).collect()
}

/// Returns the bytes of live blocks.
fn allocated(pool: &Pool) -> i64 {
    pool.stats(DEVICE).expect("statistics").totals().allocated_bytes().current
}

/// Loads one of the kernels, or `None` without a C++ compiler.
fn kernel(context: &Arc<CudaContext>, name: &str) -> Option<CudaFunction> {
    let image = emulated_image()?.to_str().expect("UTF-8");
    let module = context.load_module(Ptx::from_src(image)).expect("the kernels load");
    Some(module.load_function(name).expect("a kernel"))
}

/// Occupies a stream.
fn hold(stream: &Arc<CudaStream>, hold: &CudaFunction, microseconds: u64) {
    let one = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };
    // SAFETY: the kernel takes one number.
    unsafe { stream.launch_builder(hold).arg(&microseconds).launch(one) }.expect("it is queued");
}

#[test]
fn copies_go_there_and_back_and_between_slices() {
    let Some(context) = context() else { return };
    let stream = context.new_stream().expect("a stream");
    let pool = pool(&context, "");
    let first = pool.clone_htod(&stream, &numbers(1)).expect("memory");
    let mut second = pool.alloc_zeros::<f32>(&stream, LEN).expect("memory");
    assert_eq!(stream.clone_dtoh(&second).expect("a copy"), vec![0.0; LEN]);
    stream.memcpy_dtod(&first, &mut second).expect("a copy");
    assert_eq!(stream.clone_dtoh(&second).expect("a copy"), numbers(1));
    // Views, and cudarc's own slices, beside the pool's.
    let own = stream.clone_htod(&numbers(2)).expect("memory of cudarc's own");
    stream.memcpy_dtod(&own.slice(..8), &mut second.slice_mut(8..16)).expect("a copy");
    let read = stream.clone_dtoh(&second.slice(8..17)).expect("a copy");
    assert_eq!((&read[..8], read[8]), (&numbers(2)[..8], numbers(1)[16]));
    let copied = first.try_clone().expect("memory of cudarc's own");
    assert_eq!(stream.clone_dtoh(&copied).expect("a copy"), numbers(1));
    assert!(pool.base_of(cachalot::DevicePtr(copied.leak())).is_err(), "a clone is not the pool's");
    assert_eq!(allocated(&pool), 2 * 4 * LEN as i64);
    drop((first, second));
    assert_eq!(allocated(&pool), 0);
    context.check_err().expect("no drop failed");
}

#[test]
fn launches_take_slices_to_read_and_to_write() {
    let Some(context) = context() else { return };
    let Some(add) = kernel(&context, "cachalot_add") else { return };
    let stream = context.new_stream().expect("a stream");
    let pool = pool(&context, "policy:stitched");
    let left = pool.clone_htod(&stream, &numbers(1)).expect("memory");
    let right = pool.clone_htod(&stream, &numbers(7)).expect("memory");
    let mut sum = pool.alloc_zeros::<f32>(&stream, LEN).expect("memory");
    let count = LEN as u64;
    let shape = LaunchConfig::for_num_elems(LEN as u32);
    // SAFETY: the kernel writes `count` sums to its first argument.
    unsafe { stream.launch_builder(&add).arg(&mut sum).arg(&left).arg(&right).arg(&count).launch(shape) }
        .expect("it is queued");
    // The inputs may go at once: their next user on the stream comes after the kernel.
    drop((left, right));
    let wanted: Vec<f32> = numbers(1).iter().zip(numbers(7)).map(|(left, right)| left + right).collect();
    assert_eq!(stream.clone_dtoh(&sum).expect("a copy"), wanted);
}

#[test]
fn a_freed_slice_serves_the_next_request_of_its_stream_without_the_driver() {
    let Some(context) = context() else { return };
    let stream = context.new_stream().expect("a stream");
    let pool = pool(&context, "");
    let address =
        |slice: &CachalotSlice<f32>| pool.base_of(cachalot::DevicePtr(at(slice, &stream))).expect("live").base;
    let first = pool.alloc_zeros::<f32>(&stream, LEN).expect("memory");
    let (before, calls) = (address(&first), pool.stats(DEVICE).expect("statistics").totals().device_allocs());
    drop(first);
    let second = pool.alloc_zeros::<f32>(&stream, LEN).expect("memory");
    assert_eq!((address(&second), pool.stats(DEVICE).expect("statistics").totals().device_allocs()), (before, calls));
}

/// Returns the address of a slice.
fn at(slice: &CachalotSlice<f32>, stream: &CudaStream) -> u64 {
    use cudarc::driver::DevicePtr;
    slice.device_ptr(stream).0
}

#[test]
fn memory_that_another_stream_uses_is_not_served_before_its_work_is_done() {
    let Some(context) = context() else { return };
    let Some(held) = kernel(&context, "cachalot_hold") else { return };
    let (stream, other) = (context.new_stream().expect("a stream"), context.new_stream().expect("a stream"));
    let pool = pool(&context, "");
    let mut result = pool.alloc_zeros::<f32>(&other, LEN).expect("memory");
    for round in 0..8 {
        let slice = pool.clone_htod(&stream, &numbers(round)).expect("memory");
        hold(&other, &held, 2000);
        // Reads the slice, late. cudarc's events order the free after the copy.
        other.memcpy_dtod(&slice, &mut result).expect("a copy");
        drop(slice);
        let next = pool.clone_htod(&stream, &numbers(99)).expect("memory");
        assert_eq!(other.clone_dtoh(&result).expect("a copy"), numbers(round), "round {round}");
        drop(next);
    }
}

#[test]
fn uses_that_cudarc_does_not_track_are_announced() {
    let Some(context) = context() else { return };
    let Some(held) = kernel(&context, "cachalot_hold") else { return };
    let (stream, other) = (context.new_stream().expect("a stream"), context.new_stream().expect("a stream"));
    // SAFETY: the test orders the streams itself.
    unsafe { context.disable_event_tracking() };
    let pool = pool(&context, "");
    let slice = pool.clone_htod(&stream, &numbers(3)).expect("memory");
    let before = at(&slice, &stream);
    stream.synchronize().expect("it waits");
    hold(&other, &held, 20_000);
    slice.record_stream(&other).expect("it is announced");
    drop(slice);
    let next = pool.alloc_zeros::<f32>(&stream, LEN).expect("memory");
    assert_ne!(at(&next, &stream), before, "the other stream still works");
    other.synchronize().expect("it waits");
    // The event of the use is on a stream of the device's own, after the other stream.
    context.synchronize().expect("it waits");
    pool.process_events(DEVICE).expect("a look at the events");
    let last = pool.alloc_zeros::<f32>(&stream, LEN).expect("memory");
    assert_eq!(at(&last, &stream), before);
}

#[test]
fn streams_come_and_go_without_a_report() {
    let Some(context) = context() else { return };
    let Some(held) = kernel(&context, "cachalot_hold") else { return };
    let pool = pool(&context, "");
    for round in 0..20 {
        let stream = context.new_stream().expect("a stream");
        let slice = pool.clone_htod(&stream, &numbers(round)).expect("memory");
        hold(&stream, &held, 300);
        let mut copy = pool.alloc_zeros::<f32>(&stream, LEN).expect("memory");
        stream.memcpy_dtod(&slice, &mut copy).expect("a copy");
        drop(slice);
        assert_eq!(stream.clone_dtoh(&copy).expect("a copy"), numbers(round));
        // The stream ends here, with memory cached for it. The next one may have its handle.
    }
    assert_eq!(allocated(&pool), 0);
}

#[test]
fn running_out_is_an_error_and_leaves_the_pool_as_it_was() {
    let Some(context) = context() else { return };
    let stream = context.default_stream();
    let pool = pool(&context, "");
    pool.settings(DEVICE).expect("a limit").set_limit(Some(64 << 20));
    let kept = pool.clone_htod(&stream, &numbers(5)).expect("memory");
    let refused = pool.alloc_zeros::<u8>(&stream, 128 << 20).expect_err("it is above the limit");
    assert!(refused.is_out_of_memory() && refused.to_string().contains("128 MiB"), "{refused}");
    assert_eq!(allocated(&pool), 4 * LEN as i64);
    assert_eq!(stream.clone_dtoh(&kept).expect("a copy"), numbers(5));
}

#[test]
fn nothing_is_allocated_for_no_values() {
    let Some(context) = context() else { return };
    let stream = context.default_stream();
    let pool = pool(&context, "");
    let none = pool.alloc_zeros::<f64>(&stream, 0).expect("nothing");
    let copied = pool.clone_htod(&stream, &Vec::<f32>::new()).expect("nothing");
    assert_eq!((none.len(), copied.is_empty(), allocated(&pool)), (0, true, 0));
}

#[test]
fn a_stream_of_another_context_is_refused() {
    let Some(context) = context() else { return };
    let pool = pool(&context, "");
    let Some(other) = context_of(1) else { return };
    let refused = pool.alloc_zeros::<f32>(&other.default_stream(), 8).expect_err("another context");
    assert!(matches!(refused, RequestError::OtherContext), "{refused}");
    assert_eq!(allocated(&pool), 0);
}

#[test]
fn memory_returns_to_the_driver_behind_the_last_slice() {
    // A device that no other test takes memory of.
    let Some(context) = context_of(1) else { return };
    let stream = context.new_stream().expect("a stream");
    let pool = pool(&context, "");
    let slice = pool.clone_htod(&stream, &vec![1u8; 40 << 20]).expect("memory");
    drop(pool);
    // The slice owns a share of the pool.
    assert_eq!(stream.clone_dtoh(&slice.slice(..3)).expect("a copy"), [1; 3]);
    let (free, _) = context.mem_get_info().expect("the free memory");
    drop(slice);
    let (later, _) = context.mem_get_info().expect("the free memory");
    assert!(later >= free + (40 << 20), "{later} − {free}");
    context.check_err().expect("no drop failed");
}
