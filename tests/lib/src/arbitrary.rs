//! Builds test programs from the bytes of a fuzzer.

use crate::program::{CONFIGS, Op, STREAMS};
use arbitrary::{Arbitrary, Result, Unstructured};

const MIB: u64 = 1 << 20;

/// A program with its initial configuration.
#[derive(Arbitrary, Debug)]
pub struct Program {
    /// Number of the initial configuration.
    pub config: u8,
    /// The operations.
    pub ops: Vec<Op>,
}

impl Program {
    /// Builds a program from fuzzer bytes. Returns `None` for too few bytes.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Self::arbitrary_take_rest(Unstructured::new(bytes)).ok()
    }
}

/// Sizes around every edge of the size rules, and between the edges.
fn bytes(u: &mut Unstructured<'_>) -> Result<u64> {
    let edge = *u.choose(&[512, 4096, MIB, 2 * MIB, 10 * MIB, 20 * MIB, 24 * MIB, 32 * MIB, 40 * MIB, 100 * MIB])?;
    Ok(match u.int_in_range(0..=7)? {
        0..=2 => edge + u.int_in_range(0..=1024)? - 512,
        3..=5 => u.int_in_range(1..=edge)?,
        _ => edge / 512 * u.int_in_range(1..=1024)?,
    })
}

impl<'a> Arbitrary<'a> for Op {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        let stream = |u: &mut Unstructured<'a>| u.int_in_range(0..=STREAMS - 1);
        let pool = |u: &mut Unstructured<'a>| u.int_in_range(0..=4);
        Ok(match u.int_in_range(0..=63_u8)? {
            0..=19 => Self::Malloc { bytes: bytes(u)?, stream: stream(u)? },
            20..=31 => Self::Free { block: u.arbitrary()? },
            32 => Self::FreeSized { block: u.arbitrary()?, right: u.arbitrary()? },
            33 => Self::FreeWrong { block: u.arbitrary()?, offset: u.arbitrary()? },
            34..=37 => Self::RecordStream { block: u.arbitrary()?, stream: stream(u)? },
            38 => Self::BaseOf { block: u.arbitrary()?, offset: u.int_in_range(0..=4 << 20)? },
            39 | 40 => Self::CompleteOne { stream: stream(u)? },
            41 => Self::Complete { stream: stream(u)? },
            42 => Self::ProcessEvents,
            43 => Self::EmptyCache,
            44 => Self::EmptyPool { pool: pool(u)? },
            45 => Self::Trim { keep_mib: u.int_in_range(0..=200)? },
            46 => Self::Limit { above_mib: u.arbitrary()? },
            47 => Self::Fraction { of_64: u.int_in_range(0..=64)? },
            48 | 49 => Self::Configure { config: u.int_in_range(0..=CONFIGS.len() as u8 - 1)? },
            50 => Self::CreatePool { use_on_oom: u.arbitrary()?, no_split: u.arbitrary()? },
            51 => Self::RetainPool { pool: pool(u)?, use_on_oom: u.arbitrary()?, no_split: u.arbitrary()? },
            52 => Self::PoolOptions { pool: pool(u)?, use_on_oom: u.arbitrary()?, no_split: u.arbitrary()? },
            53 => Self::ReleasePool { pool: pool(u)? },
            54 => match u.int_in_range(0..=9)? {
                pool @ 0..=4 => Self::Route { pool, stream: if u.arbitrary()? { Some(stream(u)?) } else { None } },
                pool => Self::RouteUnsaid { pool: pool - 5, streams: u.arbitrary()? },
            },
            55 => Self::RouteThread { pool: pool(u)?, other: u.arbitrary()? },
            56 => match u.int_in_range(0..=9)? {
                pool @ 0..=4 => Self::EndRoute { pool },
                pool => Self::EndRouteUnsaid { pool: pool - 5 },
            },
            57 => Self::Capture { pool: pool(u)?, stream: stream(u)? },
            58 => Self::EndCapture { tidily: u.arbitrary()? },
            59 => match u.int_in_range(0..=2)? {
                0 => Self::StopCapturing { stream: stream(u)? },
                1 => Self::CaptureWork { stream: stream(u)? },
                _ => Self::CaptureWait { stream: stream(u)?, awaited: stream(u)? },
            },
            60 => Self::StreamDestroyed { stream: stream(u)? },
            61 => Self::Caching { on: u.arbitrary()? },
            62 => Self::Trace { capacity: u.int_in_range(0..=8)? },
            _ => {
                if u.arbitrary()? {
                    Self::ResetPeaks
                } else {
                    Self::ResetAccumulated
                }
            }
        })
    }
}
