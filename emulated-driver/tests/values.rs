//! Numbers in memory that streams write and wait for.

use crate::common::Emulated;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

/// The comparisons of a wait.
const AT_LEAST: u32 = 0;
const EQUAL: u32 = 1;
const COMMON_BIT: u32 = 2;
const FREE_BIT: u32 = 3;

/// Allocates cleared memory.
fn cleared(driver: &Emulated) -> u64 {
    let address = driver.alloc(64).expect("memory");
    assert_eq!(driver.write(address, &[0; 64]), 0);
    address
}

#[test]
fn a_stream_waits_until_another_has_written_the_number() {
    let driver = Emulated::new();
    let (first, second) = (driver.stream(1).expect("a stream"), driver.stream(1).expect("a stream"));
    let flag = cleared(&driver);
    assert_eq!(driver.cuStreamWaitValue32(first, flag, 5, AT_LEAST), 0);
    assert_eq!(driver.cuMemsetD8Async(flag + 32, 1, 1, first), 0);
    assert_eq!((driver.cuStreamWriteValue32_v2(second, flag, 4, 0), driver.cuStreamSynchronize(second)), (0, 0));
    assert_eq!((driver.cuStreamQuery(first), driver.control.pending(first)), (600, 2));
    assert_eq!((driver.cuStreamWriteValue32(second, flag, 6, 1), driver.cuStreamSynchronize(first)), (0, 0));
    assert_eq!((driver.read(flag, 8), driver.read(flag + 32, 1)), (Ok(vec![6, 0, 0, 0, 0, 0, 0, 0]), Ok(vec![1])));
    assert_eq!(driver.cuStreamWaitValue64_v2(first, flag + 8, 1 << 40, EQUAL), 0);
    assert_eq!((driver.cuStreamQuery(first), driver.cuStreamWriteValue64_ptsz(0, flag + 8, 1 << 40, 0)), (600, 0));
    assert_eq!((driver.cuStreamSynchronize(first), driver.read(flag + 13, 1)), (0, Ok(vec![1])));
}

#[test]
fn a_stream_waits_for_a_number_that_the_host_writes() {
    let driver = Emulated::new();
    let stream = driver.stream(1).expect("a stream");
    let flag: Box<AtomicU64> = Box::default();
    let at = std::ptr::from_ref(&*flag);
    assert_eq!(driver.cuStreamWaitValue64(stream, at as u64, 8, COMMON_BIT), 1);
    assert_eq!(driver.cuMemHostRegister_v2(at.cast_mut().cast::<c_void>(), 8, 0), 0);
    assert_eq!(driver.cuStreamWaitValue64(stream, at as u64, 8, COMMON_BIT), 0);
    assert_eq!(driver.cuStreamQuery(stream), 600);
    flag.store(12, Ordering::Release);
    assert_eq!(driver.cuStreamSynchronize(stream), 0);
    assert_eq!((driver.cuStreamWriteValue32(stream, at as u64, 3, 0), driver.cuStreamSynchronize(stream)), (0, 0));
    assert_eq!(flag.load(Ordering::Acquire), 3);
    assert_eq!(driver.cuMemHostUnregister(at.cast_mut().cast::<c_void>()), 0);
}

#[test]
fn a_list_of_operations_is_queued_in_order_or_not_at_all() {
    let driver = Emulated::new();
    let stream = driver.stream(1).expect("a stream");
    let flag = cleared(&driver);
    let mut all = [
        [2, flag, 7, 0, 0, 0],
        [1, flag, 7, EQUAL.into(), 0, 0],
        [6, 0, 0, 0, 0, 0],
        [5, flag + 8, 9, 0, 0, 0],
        [4, flag + 8, 9, FREE_BIT.into(), 0, 0],
    ];
    assert_eq!(driver.cuStreamBatchMemOp(stream, 5, all.as_mut_ptr(), 0), 1);
    assert_eq!((driver.cuStreamQuery(stream), driver.read(flag, 1)), (0, Ok(vec![0])));
    assert_eq!(driver.cuStreamBatchMemOp_v2(stream, 5, all.as_mut_ptr(), 0), 0);
    assert_eq!((driver.cuStreamSynchronize(stream), driver.read(flag, 9)), (0, Ok(vec![7, 0, 0, 0, 0, 0, 0, 0, 9])));
    assert_eq!(driver.cuStreamBatchMemOp_v2(stream, 0, std::ptr::null_mut(), 0), 0);
    assert_eq!(driver.cuStreamBatchMemOp_v2(stream, 1, std::ptr::null_mut(), 0), 1);
    assert_eq!(driver.cuStreamBatchMemOp_v2(stream, 1, all.as_mut_ptr(), 1), 1);
    assert_eq!(driver.cuStreamBatchMemOp_v2(stream, 1, [[3, 0, 0, 0, 0, 0]].as_mut_ptr(), 0), 801);
}

#[test]
fn odd_addresses_and_unknown_comparisons_are_refused() {
    let driver = Emulated::new();
    let stream = driver.stream(1).expect("a stream");
    let flag = cleared(&driver);
    let waits = |address, flags| driver.cuStreamWaitValue32(stream, address, 0, flags);
    assert_eq!([waits(flag + 2, 0), waits(flag, 4), waits(flag, 1 << 30), waits(8, 0)], [1, 1, 801, 1]);
    assert_eq!(driver.cuStreamWriteValue64(stream, flag + 4, 0, 0), 1);
    assert_eq!((driver.cuStreamWriteValue32(stream, flag, 0, 2), driver.cuStreamQuery(stream)), (1, 0));
}

#[test]
fn a_captured_wait_waits_at_each_launch_and_holds_no_thread() {
    let driver = Emulated::new();
    let (stream, other) = (driver.stream(1).expect("a stream"), driver.stream(1).expect("a stream"));
    let flag = cleared(&driver);
    assert_eq!(driver.cuStreamBeginCapture_v2(stream, 0), 0);
    assert_eq!(driver.cuStreamWaitValue32(stream, flag, 1, AT_LEAST), 0);
    assert_eq!(driver.cuMemsetD8Async(flag + 8, 1, 1, stream), 0);
    let (mut graph, mut executable) = (0, 0);
    assert_eq!(driver.cuStreamEndCapture(stream, &mut graph), 0);
    assert_eq!(driver.cuGraphInstantiateWithFlags(&mut executable, graph, 0), 0);
    assert_eq!((driver.cuGraphLaunch(executable, stream), driver.cuStreamQuery(stream)), (0, 600));
    assert_eq!((driver.cuStreamWriteValue32(other, flag, 1, 0), driver.cuStreamSynchronize(stream)), (0, 0));
    assert_eq!(driver.read(flag + 8, 1), Ok(vec![1]));
}

#[test]
fn in_step_mode_a_wait_lets_the_write_behind_it_run() {
    let driver = Emulated::new();
    driver.control.set_step(true).expect("nothing queued");
    let (first, second) = (driver.stream(1).expect("a stream"), driver.stream(1).expect("a stream"));
    let flag = cleared(&driver);
    assert_eq!(driver.cuStreamWaitValue32(first, flag, 1, EQUAL), 0);
    assert_eq!((driver.control.step(8), driver.control.pending(first)), (0, 1));
    assert_eq!(driver.cuStreamWriteValue32(second, flag, 1, 0), 0);
    assert_eq!((driver.cuStreamSynchronize(first), driver.control.pending(second)), (0, 0));
}
