//! Strategies of proptest for generated programs.

use crate::program::{CONFIGS, Op, STREAMS};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

const MIB: u64 = 1 << 20;

/// Runs `cases` cases, or as many as `PROPTEST_CASES` says. Failing cases are saved in the file
/// `seeds`.
pub fn proptest_config(seeds: &'static str, cases: u32) -> ProptestConfig {
    let seeds = FileFailurePersistence::Direct(seeds);
    let mut config = ProptestConfig { failure_persistence: Some(Box::new(seeds)), ..ProptestConfig::default() };
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = cases;
    }
    config
}

/// Sizes around every edge of the size rules, and between the edges.
pub fn bytes() -> impl Strategy<Value = u64> {
    let edges = [512, MIB, 2 * MIB, 10 * MIB, 20 * MIB, 24 * MIB, 32 * MIB, 40 * MIB];
    prop_oneof![
        6 => 1..4096_u64,
        4 => 1..MIB,
        4 => MIB..10 * MIB,
        4 => 10 * MIB..60 * MIB,
        1 => 60 * MIB..300 * MIB,
        3 => (0..edges.len(), 0..1025_u64).prop_map(move |(edge, beyond)| edges[edge] + beyond - 512),
        1 => Just(0),
    ]
}

fn stream() -> impl Strategy<Value = u8> {
    prop_oneof![3 => Just(0), 2 => Just(1), 1 => 2..STREAMS]
}

/// Operations on a device without pools: requests, frees, uses on other streams, and releases of
/// memory.
pub fn plain() -> impl Strategy<Value = Op> {
    prop_oneof![
        30 => (bytes(), stream()).prop_map(|(bytes, stream)| Op::Malloc { bytes, stream }),
        20 => any::<u8>().prop_map(|block| Op::Free { block }),
        1 => any::<(u8, bool)>().prop_map(|(block, right)| Op::FreeSized { block, right }),
        1 => any::<(u8, u16)>().prop_map(|(block, offset)| Op::FreeWrong { block, offset }),
        8 => (any::<u8>(), stream()).prop_map(|(block, stream)| Op::RecordStream { block, stream }),
        1 => (any::<u8>(), 0..4_u32 << 20).prop_map(|(block, offset)| Op::BaseOf { block, offset }),
        3 => stream().prop_map(|stream| Op::CompleteOne { stream }),
        2 => stream().prop_map(|stream| Op::Complete { stream }),
        1 => Just(Op::ProcessEvents),
        1 => Just(Op::EmptyCache),
        1 => (0..200_u16).prop_map(|keep_mib| Op::Trim { keep_mib }),
        1 => stream().prop_map(|stream| Op::StreamDestroyed { stream }),
        1 => prop::option::of(any::<u8>()).prop_map(|above_mib| Op::Limit { above_mib }),
        1 => Just(Op::ResetPeaks),
        1 => Just(Op::ResetAccumulated),
    ]
}

/// Operations of [`plain`], and changes of the configuration.
pub fn with_settings() -> impl Strategy<Value = Op> {
    prop_oneof![
        30 => plain(),
        1 => (0..=64_u8).prop_map(|of_64| Op::Fraction { of_64 }),
        3 => (0..CONFIGS.len() as u8).prop_map(|config| Op::Configure { config }),
        1 => any::<bool>().prop_map(|on| Op::Caching { on }),
        1 => (0..8_u8).prop_map(|capacity| Op::Trace { capacity }),
    ]
}

/// Operations on a device with pools, routes and captures.
pub fn with_pools() -> impl Strategy<Value = Op> {
    let pool = || 0..5_u8;
    prop_oneof![
        40 => with_settings(),
        2 => any::<(bool, bool)>().prop_map(|(use_on_oom, no_split)| Op::CreatePool { use_on_oom, no_split }),
        1 => (pool(), any::<(bool, bool)>())
            .prop_map(|(pool, (use_on_oom, no_split))| Op::RetainPool { pool, use_on_oom, no_split }),
        1 => (pool(), any::<(bool, bool)>())
            .prop_map(|(pool, (use_on_oom, no_split))| Op::PoolOptions { pool, use_on_oom, no_split }),
        3 => pool().prop_map(|pool| Op::ReleasePool { pool }),
        1 => pool().prop_map(|pool| Op::EmptyPool { pool }),
        2 => (pool(), prop::option::of(stream())).prop_map(|(pool, stream)| Op::Route { pool, stream }),
        1 => (pool(), any::<bool>()).prop_map(|(pool, other)| Op::RouteThread { pool, other }),
        3 => pool().prop_map(|pool| Op::EndRoute { pool }),
        2 => (pool(), any::<u8>()).prop_map(|(pool, streams)| Op::RouteUnsaid { pool, streams }),
        2 => pool().prop_map(|pool| Op::EndRouteUnsaid { pool }),
        2 => (pool(), stream()).prop_map(|(pool, stream)| Op::Capture { pool, stream }),
        2 => any::<bool>().prop_map(|tidily| Op::EndCapture { tidily }),
        1 => stream().prop_map(|stream| Op::StopCapturing { stream }),
        1 => stream().prop_map(|stream| Op::CaptureWork { stream }),
        1 => (stream(), stream()).prop_map(|(stream, awaited)| Op::CaptureWait { stream, awaited }),
    ]
}

/// Operations of [`with_pools`], and mostly operations for captures: forks and joins of streams in
/// a captured graph, and small blocks on the streams.
pub fn within_captures() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => with_pools(),
        6 => (1..4096_u64, stream()).prop_map(|(bytes, stream)| Op::Malloc { bytes, stream }),
        5 => (any::<u8>(), stream()).prop_map(|(block, stream)| Op::RecordStream { block, stream }),
        4 => any::<u8>().prop_map(|block| Op::Free { block }),
        2 => (0..2_u8, stream()).prop_map(|(pool, stream)| Op::Capture { pool, stream }),
        1 => any::<bool>().prop_map(|tidily| Op::EndCapture { tidily }),
        4 => stream().prop_map(|stream| Op::CaptureWork { stream }),
        5 => (stream(), stream()).prop_map(|(stream, awaited)| Op::CaptureWait { stream, awaited }),
    ]
}

/// A program of the given operations, with the number of its initial configuration.
pub fn program(op: impl Strategy<Value = Op>, length: usize) -> impl Strategy<Value = (u8, Vec<Op>)> {
    (0..CONFIGS.len() as u8, prop::collection::vec(op, 1..length))
}
