//! Tests of the kernels on a device: a GPU, or the emulated driver. Without a device, each test
//! prints a line and is skipped.

use cachalot_core::{DevicePtr, ErrorKind, Segments, StreamOrder};
use cachalot_cuda::driver::LIBRARY_VARIABLE;
use cachalot_cuda::driver::types::{CuCaptureMode, CuGraph, CuStream, CuStreamFlags};
use cachalot_cuda::{CuResult, CudaDevice, Driver, LoadError};
use cachalot_kernels::{Findings, KernelError, Kernels, Life, ROW_BYTES, Region, checksum};
use core::ffi::c_void;
use std::io::Write;
use std::time::Instant;

/// Prints a line about a skipped test.
fn skipped(why: &dyn std::fmt::Display) {
    let _ = writeln!(std::io::stderr(), "skipped: kernels on a device ({why})");
}

/// Opens the first device, if a driver is present.
fn device() -> Option<CudaDevice> {
    match Driver::load() {
        Ok(driver) => Some(CudaDevice::open(driver, 0).expect("device 0 opens")),
        // A driver requested by name must exist.
        Err(error @ (LoadError::NotFound { .. } | LoadError::Start(CuResult::NO_DEVICE | CuResult::STUB_LIBRARY)))
            if std::env::var_os(LIBRARY_VARIABLE).is_none() =>
        {
            skipped(&error);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Loads the kernels, if compiled for the present driver.
fn kernels(device: &CudaDevice) -> Option<Kernels<'_>> {
    match Kernels::load(device) {
        Ok(kernels) => Some(kernels),
        Err(error @ KernelError::NoImage) => {
            skipped(&error);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Creates a non-blocking stream, so without order to the legacy stream.
fn stream(device: &CudaDevice) -> CuStream {
    let mut stream = CuStream::NULL;
    let made = device.with_context(|driver| {
        // SAFETY: `stream` outlives the call, which writes one handle to it.
        unsafe { driver.stream_create(&raw mut stream, CuStreamFlags::NON_BLOCKING) }
    });
    assert_eq!(made, Ok(()));
    stream
}

/// Allocates a segment of the device as a region.
fn region(device: &CudaDevice, bytes: u64) -> Region {
    let base = device.obtain(bytes.next_multiple_of(512)).expect("memory");
    // SAFETY: the memory is new, and each test launches on its own memory only.
    unsafe { Region::new(base, bytes) }
}

/// Returns the `bytes` bytes of a region from `offset` on.
fn part(of: Region, offset: u64, bytes: u64) -> Region {
    assert!(offset + bytes <= of.bytes());
    // SAFETY: the range is inside a region.
    unsafe { Region::new(of.address().offset(offset), bytes) }
}

/// Waits for the stream, and returns the bytes of a region.
fn bytes_of(device: &CudaDevice, stream: CuStream, region: Region) -> Vec<u8> {
    let mut bytes = vec![0_u8; region.bytes() as usize];
    let to = bytes.as_mut_ptr().cast::<c_void>();
    // SAFETY: takes no host pointers; the stream belongs to the test.
    let waited = device.with_context(|driver| unsafe { driver.stream_synchronize(stream) });
    let copied = device.with_context(|driver| {
        // SAFETY: the buffer is as long as the region and outlives the call, which waits.
        unsafe { driver.memcpy_dtoh(to, region.address().0, bytes.len()) }
    });
    assert_eq!((waited, copied), (Ok(()), Ok(())));
    bytes
}

/// Sizes with and without whole words and tails, below and above a single pass of all threads.
const SIZES: [u64; 9] = [1, 7, 8, 9, 511, 512, 100_003, 8 << 20, (8 << 20) + 13];
/// The life used by the tests.
const LIFE: Life = Life { block: 17, generation: 4 };

#[test]
fn patterns_are_written_and_checked() {
    let Some(device) = device() else { return };
    let Some(kernels) = kernels(&device) else { return };
    let stream = stream(&device);
    let result = region(&device, 16);
    for bytes in SIZES {
        let block = region(&device, bytes);
        kernels.fill(stream, block, LIFE).expect("launched");
        kernels.clear(stream, result).expect("launched");
        kernels.verify(stream, block, LIFE, result).expect("launched");
        assert_eq!(kernels.findings(stream, result), Ok(Findings::NONE), "{bytes} bytes");

        let there = bytes_of(&device, stream, block);
        let expected = (0..bytes).map(|offset| LIFE.byte(offset));
        assert!(expected.eq(there.iter().copied()), "{bytes} bytes on the device are not the host's");

        let wrong = bytes * 2 / 3 / 8 * 8;
        kernels.scribble(stream, part(block, wrong, 1), !LIFE.byte(wrong), 0).expect("launched");
        kernels.verify(stream, block, LIFE, result).expect("launched");
        let found = Findings { wrong_bytes: 1, lowest_wrong: wrong };
        assert_eq!(kernels.findings(stream, result), Ok(found), "{bytes} bytes");
        device.release(block.address(), bytes.next_multiple_of(512)).expect("released");
    }
    assert_eq!(kernels.unload(), Ok(()));
}

#[test]
fn many_blocks_take_one_launch_each_way() {
    let Some(device) = device() else { return };
    let Some(kernels) = kernels(&device) else { return };
    let stream = stream(&device);
    // More blocks than the largest launch has groups.
    let count = 3000;
    let segment = region(&device, count * 1024);
    let result = region(&device, 16);
    let size = |index: u64| SIZES[index as usize % 6] + index % 2;
    let life = |index: u64| Life { block: index, generation: 9 };
    let blocks: Vec<_> = (0..count).map(|index| (part(segment, index * 1024, size(index)), life(index))).collect();
    let table = region(&device, count * ROW_BYTES);
    kernels.fill_many(stream, &blocks, table, None).expect("launched");
    kernels.clear(stream, result).expect("launched");
    kernels.verify_many(stream, &blocks, table, result).expect("launched");
    assert_eq!(kernels.findings(stream, result), Ok(Findings::NONE));
    for &(block, life) in blocks.iter().step_by(571) {
        kernels.verify(stream, block, life, result).expect("launched");
        assert_eq!(kernels.findings(stream, result), Ok(Findings::NONE), "{life:?}");
    }
    let (wrong, at) = (blocks[2404].0, blocks[2404].0.bytes() - 1);
    kernels.scribble(stream, part(wrong, at / 8 * 8, at % 8 + 1), 0, 0).expect("launched");
    kernels.verify_many(stream, &blocks, table, result).expect("launched");
    let found = kernels.findings(stream, result).expect("read");
    assert_eq!((found.wrong_bytes, found.first_of_many()), (at % 8 + 1, Some((2404, at / 8 * 8))));

    assert_eq!((kernels.fill_many(stream, &[], table, None).is_ok(), kernels.clear(stream, result)), (true, Ok(())));
    let short = part(table, 0, count * ROW_BYTES - 1);
    let refused =
        [kernels.fill_many(stream, &blocks, short, None), kernels.verify_many(stream, &blocks, short, result)];
    assert!(refused.iter().all(|answer| answer.is_err_and(|error| error.kind == ErrorKind::InvalidArgument)));
}

/// Each of the groups writes and checks a part of the words.
#[test]
fn the_groups_of_a_large_block_miss_no_word() {
    let Some(device) = device() else { return };
    let Some(kernels) = kernels(&device) else { return };
    let stream = stream(&device);
    let bytes = (1 << 20) + 13;
    let (block, result, table) = (region(&device, bytes), region(&device, 16), region(&device, 2 * ROW_BYTES));
    let blocks = [(part(block, 0, 8), Life { block: 1, generation: 0 }), (part(block, 8, bytes - 8), LIFE)];
    kernels.clear(stream, result).expect("launched");
    kernels.fill_many(stream, &blocks, table, None).expect("launched");
    let there = bytes_of(&device, stream, part(block, 8, bytes - 8));
    assert!((0..bytes - 8).map(|offset| LIFE.byte(offset)).eq(there.iter().copied()));
    kernels.verify_many(stream, &blocks, table, result).expect("launched");
    assert_eq!(kernels.findings(stream, result), Ok(Findings::NONE));
    for (wrongs, at) in (1..).zip([bytes - 16, 640 << 10, 40 << 10, 2 << 10]) {
        kernels.scribble(stream, part(block, 8 + at / 8 * 8, 1), !LIFE.byte(at / 8 * 8), 0).expect("launched");
        kernels.clear(stream, result).expect("launched");
        kernels.verify_many(stream, &blocks, table, result).expect("launched");
        let found = kernels.findings(stream, result).expect("read");
        assert_eq!((found.wrong_bytes, found.first_of_many()), (wrongs, Some((1, at / 8 * 8))));
    }
}

/// A graph would read a table from the host again at every run.
#[test]
fn tables_are_refused_while_the_stream_captures() {
    let Some(device) = device() else { return };
    let Some(kernels) = kernels(&device) else { return };
    let stream = stream(&device);
    let block = region(&device, 512);
    let table = region(&device, 512);
    let begun = device.with_context(|driver| {
        // SAFETY: takes no host pointers.
        unsafe { driver.stream_begin_capture(stream, CuCaptureMode::THREAD_LOCAL) }
    });
    let refused = kernels.fill_many(stream, &[(block, LIFE)], table, None);
    let mut graph = CuGraph::NULL;
    let ended = device.with_context(|driver| {
        // SAFETY: `graph` outlives the call, which writes one handle to it.
        unsafe { driver.stream_end_capture(stream, &raw mut graph) }
    });
    assert_eq!((begun, ended), (Ok(()), Ok(())));
    assert!(refused.is_err_and(|error| error.kind == ErrorKind::NotPermittedInCapture), "{refused:?}");
}

#[test]
fn checksums_copies_and_probes_agree_with_the_host() {
    let Some(device) = device() else { return };
    let Some(kernels) = kernels(&device) else { return };
    let stream = stream(&device);
    let result = region(&device, 16);
    for bytes in SIZES {
        let (from, to) = (region(&device, bytes), region(&device, bytes));
        kernels.fill(stream, from, LIFE).expect("launched");
        kernels.copy(stream, to, from).expect("launched");
        kernels.clear(stream, result).expect("launched");
        kernels.checksum(stream, to, result).expect("launched");
        let sum = kernels.findings(stream, result).expect("read").wrong_bytes;
        assert_eq!(sum, checksum(&bytes_of(&device, stream, to)), "{bytes} bytes");

        kernels.scribble(stream, to, 0xdd, 0).expect("launched");
        kernels.clear(stream, result).expect("launched");
        kernels.probe(stream, to, 0xdd, result).expect("launched");
        assert_eq!(kernels.findings(stream, result), Ok(Findings::NONE));
        let last = part(to, (bytes - 1) / 8 * 8, bytes - (bytes - 1) / 8 * 8);
        kernels.scribble(stream, last, 0xde, 0).expect("launched");
        kernels.probe(stream, to, 0xdd, result).expect("launched");
        let found = Findings { wrong_bytes: last.bytes(), lowest_wrong: last.address().0 - to.address().0 };
        assert_eq!(kernels.findings(stream, result), Ok(found), "{bytes} bytes");
        for region in [from, to] {
            device.release(region.address(), bytes.next_multiple_of(512)).expect("released");
        }
    }
}

#[test]
fn regions_that_are_too_short_are_refused() {
    let Some(device) = device() else { return };
    let Some(kernels) = kernels(&device) else { return };
    let (short, long) = (region(&device, 15), region(&device, 512));
    let refused = [
        kernels.verify(CuStream::NULL, long, LIFE, short),
        kernels.probe(CuStream::NULL, long, 0, short),
        kernels.clear(CuStream::NULL, short),
        kernels.copy(CuStream::NULL, short, long),
        kernels.add(CuStream::NULL, long, long, short),
        kernels.findings(CuStream::NULL, short).map(drop),
    ];
    assert!(refused.iter().all(|answer| answer.is_err_and(|error| error.kind == ErrorKind::InvalidArgument)));
}

#[test]
fn vectors_are_added() {
    let Some(device) = device() else { return };
    let Some(kernels) = kernels(&device) else { return };
    let stream = stream(&device);
    let count = 1000_u16;
    let vectors: [Region; 3] = [(); 3].map(|()| region(&device, u64::from(count) * 4));
    for (vector, factor) in [(vectors[1], 1.0_f32), (vectors[2], 0.5)] {
        let values: Vec<f32> = (0..count).map(|index| f32::from(index) * factor).collect();
        let copied = device.with_context(|driver| {
            // SAFETY: the values are as long as the vector and outlive the call, which waits.
            unsafe { driver.memcpy_htod(vector.address().0, values.as_ptr().cast(), values.len() * 4) }
        });
        assert_eq!(copied, Ok(()));
    }
    kernels.add(stream, vectors[0], vectors[1], vectors[2]).expect("launched");
    let bytes = bytes_of(&device, stream, vectors[0]);
    let sums = bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes).to_bits());
    assert!(sums.eq((0..count).map(|index| (f32::from(index) * 1.5).to_bits())));
}

#[test]
fn a_held_stream_is_busy_and_others_are_not() {
    let Some(device) = device() else { return };
    let Some(kernels) = kernels(&device) else { return };
    let (held, free) = (stream(&device), stream(&device));
    let numbers = [held, free].map(|stream| device.stream_id(stream).expect("a number"));
    let events = [(); 2].map(|()| device.create_event().expect("an event"));
    let begin = Instant::now();
    kernels.hold(held, 200_000).expect("launched");
    for (event, number) in events.iter().zip(numbers) {
        device.record(*event, number).expect("recorded");
    }
    device.wait(events[1]).expect("waited");
    // If the machine stalls so long that the held stream completes, the second assertion says
    // nothing.
    let soon = begin.elapsed().as_millis() < 200;
    assert!(!soon || device.is_complete(events[0]) == Ok(false), "the held stream is done too early");
    device.wait(events[0]).expect("waited");
    assert!(begin.elapsed().as_millis() >= 200, "held for too short");
}

/// Loses the context of a separate process: the test runs a child process for each code.
#[test]
fn a_trap_loses_the_context_for_good() {
    const CHILD: &str = "CACHALOT_TEST_TRAP";
    let name = "a_trap_loses_the_context_for_good";
    if let Some(code) = std::env::var(CHILD).ok().and_then(|code| code.parse().ok()) {
        let Some(device) = device() else { return };
        let Some(kernels) = kernels(&device) else { return };
        let stream = stream(&device);
        kernels.trap(stream, CuResult(code)).expect("launched");
        let number = device.stream_id(stream).expect("a number");
        let lost = device.synchronize(number).expect_err("the kernel trapped");
        assert_eq!(lost.kind, ErrorKind::ContextLost, "{lost}");
        assert!(code != 700 || lost.code == 700, "{lost}");
        assert_eq!(device.obtain(512), Err(lost));
        assert_eq!(device.release(DevicePtr(512), 512), Err(lost));
        assert_eq!((device.health(), device.close()), (Err(lost), Err(lost)));
        let _ = writeln!(std::io::stderr(), "a trap with {code} is answered with {lost}");
        return;
    }
    if device().is_none_or(|device| kernels(&device).is_none()) {
        return;
    }
    for code in ["700", "719"] {
        let itself = std::env::current_exe().expect("a program");
        let test = format!("device::{name}");
        let child =
            std::process::Command::new(itself).args(["--exact", &test, "--nocapture"]).env(CHILD, code).output();
        let child = child.expect("it runs");
        let said = String::from_utf8_lossy(&child.stdout) + String::from_utf8_lossy(&child.stderr);
        // A name that fits no test would be a child that succeeds.
        assert!(child.status.success() && said.contains("running 1 test\n"), "code {code}: {said}");
    }
}
