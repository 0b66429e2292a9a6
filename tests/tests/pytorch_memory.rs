//! The expectations of PyTorch's own tests of requests, limits and settings, on the simulated
//! device.

use cachalot_core::simulated::{Call, SimulatedDevice};
use cachalot_core::{Allocator, Config, Error, Growable, MAX_REQUEST, PoolKind, StreamId};
use cachalot_tests::hooked::Hooked;
use cachalot_tests::host::{DEVICE, Host, MIB, STREAM};
use std::sync::Arc;

const GIB: u64 = 1 << 30;
const SIDE: StreamId = StreamId(2);

#[test]
fn statistics_of_one_tensor() {
    let host = Host::new("", GIB);
    host.allocator.stats(DEVICE).unwrap().reset_peaks();
    host.allocator.stats(DEVICE).unwrap().reset_accumulated();
    let ptr = host.malloc(256 * 4);
    let field = |field: &str| host.stat(&format!("active_bytes.all.{field}"));
    assert_eq!([field("current"), field("peak"), field("allocated"), field("freed")], [1024, 1024, 1024, 0]);
    host.free(ptr);
    host.empty_cache();
    assert_eq!([field("current"), field("peak"), field("allocated"), field("freed")], [0, 1024, 1024, 1024]);
}

#[test]
fn every_statistic_of_memory_stats_is_there() {
    let host = Host::new("max_split_size_mb:64", GIB);
    let stats = host.allocator.stats(DEVICE).unwrap().totals();
    let mut keys = Vec::new();
    stats.for_each(|key, _| keys.push(key.to_owned()));
    assert_eq!(keys.len(), 9 * 3 * 4 + 2 * 4 + 7);
    assert_eq!(stats.get("max_split_size"), Some(64 << 20));
    assert_eq!(stats.get("num_sync_all_streams"), Some(0));
    assert_eq!(stats.get("oversize_segments.freed"), Some(0));
    assert_eq!(stats.get("segment.large_pool.peak"), Some(0));
    assert_eq!(stats.get("segment.large_pool"), None);
    // The reported size is that of the start.
    host.configure("max_split_size_mb:32");
    assert_eq!(host.stat("max_split_size"), 64 << 20);
    assert_eq!(Host::new("", GIB).stat("max_split_size"), -1);
}

#[test]
fn one_byte_raises_what_is_allocated() {
    let host = Host::new("", GIB);
    let ptr = host.malloc(1);
    assert_eq!(host.stat("allocated_bytes.all.current"), 512);
    assert_eq!(host.stat("requested_bytes.all.current"), 1);
    host.free(ptr);
    assert_eq!(host.stat("allocated_bytes.all.current"), 0);
}

#[test]
fn impossible_sizes_are_refused_and_the_next_request_is_served() {
    let host = Host::new("", 80 * GIB);
    let text = host.refused(800_000_000 * GIB).in_words_of_pytorch().to_string();
    assert!(
        text.contains(
            "Tried to allocate 800000000.00 GiB. GPU 0 has a total capacity of 80.00 GiB of which 80.00 GiB is free."
        ),
        "{text}"
    );
    for bytes in [8_000_000_000 * GIB, MAX_REQUEST, MAX_REQUEST + 1, u64::MAX, u64::MAX - 511] {
        let error = host.refused(bytes);
        assert_eq!(error, Error::TooLarge(bytes));
        assert!(error.in_words_of_pytorch().to_string().contains("Tried to allocate more than 1EB memory"));
    }
    assert_eq!(host.stat("num_ooms"), 1);
    host.malloc(MIB);
}

#[test]
fn half_of_the_device_twice_is_too_much() {
    let host = Host::new("", GIB);
    let half = GIB / 100 * 51;
    let first = host.malloc(half);
    assert!(matches!(host.refused(half), Error::OutOfMemory(_)));
    host.free(first);
    host.malloc(half);
}

#[test]
fn a_request_for_most_of_a_fragmented_device_is_retried() {
    let host = Host::new("", GIB);
    let blocks: Vec<_> = (0..27).map(|_| host.malloc(GIB / 32)).collect();
    blocks.into_iter().for_each(|ptr| host.free(ptr));
    host.malloc(GIB / 10 * 7);
    assert_eq!(host.stat("num_alloc_retries"), 1);
    assert_eq!(host.stat("num_ooms"), 0);
}

#[test]
fn fractions() {
    let host = Host::new("", GIB);
    for wrong in [-0.1, 2.0, f64::NAN, f64::INFINITY] {
        let refused = host.allocator.settings(DEVICE).unwrap().set_memory_fraction(wrong);
        assert!(matches!(refused, Err(Error::InvalidFraction(_))), "{wrong}");
        assert_eq!(host.allocator.settings(DEVICE).map(|settings| settings.limit()), Ok(None));
    }
    host.allocator.settings(DEVICE).unwrap().set_memory_fraction(0.5).unwrap();
    assert_eq!(host.allocator.settings(DEVICE).map(|settings| settings.limit()), Ok(Some(GIB / 2)));
    let most = (GIB as f64 * 0.499) as u64;
    host.free(host.malloc(most));
    host.empty_cache();
    // Equality is allowed, one byte more is not.
    host.free(host.malloc(GIB / 2));
    host.empty_cache();
    let error = host.refused(GIB / 2 + 1);
    assert!(error.in_words_of_pytorch().to_string().contains("512.00 MiB allowed; "), "{error}");
    host.allocator.settings(DEVICE).unwrap().set_memory_fraction(0.0).unwrap();
    assert!(matches!(host.refused(1), Error::OutOfMemory(_)));
    host.allocator.settings(DEVICE).unwrap().set_memory_fraction(1.0).unwrap();
    assert_eq!(host.allocator.settings(DEVICE).map(|settings| settings.limit()), Ok(None));
    host.malloc(GIB);
    let configured = Host::new("per_process_memory_fraction:0.5", GIB);
    assert_eq!(configured.allocator.settings(DEVICE).map(|settings| settings.limit()), Ok(Some(GIB / 2)));
}

#[test]
fn max_split_and_expandable_segments_together() {
    let host = Host::new("max_split_size_mb:40", GIB);
    host.allocator.settings(DEVICE).unwrap().set_limit(Some(120 * MIB));
    let a = host.malloc(40 * MIB);
    host.configure("expandable_segments:True,max_split_size_mb:40");
    let b = host.malloc(40 * MIB);
    host.configure("expandable_segments:False,max_split_size_mb:40");
    let c = host.malloc(40 * MIB);
    assert!(matches!(host.refused(40 * MIB), Error::OutOfMemory(_)));
    [a, b, c].into_iter().for_each(|ptr| host.free(ptr));
    host.malloc(120 * MIB);
}

#[test]
fn collection_passes_expandable_segments_over() {
    let host = Host::new("garbage_collection_threshold:0.5", GIB);
    host.allocator.settings(DEVICE).unwrap().set_limit(Some(120 * MIB));
    let a = host.malloc(40 * MIB);
    host.configure("expandable_segments:True,garbage_collection_threshold:0.5");
    let b = host.malloc(40 * MIB);
    host.free(a);
    host.free(b);
    host.malloc(80 * MIB);
}

#[test]
fn settings_change_at_run_time() {
    let host = Host::new("", 8 * GIB);
    let delta = |bytes: u64| {
        let keys = ["active_bytes.all.allocated", "requested_bytes.all.allocated"];
        let before = keys.map(|key| host.stat(key));
        host.free(host.malloc(bytes));
        let after = keys.map(|key| host.stat(key));
        host.empty_cache();
        assert_eq!(after[1] - before[1], bytes.cast_signed());
        (after[0] - before[0]).cast_unsigned()
    };
    assert_eq!(delta(84 * MIB), 88_080_384);
    host.configure("max_split_size_mb:100,garbage_collection_threshold:0.5,roundup_power2_divisions:4");
    assert_eq!(delta(84 * MIB), 96 * MIB);
    host.configure("max_split_size_mb:40");
    assert_eq!(delta(84 * MIB), 84 * MIB, "divisions are off unless they are named");
    host.configure("roundup_power2_divisions:[64:8,128:2,256:2,512:2,1024:1,>:1]");
    assert_eq!(delta(84 * MIB), 88 * MIB);
    assert_eq!(delta(400 * MIB), 512 * MIB);
    for wrong in [
        "foo:1,bar:2",
        "garbage_collection_threshold:1.2",
        "max_split_size_mb:2",
        "release_lock_on_cudamalloc:none",
        "pinned_use_cuda_host_register:none",
        "pinned_num_register_threads:none",
        "pinned_num_register_threads:1024",
        "throw_on_cudamalloc_oom:maybe",
    ] {
        assert!(Config::parse(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn a_rejected_request_releases_nothing() {
    let host = Host::new("throw_on_cudamalloc_oom:True,per_process_memory_fraction:0.005", 80 * GIB);
    let allowed = (80.0 * GIB as f64 * 0.005) as u64;
    let cached = host.malloc(20 * MIB);
    host.free(cached);
    let error = host.refused(allowed + MIB);
    assert!(matches!(error, Error::Rejected(_)), "{error}");
    let text = error.in_words_of_pytorch().to_string();
    assert!(text.starts_with("CUDA out of memory. Allocation was preemptively rejected"), "{text}");
    assert_eq!([host.stat("num_oom_rejections"), host.stat("num_ooms"), host.stat("num_device_free")], [1, 0, 0]);
    host.allocator.stats(DEVICE).unwrap().reset_accumulated();
    assert_eq!(host.stat("num_oom_rejections"), 0);
}

#[test]
fn without_a_cache_every_free_reaches_the_device() {
    let host = Host::new("", GIB);
    let cached = host.malloc(MIB);
    host.allocator.settings(DEVICE).unwrap().set_caching(false);
    let direct = host.malloc(3 * MIB + 1);
    assert_eq!(host.allocator.base_of(direct).unwrap().segment_bytes, 3 * MIB + 512);
    host.free(direct);
    assert_eq!(host.device().calls(Call::Release), 1);
    host.free(cached);
    assert_eq!(host.device().used(), 0);
    host.allocator.settings(DEVICE).unwrap().set_caching(true);
    host.free(host.malloc(MIB));
    assert_eq!(host.device().used(), 2 * MIB);
}

#[test]
fn a_failed_request_is_reported_to_the_program() {
    for config in ["", "max_split_size_mb:1024"] {
        let config = Config::parse(config).unwrap();
        let device = Hooked::new(SimulatedDevice::new(GIB));
        let allocator = Allocator::<_, parking_lot::RawMutex, Growable>::new([device], &config).unwrap();
        let Err(Error::OutOfMemory(report)) = allocator.malloc(DEVICE, 2 * GIB, STREAM) else {
            panic!("it cannot fit")
        };
        assert_eq!(allocator.device(DEVICE).unwrap().reports(), [report]);
        assert_eq!((report.requested, report.segment, report.memory.total), (2 * GIB, 2 * GIB, GIB));
        allocator.malloc(DEVICE, GIB, STREAM).unwrap();
    }
}

#[test]
fn the_program_may_free_memory_when_there_is_a_shortage() {
    let device = Hooked::new(SimulatedDevice::new(GIB));
    let allocator = Allocator::<_, parking_lot::RawMutex, Growable>::new([device], &Config::new()).unwrap();
    let allocator = Arc::new(allocator);
    let spare = allocator.malloc(DEVICE, 600 * MIB, STREAM).unwrap();
    let again = Arc::downgrade(&allocator);
    let mut spare_left = Some(spare);
    allocator.device(DEVICE).unwrap().on_shortage(move |bytes| {
        assert_eq!(bytes, 500 * MIB);
        spare_left.take().is_some_and(|ptr| again.upgrade().unwrap().free(ptr).is_ok())
    });
    assert_eq!(allocator.malloc(DEVICE, 500 * MIB, STREAM), Ok(spare));
    let stats = allocator.stats(DEVICE).unwrap().totals();
    assert_eq!((stats.device_allocs(), stats.device_frees(), stats.alloc_retries()), (1, 0, 0));
    let again = allocator.malloc(DEVICE, 500 * MIB, STREAM);
    assert!(matches!(again, Err(Error::OutOfMemory(_))), "the remedy has nothing left");
}

/// The program is asked before new memory is obtained. Without a cache, what the program frees goes
/// back to the device.
#[test]
fn what_the_program_frees_at_a_shortage_serves_before_new_memory() {
    for caching in [true, false] {
        let device = Hooked::new(SimulatedDevice::new(GIB));
        let allocator = Allocator::<_, parking_lot::RawMutex, Growable>::new([device], &Config::new()).unwrap();
        let allocator = Arc::new(allocator);
        let mut kept = vec![allocator.malloc(DEVICE, 300 * MIB, STREAM).unwrap()];
        allocator.settings(DEVICE).unwrap().set_caching(caching);
        if !caching {
            kept.push(allocator.malloc(DEVICE, 600 * MIB, STREAM).unwrap());
        }
        let before = allocator.stats(DEVICE).unwrap().totals().device_allocs();
        let again = Arc::downgrade(&allocator);
        allocator
            .device(DEVICE)
            .unwrap()
            .on_shortage(move |_| kept.pop().is_some_and(|ptr| again.upgrade().unwrap().free(ptr).is_ok()));
        allocator.malloc(DEVICE, 300 * MIB, STREAM).unwrap();
        let obtained = allocator.stats(DEVICE).unwrap().totals().device_allocs() - before;
        assert_eq!(obtained, u64::from(!caching), "{caching}");
    }
}

#[test]
fn a_block_that_another_stream_uses_is_reused_once_that_is_done() {
    let host = Host::new("", GIB);
    let ptr = host.malloc(5 * MIB);
    host.allocator.record_stream(ptr, SIDE).unwrap();
    host.free(ptr);
    assert_ne!(host.malloc(5 * MIB), ptr, "the side stream is busy");
    host.device().complete(SIDE);
    assert_eq!(host.malloc(5 * MIB), ptr);
}

#[test]
fn a_block_waits_for_every_stream_that_uses_it() {
    let host = Host::new("", GIB);
    let ptr = host.malloc(5 * MIB);
    for stream in [SIDE, StreamId(3), SIDE, STREAM] {
        host.allocator.record_stream(ptr, stream).unwrap();
    }
    host.free(ptr);
    assert_eq!(host.device().calls(Call::Record), 2, "one event for each other stream");
    host.device().complete(SIDE);
    assert_ne!(host.malloc(5 * MIB), ptr);
    host.device().complete(StreamId(3));
    assert_eq!(host.malloc(5 * MIB), ptr);
    // The events are used again.
    host.allocator.record_stream(ptr, SIDE).unwrap();
    host.free(ptr);
    assert_eq!(host.device().calls(Call::CreateEvent), 2);
}

/// Random blocks of 2–20 MiB, up to a tenth of the device: no two blocks ever overlap.
#[test]
fn ten_thousand_random_steps() {
    let host = Host::new("", 10 * GIB);
    let mut random = 123_u64;
    let mut next = move |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    let mut live: Vec<(u64, u64)> = Vec::new();
    for _ in 0..10_000 {
        match next(21) {
            0..10 => {
                let bytes = (2 * MIB + next(18 * MIB)) / 4 * 4;
                if live.iter().map(|(_, bytes)| bytes).sum::<u64>() + bytes <= GIB {
                    let ptr = host.malloc(bytes).0;
                    let apart = |&(base, len): &(u64, u64)| ptr + bytes <= base || base + len <= ptr;
                    assert!(live.iter().all(apart));
                    live.push((ptr, bytes));
                }
            }
            10..20 if !live.is_empty() => {
                let (ptr, _) = live.swap_remove(next(live.len() as u64) as usize);
                host.free(cachalot_core::DevicePtr(ptr));
            }
            20 => host.empty_cache(),
            _ => {}
        }
    }
}

#[test]
fn the_last_events_before_an_empty_cache_are_its_releases() {
    for (config, last) in [("", "segment_free"), ("expandable_segments:True", "segment_unmap")] {
        let host = Host::new(config, GIB);
        host.allocator.trace(DEVICE).unwrap().record(100).unwrap();
        let ptr = host.malloc(3 * MIB);
        host.free(ptr);
        host.empty_cache();
        let mut actions = Vec::new();
        host.allocator
            .trace(DEVICE)
            .unwrap()
            .for_each(|entry| actions.push((entry.action.name(), entry.addr, entry.size)));
        let obtained = if config.is_empty() { "segment_alloc" } else { "segment_map" };
        let expected = [
            (obtained, 20 * MIB),
            ("alloc", 3 * MIB),
            ("free_requested", 3 * MIB),
            ("free_completed", 3 * MIB),
            (last, 20 * MIB),
        ];
        assert_eq!(actions, expected.map(|(action, size)| (action, ptr, size)));
    }
}

#[test]
fn a_snapshot_names_what_it_shows() {
    let host = Host::new("", GIB);
    let ptr = host.malloc_on(3 * MIB, SIDE);
    let [segment] = &host.allocator.snapshot()[..] else { panic!("one segment") };
    assert_eq!(
        (segment.address, segment.total_size, segment.stream, segment.kind),
        (ptr, 20 * MIB, SIDE, PoolKind::Large)
    );
    assert_eq!([segment.allocated_size(), segment.active_size(), segment.requested_size()], [3 * MIB; 3]);
    let states: Vec<_> = segment.blocks.iter().map(|block| block.state.name()).collect();
    assert_eq!(states, ["active_allocated", "inactive"]);
}
