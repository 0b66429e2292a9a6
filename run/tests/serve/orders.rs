//! Random programs: threads, contexts, streams and work, with every byte checked.

use super::setup::Setup;
use cachalot_cuda::driver::types::{CuContext, CuDevice};
use cachalot_run::Options;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::thread;

/// A block of a thread.
struct Held {
    address: u64,
    bytes: usize,
    value: u8,
    /// The stream of the last work on the block.
    last: u64,
    /// The stream of the request. `None`: requested for every stream.
    own: Option<u64>,
}

/// The blocks of all threads, by address: no two overlap.
type InUse = Mutex<BTreeMap<u64, u64>>;

/// Notes a block, which must not overlap another in use.
fn enter(all: &InUse, address: u64, bytes: usize) {
    let mut all = all.lock().expect("no panic");
    let end = address + bytes as u64;
    let below = all.range(..end).next_back();
    assert!(below.is_none_or(|(_, &other_end)| other_end <= address), "two blocks at {address:x}");
    all.insert(address, end);
}

/// A thread of a random program.
fn work(setup: &Setup, contexts: &[u64], all: &InUse, seed: u64, rounds: usize) {
    let mut random = fastrand::Rng::with_seed(seed);
    let context = random.choice(contexts).copied().expect("contexts");
    assert_eq!(setup.cuCtxSetCurrent(context), 0);
    let streams = [setup.stream(), setup.stream(), setup.stream_of(0)];
    let mut held: Vec<Held> = Vec::new();
    let check = |block: &Held| {
        // In the order of the last work on the block, copied by the device itself.
        let mut found = vec![0_u8; block.bytes];
        assert_eq!(setup.cuMemcpyDtoHAsync_v2(found.as_mut_ptr().cast(), block.address, block.bytes, block.last), 0);
        assert_eq!(setup.cuStreamSynchronize(block.last), 0);
        let wrong = found.iter().position(|&byte| byte != block.value);
        assert_eq!(wrong, None, "seed {seed}: {:x} was written by another", block.address);
    };
    for _ in 0..rounds {
        let stream = *random.choice(&streams).expect("streams");
        let bytes = if random.u32(0..8) == 0 { random.usize(1..6 << 20) } else { random.usize(1..20_000) };
        match random.u32(0..10) {
            0..=2 => {
                let address = setup.take(bytes);
                enter(all, address, bytes);
                let value = random.u8(..);
                setup.fill(address, value, bytes, stream);
                held.push(Held { address, bytes, value, last: stream, own: None });
            }
            3 | 4 => {
                let address = setup.take_on(bytes, stream);
                enter(all, address, bytes);
                let value = random.u8(..);
                setup.fill(address, value, bytes, stream);
                held.push(Held { address, bytes, value, last: stream, own: Some(stream) });
            }
            5 if !held.is_empty() => check(&held[random.usize(0..held.len())]),
            6 if !held.is_empty() => {
                // The host may copy to memory as soon as the last work is complete.
                let at = random.usize(0..held.len());
                let block = &mut held[at];
                assert_eq!(setup.cuStreamSynchronize(block.last), 0);
                block.value = random.u8(..);
                let from = vec![block.value; block.bytes];
                assert_eq!(setup.cuMemcpyHtoD_v2(block.address, from.as_ptr().cast(), block.bytes), 0);
            }
            _ if !held.is_empty() => {
                let block = held.swap_remove(random.usize(0..held.len()));
                if random.bool() {
                    check(&block);
                }
                all.lock().expect("no panic").remove(&block.address);
                // Memory in a stream's order is freed there, after its last work; or by the free
                // that knows no stream, once its work is complete.
                let code = match block.own {
                    Some(_) if random.bool() => {
                        assert_eq!(setup.cuStreamSynchronize(block.last), 0);
                        setup.give(block.address)
                    }
                    Some(_) => setup.give_on(block.address, block.last),
                    None if random.u32(0..4) == 0 => setup.give_on(block.address, block.last),
                    None => setup.give(block.address),
                };
                assert_eq!(code, 0, "seed {seed}");
            }
            _ => {}
        }
    }
    for block in &held {
        check(block);
        all.lock().expect("no panic").remove(&block.address);
        assert_eq!(setup.give(block.address), 0);
    }
}

/// Runs a random program, and checks that nothing is left.
fn run(seed: u64, options: Options, threads: u64, rounds: usize) {
    println!("seed {seed}");
    let setup = Setup::with(&[], options);
    setup.control.set_seed(seed);
    setup.control.set_delay_us(seed % 3 * 100);
    let mut second = CuContext::NULL;
    // SAFETY: `second` outlives the call.
    assert_eq!(unsafe { setup.process.ctx_create_v2(&raw mut second, 0, CuDevice(0)) }.0, 0);
    let contexts = [setup.context, second.0 as u64, setup.retain(1)];
    let all = InUse::default();
    thread::scope(|scope| {
        for thread in 0..threads {
            let (setup, contexts, all) = (&setup, &contexts, &all);
            scope.spawn(move || work(setup, contexts, all, seed * 1000 + thread, rounds));
        }
    });
    assert_eq!(setup.process.counts().used_bytes, 0, "seed {seed}");
}

#[test]
fn random_programs_find_their_bytes_unchanged() {
    for seed in 0..6 {
        let zero = seed % 3 == 2;
        let settings = if seed % 4 == 3 { "expandable_segments:True" } else { "" };
        run(seed, Options { zero, settings: settings.to_owned(), ..Options::default() }, 4, 150);
    }
}

#[test]
fn random_programs_share_little_memory() {
    for seed in 6..9 {
        run(seed, Options { limit: Some(400 << 20), ..Options::default() }, 4, 100);
    }
}

#[test]
fn random_programs_run_under_every_policy() {
    let policies = ["bfc", "buddy", "size_class,chunk_mb:64", "slab", "stitched", "planned", "direct"];
    for (seed, policy) in (20..).zip(policies) {
        run(seed, Options { settings: format!("policy:{policy}"), ..Options::default() }, 2, 100);
    }
}
