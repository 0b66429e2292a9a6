use super::*;

/// The calls to the device that parking and waking make.
const CALLS: [Call; 14] = [
    Call::SynchronizeAll,
    Call::Synchronize,
    Call::IsCapturing,
    Call::Prepare,
    Call::Save,
    Call::Mark,
    Call::Finish,
    Call::Unmap,
    Call::Destroy,
    Call::Create,
    Call::Map,
    Call::SetAccess,
    Call::Restore,
    Call::Zero,
];

/// Makes the `nth` call of a kind from now on fail with `error`.
fn inject(allocator: &Simulated, call: Call, nth: u64, kind: ErrorKind) {
    let nth = device(allocator).calls(call) + nth;
    device(allocator).fail(Failure { call, nth, persistent: false, error: DeviceError::new(kind, 99) });
}

/// Parks and wakes with each call failing in turn. After a failure everything is awake or
/// everything is asleep, except for pages that the device did not unmap. After that, a park and a
/// wake succeed, and the contents are as before.
fn sweep(policy: &str, mode: ParkMode, kind: ErrorKind) -> u32 {
    let mut failures = 0;
    for call in CALLS {
        for nth in 1.. {
            let allocator = allocator(policy);
            let pool = tagged(&allocator);
            let blocks = fill(&allocator, pool);
            let before = contents(&allocator, &blocks);
            inject(&allocator, call, nth, kind);
            let parked = park(&allocator, mode);
            assert_eq!(device(&allocator).prepared(), None, "`{policy}`, {call:?} {nth}");
            if let Err(error) = &parked
                && matches!(call, Call::Prepare | Call::Save)
                && kind == ErrorKind::OutOfMemory
            {
                assert_eq!(*error, Error::NoHostMemory);
            }
            let awake = report(&allocator).state == ParkState::Awake;
            if awake {
                assert!(parked.is_err(), "`{policy}`, {call:?} {nth}");
                assert_kept(&allocator, &before);
                assert_eq!(device(&allocator).kept(), 0, "`{policy}`, {call:?} {nth}");
            }
            let woken = wake(&allocator);
            if woken.is_err() {
                let asleep = report(&allocator);
                assert_eq!(asleep.state, ParkState::Asleep, "`{policy}`, {call:?} {nth}");
                assert_eq!(device(&allocator).used() - allocator.stats(DEVICE).unwrap().leaked_bytes(), 0);
            }
            device(&allocator).clear_failures();
            let failed = parked.is_err() || woken.is_err();
            failures += u32::from(failed);
            wake(&allocator).unwrap();
            if mode == ParkMode::Keep {
                assert_kept(&allocator, &before);
            }
            park(&allocator, ParkMode::Keep).unwrap();
            wake(&allocator).unwrap();
            for (block, _) in blocks {
                allocator.free(block).unwrap();
            }
            allocator.pools(DEVICE).unwrap().release(pool).unwrap();
            allocator.trim(DEVICE, 0).unwrap();
            allocator.check_invariants().unwrap();
            assert_eq!(device(&allocator).kept(), 0, "`{policy}`, {call:?} {nth}");
            assert_eq!(
                device(&allocator).used(),
                allocator.stats(DEVICE).unwrap().leaked_bytes(),
                "`{policy}`, {call:?} {nth}"
            );
            if !failed {
                break;
            }
        }
    }
    failures
}

#[test]
fn a_failure_at_any_call_leaves_everything_awake_or_asleep() {
    for policy in POLICIES {
        for mode in [ParkMode::Keep, ParkMode::Drop, ParkMode::Zero] {
            for kind in [ErrorKind::Other, ErrorKind::OutOfMemory] {
                let failures = sweep(policy, mode, kind);
                assert!(failures > 20, "`{policy}`, {mode:?}: {failures}");
            }
        }
    }
}

#[test]
fn a_lost_context_ends_parking_and_waking_at_once() {
    for call in CALLS {
        let allocator = allocator("");
        let pool = tagged(&allocator);
        let _blocks = fill(&allocator, pool);
        inject(&allocator, call, 1, ErrorKind::ContextLost);
        let (parked, woken) = (park(&allocator, ParkMode::Keep), wake(&allocator));
        let used = !matches!(call, Call::Synchronize | Call::Zero);
        assert_eq!(parked.is_err() || woken.is_err(), used, "{call:?}");
        allocator.check_invariants().unwrap();
        assert_eq!(device(&allocator).calls_after_loss(), 0, "{call:?}");
    }
}

#[test]
fn a_second_park_parks_what_a_failed_one_left() {
    for policy in POLICIES {
        for mode in [ParkMode::Keep, ParkMode::Drop, ParkMode::Zero] {
            let allocator = allocator(policy);
            let pool = tagged(&allocator);
            let blocks = fill(&allocator, pool);
            let before = contents(&allocator, &blocks);
            inject(&allocator, Call::Unmap, 2, ErrorKind::Other);
            if mode == ParkMode::Keep {
                inject(&allocator, Call::Map, 1, ErrorKind::Other);
            }
            park(&allocator, mode).unwrap_err();
            let half = report(&allocator);
            assert_eq!(half.state, ParkState::Asleep, "`{policy}`, {mode:?}");
            assert!(half.mapped > 0 && half.parked > 0, "`{policy}`, {mode:?}: {half:?}");
            // A failure in the second park leaves the part parked by the first one.
            inject(&allocator, Call::Unmap, 1, ErrorKind::Other);
            park(&allocator, mode).unwrap_err();
            assert!(report(&allocator).parked >= half.parked && report(&allocator).state == ParkState::Asleep);
            park(&allocator, mode).unwrap();
            assert_eq!((report(&allocator).mapped, device(&allocator).used()), (0, 0), "`{policy}`, {mode:?}");
            let calls = device(&allocator).calls(Call::SynchronizeAll);
            park(&allocator, mode).unwrap();
            assert_eq!(device(&allocator).calls(Call::SynchronizeAll), calls, "nothing is left to park");
            wake(&allocator).unwrap();
            if mode == ParkMode::Keep {
                assert_kept(&allocator, &before);
            }
            assert_eq!((report(&allocator).state, device(&allocator).kept()), (ParkState::Awake, 0));
        }
    }
}

#[test]
fn a_later_wake_fills_what_a_failed_one_could_not_take_away() {
    // The program's reaction to the failed wake.
    type Then = fn(&Simulated, PoolId, ParkMode, &[(DevicePtr, Option<u64>)]);
    let ways: [Then; 3] = [
        |allocator, _, mode, before| {
            wake(allocator).unwrap();
            match mode {
                ParkMode::Keep => assert_kept(allocator, before),
                ParkMode::Drop => {}
                ParkMode::Zero => assert!(before.iter().all(|&(at, _)| device(allocator).read(at) == Some(0))),
            }
            assert_eq!((report(allocator).state, device(allocator).kept()), (ParkState::Awake, 0));
            park(allocator, mode).unwrap();
        },
        |allocator, _, mode, _| park(allocator, mode).unwrap(),
        |allocator, pool, _, before| {
            before.iter().for_each(|&(block, _)| allocator.free(block).unwrap());
            allocator.pools(DEVICE).unwrap().release(pool).unwrap();
            allocator.empty_cache(DEVICE).unwrap();
        },
    ];
    let failures = [
        (Call::Create, ParkMode::Keep),
        (Call::Create, ParkMode::Drop),
        (Call::SetAccess, ParkMode::Keep),
        (Call::SetAccess, ParkMode::Zero),
        (Call::Restore, ParkMode::Keep),
        (Call::Zero, ParkMode::Zero),
    ];
    for policy in POLICIES {
        for (call, mode) in failures {
            for then in ways {
                let allocator = allocator(policy);
                let pool = tagged(&allocator);
                let before = contents(&allocator, &fill(&allocator, pool));
                park(&allocator, mode).unwrap();
                let asleep = report(&allocator);
                // The second wake fails at the first page for which it must do something.
                for nth in [3, 1] {
                    inject(&allocator, call, nth, ErrorKind::Other);
                    let (nth, error) =
                        (device(&allocator).calls(Call::Unmap) + 1, DeviceError::new(ErrorKind::Other, 9));
                    device(&allocator).fail(Failure { call: Call::Unmap, nth, persistent: true, error });
                    wake(&allocator).unwrap_err();
                    device(&allocator).clear_failures();
                    let left = report(&allocator);
                    assert_eq!((left.state, left.parked), (ParkState::Asleep, asleep.parked), "`{policy}`, {call:?}");
                    assert!(left.mapped > 0 && left.mapped == device(&allocator).used(), "{left:?}");
                }
                then(&allocator, pool, mode, &before);
                check(&allocator);
                let left = (device(&allocator).used(), allocator.stats(DEVICE).map(|stats| stats.leaked_bytes()));
                assert_eq!(left, (0, Ok(0)), "`{policy}`, {call:?}, {mode:?}");
            }
        }
    }
}

#[test]
fn a_replacement_whose_copies_may_be_in_progress_stays_mapped() {
    for policy in POLICIES {
        for failing in [Call::Mark, Call::Finish] {
            for short in [false, true] {
                let allocator = allocator(policy);
                let pool = tagged(&allocator);
                let before = contents(&allocator, &fill(&allocator, pool));
                park(&allocator, ParkMode::Keep).unwrap();
                let asleep = report(&allocator);
                inject(&allocator, Call::Create, 3, ErrorKind::Other);
                // The device reports the end of the copies only when it is asked for the third
                // time, or never.
                let error = DeviceError::new(ErrorKind::Other, 7);
                for nth in 1..if short { 3 } else { 100 } {
                    let nth = device(&allocator).calls(failing) + nth;
                    device(&allocator).fail(Failure { call: failing, nth, persistent: false, error });
                }
                wake(&allocator).unwrap_err();
                let left = report(&allocator);
                assert_eq!((left.state, left.parked), (ParkState::Asleep, asleep.parked), "`{policy}`, {failing:?}");
                assert_eq!(left.mapped > 0, !short, "`{policy}`, {failing:?}");
                device(&allocator).clear_failures();
                wake(&allocator).unwrap();
                assert_kept(&allocator, &before);
                check(&allocator);
            }
        }
    }
}
