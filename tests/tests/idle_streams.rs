//! Streams reported as idle by the device: waiting blocks need no event.

use cachalot_core::simulated::{Call, Failure, SimulatedDevice};
use cachalot_core::{Allocator, Config, DeviceError, DeviceIndex, DevicePtr, Error, ErrorKind, Growable, StreamId};

const DEVICE: DeviceIndex = DeviceIndex(0);
const STREAM: StreamId = StreamId(1);
const SIDE: StreamId = StreamId(2);
const MIB: u64 = 1 << 20;
/// The configurations with gathered frees, on a device with reports of idle streams.
const CONFIGS: [&str; 3] = ["parity:False", "parity:False,expandable_segments:True", "policy:stitched"];

type Simulated = Allocator<SimulatedDevice, spin::mutex::SpinMutex<()>, Growable>;

fn allocator(config: &str) -> Simulated {
    let device = SimulatedDevice::new(1 << 30).with_idle_streams_told();
    Simulated::new([device], &Config::parse(config).unwrap()).unwrap()
}

fn device(allocator: &Simulated) -> &SimulatedDevice {
    allocator.device(DEVICE).unwrap()
}

/// Returns the numbers of events recorded, of questions after events, and of questions after
/// streams.
fn calls(allocator: &Simulated) -> [u64; 3] {
    [Call::Record, Call::IsComplete, Call::IsIdle].map(|call| device(allocator).calls(call))
}

fn malloc(allocator: &Simulated) -> DevicePtr {
    allocator.malloc(DEVICE, 40 * MIB, STREAM).unwrap()
}

/// Uses a block on the stream [`SIDE`], and frees the block.
fn use_and_free(allocator: &Simulated, ptr: DevicePtr) {
    allocator.record_stream(ptr, SIDE).unwrap();
    allocator.free(ptr).unwrap();
}

/// Makes [`SIDE`] known as idle: the first free has recorded an event, and the event is complete.
fn begin(config: &str) -> Simulated {
    let allocator = allocator(config);
    let (first, second) = (malloc(&allocator), malloc(&allocator));
    use_and_free(&allocator, first);
    use_and_free(&allocator, second);
    device(&allocator).complete(SIDE);
    assert_eq!(malloc(&allocator), first, "`{config}`");
    assert_eq!(calls(&allocator), [1, 1, 1], "`{config}`: the event, and the stream for the second block");
    allocator.free(first).unwrap();
    allocator
}

#[test]
fn one_call_frees_all_blocks_behind_an_idle_stream_without_another_event() {
    for config in CONFIGS {
        let allocator = allocator(config);
        let blocks = [(); 3].map(|()| malloc(&allocator));
        blocks.iter().for_each(|&block| use_and_free(&allocator, block));
        allocator.process_events(DEVICE).unwrap();
        let active = || allocator.stats(DEVICE).unwrap().totals().active_bytes().current;
        assert_eq!((active(), calls(&allocator)[0]), (120 << 20, 2), "`{config}`: the stream is busy");
        use_and_free(&allocator, malloc(&allocator));
        device(&allocator).complete(SIDE);
        allocator.process_events(DEVICE).unwrap();
        assert_eq!((active(), calls(&allocator)[0]), (0, 2), "`{config}`");
    }
}

#[test]
fn many_frees_share_one_question() {
    for config in CONFIGS {
        let allocator = allocator(config);
        for _ in 0..1600 {
            use_and_free(&allocator, allocator.malloc(DEVICE, 4096, STREAM).unwrap());
            device(&allocator).complete(SIDE);
        }
        let [recorded, asked, idle] = calls(&allocator);
        assert!(recorded <= 1 && asked <= 1 && idle <= 101, "`{config}`: {recorded} {asked} {idle}");
        assert_eq!(allocator.stats(DEVICE).unwrap().totals().get("reserved_bytes.all.peak"), Some(2 * MIB as i64));
        allocator.check_invariants().unwrap();
    }
}

#[test]
fn a_request_needs_no_event_of_an_idle_stream() {
    for config in CONFIGS {
        let allocator = begin(config);
        let blocks = [malloc(&allocator), malloc(&allocator)];
        blocks.into_iter().for_each(|ptr| use_and_free(&allocator, ptr));
        assert!(blocks.contains(&malloc(&allocator)), "`{config}`");
        assert_eq!(calls(&allocator), [1, 1, 2], "`{config}`: one question frees both");
        allocator.check_invariants().unwrap();
    }
}

#[test]
fn a_block_of_a_busy_stream_waits_for_its_event() {
    // Under `stitched` a request is served at once: its stream is ordered after the use.
    for config in CONFIGS.into_iter().filter(|&config| config != "policy:stitched") {
        let allocator = begin(config);
        let blocks = [malloc(&allocator), malloc(&allocator)];
        device(&allocator).launch(SIDE, blocks[0], 512).unwrap();
        blocks.into_iter().for_each(|ptr| use_and_free(&allocator, ptr));
        let other = malloc(&allocator);
        assert!(!blocks.contains(&other), "`{config}`: the other stream still works");
        let [recorded, asked, idle] = calls(&allocator);
        assert_eq!((recorded, asked), (2, 1), "`{config}`: an event, and no question right after it");
        device(&allocator).complete(SIDE);
        assert!(blocks.contains(&malloc(&allocator)), "`{config}`");
        assert_eq!(calls(&allocator), [2, 2, idle], "`{config}`: the event answers");
        // The next free records an event at once, as the stream was busy.
        use_and_free(&allocator, other);
        assert_eq!(calls(&allocator)[0], 3, "`{config}`");
        allocator.check_invariants().unwrap();
    }
}

#[test]
fn a_failed_question_changes_nothing() {
    for config in CONFIGS {
        let allocator = begin(config);
        let blocks = [malloc(&allocator), malloc(&allocator)];
        blocks.into_iter().for_each(|ptr| use_and_free(&allocator, ptr));
        let error = DeviceError::new(ErrorKind::Other, 77);
        let nth = calls(&allocator)[2] + 1;
        device(&allocator).fail(Failure { call: Call::IsIdle, nth, persistent: false, error });
        assert_eq!(allocator.malloc(DEVICE, 40 * MIB, STREAM), Err(Error::Device(error)), "`{config}`");
        allocator.check_invariants().unwrap();
        assert!(blocks.contains(&malloc(&allocator)), "`{config}`");
    }
}

#[test]
fn a_capturing_stream_is_not_asked() {
    let allocator = begin("parity:False");
    let block = malloc(&allocator);
    let kept = malloc(&allocator);
    use_and_free(&allocator, block);
    device(&allocator).set_capturing(SIDE, true);
    let before = calls(&allocator);
    assert_ne!(malloc(&allocator), block);
    assert_eq!(calls(&allocator)[2], before[2]);
    device(&allocator).set_capturing(SIDE, false);
    assert_eq!(malloc(&allocator), block);
    allocator.free(kept).unwrap();
    allocator.check_invariants().unwrap();
}
