//! The statuses permitted by the header for each function, with conditions. An unpermitted status
//! is a finding.

#[allow(clippy::enum_glob_use, reason = "the table below names every function")]
use crate::abi::Function::{self, *};
use crate::abi::{Reply, last_driver_code, last_error, status_name};
use crate::finding;
use cachalot::c::abi::cachalot_status;
#[allow(clippy::wildcard_imports, reason = "the header's numbers, of which the table below names most")]
use cachalot::c::status::*;
use std::ops::{BitOr, BitOrAssign};

/// Conditions at the moment of a call. A permit applies under any of its conditions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Situation(u32);

impl Situation {
    /// Nothing special.
    pub(crate) const NONE: Self = Self(0);
    /// Driver calls fail.
    pub(crate) const FAULTS: Self = Self(1);
    /// Requests can exceed the memory or the limit.
    pub(crate) const SHORT: Self = Self(2);
    /// A stream may be capturing a graph.
    pub(crate) const CAPTURE: Self = Self(4);
    /// Other threads call the allocator.
    pub(crate) const OTHERS: Self = Self(8);
    /// The memory, or the memory behind a route, may be parked.
    pub(crate) const PARKED: Self = Self(16);
    /// The pool, the tag or the range may be gone.
    pub(crate) const GONE: Self = Self(32);
    /// The memory is an ordinary segment, or the device has no virtual memory.
    pub(crate) const ORDINARY: Self = Self(64);
    /// The call is a mistake on purpose.
    pub(crate) const MISTAKE: Self = Self(128);
    /// A callback stops the operation.
    pub(crate) const STOPPED: Self = Self(256);
    /// Memory is in use, pinned or lost.
    pub(crate) const HELD: Self = Self(512);

    /// Returns whether a situation is given.
    pub(crate) fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

impl BitOr for Situation {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for Situation {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

const FAULTS: Situation = Situation::FAULTS;
const SHORT: Situation = Situation(Situation::SHORT.0 | Situation::FAULTS.0);
const CAPTURE: Situation = Situation::CAPTURE;
const OTHERS: Situation = Situation::OTHERS;
const PARKED: Situation = Situation::PARKED;
const GONE: Situation = Situation::GONE;
const ORDINARY: Situation = Situation::ORDINARY;
const MISTAKE: Situation = Situation::MISTAKE;
const STOPPED: Situation = Situation::STOPPED;
const HELD: Situation = Situation::HELD;

/// A status, and the conditions of the permit.
type Permit = (cachalot_status, Situation);

/// The permit of functions for park and wake: a concurrent park or wake, no virtual memory, or too
/// little host memory.
const NOT_PARKABLE: Permit = (CACHALOT_ERROR_NOT_PARKABLE, Situation(OTHERS.0 | ORDINARY.0 | FAULTS.0));
const NOT_MAPPED: Permit = (CACHALOT_ERROR_NOT_PARKABLE, ORDINARY);
const NO_PAGES: Permit = (CACHALOT_ERROR_UNSUPPORTED, ORDINARY);
const NO_POOL: Permit = (CACHALOT_ERROR_UNKNOWN_POOL, Situation(GONE.0 | MISTAKE.0));
const NO_TAG: Permit = (CACHALOT_ERROR_UNKNOWN_TAG, Situation(GONE.0 | MISTAKE.0));
const NO_STREAM: Permit = (CACHALOT_ERROR_INVALID_STREAM, MISTAKE);
const TOO_LARGE: Permit = (CACHALOT_ERROR_TOO_LARGE, MISTAKE);
const ASLEEP: Permit = (CACHALOT_ERROR_PARKED, PARKED);
const NO_BLOCK: Permit = (CACHALOT_ERROR_INVALID_POINTER, MISTAKE);
const NO_SENSE: Permit = (CACHALOT_ERROR_INVALID_ARGUMENT, MISTAKE);
const STOP: Permit = (CACHALOT_ERROR_STOPPED, STOPPED);
const NO_MEMORY: Permit = (CACHALOT_ERROR_OUT_OF_MEMORY, SHORT);
const NO_CAPTURE: Permit = (CACHALOT_ERROR_CAPTURING, CAPTURE);

/// The failures of a wake.
const WAKE: &[Permit] = &[NO_TAG, NO_STREAM, NO_SENSE, NOT_PARKABLE, NO_MEMORY, NO_PAGES];
/// The failures of a loan.
const LOAN: &[Permit] = &[NO_POOL, NO_TAG, NO_SENSE, NO_CAPTURE, NOT_PARKABLE, NO_PAGES, ASLEEP];
/// The failures of a reclaim.
const RECLAIM: &[Permit] = &[NO_POOL, NO_TAG, NO_SENSE, NO_STREAM, NOT_PARKABLE, NO_MEMORY, NO_PAGES, ASLEEP];

/// Returns the permits of a function besides success, and whether the function calls the driver.
fn permits(function: Function) -> (bool, &'static [Permit]) {
    match function {
        cachalot_destroy => (true, &[(CACHALOT_ERROR_STILL_HELD, HELD)]),
        cachalot_configure => (true, &[(CACHALOT_ERROR_INVALID_CONFIG, MISTAKE)]),
        cachalot_get_config => (false, &[(CACHALOT_ERROR_BUFFER_TOO_SMALL, MISTAKE)]),
        cachalot_get_device_info | cachalot_get_remaining_memory | cachalot_get_statistics => {
            (true, &[(CACHALOT_ERROR_STRUCT_SIZE, MISTAKE), NO_PAGES])
        }
        cachalot_enable_peer_access => (true, &[(CACHALOT_ERROR_UNSUPPORTED, ORDINARY)]),
        cachalot_malloc => (true, &[NO_MEMORY, (CACHALOT_ERROR_REJECTED, SHORT), TOO_LARGE, NO_STREAM, ASLEEP]),
        cachalot_free | cachalot_free_at => (true, &[NO_BLOCK]),
        cachalot_free_sized => (true, &[(CACHALOT_ERROR_WRONG_SIZE, MISTAKE), NO_BLOCK]),
        cachalot_record_stream | cachalot_record_use => (true, &[NO_BLOCK, NO_STREAM]),
        cachalot_stream_destroyed | cachalot_stream_trim => (true, &[NO_STREAM]),
        cachalot_stream_unreported => (false, &[NO_STREAM]),
        cachalot_get_block => (false, &[NO_BLOCK, (CACHALOT_ERROR_STRUCT_SIZE, MISTAKE)]),
        cachalot_explain_address => (false, &[NO_BLOCK, (CACHALOT_ERROR_BUFFER_TOO_SMALL, MISTAKE)]),
        cachalot_get_forecast | cachalot_get_fit => (true, &[TOO_LARGE, NO_STREAM, ASLEEP]),
        cachalot_get_extents => (false, &[NO_BLOCK, (CACHALOT_ERROR_BUFFER_TOO_SMALL, MISTAKE), ASLEEP, NO_PAGES]),
        cachalot_pin => (false, &[NO_BLOCK, ASLEEP, NO_PAGES]),
        cachalot_unpin => (false, &[(CACHALOT_ERROR_NOT_PINNED, MISTAKE), NO_PAGES]),
        // Also where no memory of the host serves requests.
        cachalot_advise => (true, &[NO_BLOCK, NO_SENSE, NO_CAPTURE, NOT_PARKABLE, NO_MEMORY, NO_PAGES]),
        cachalot_pool_spill => (true, &[NO_POOL, NO_PAGES]),
        cachalot_export_fd => (true, &[(CACHALOT_ERROR_NOT_PINNED, MISTAKE), NO_PAGES]),
        cachalot_set_memory_fraction => (true, &[(CACHALOT_ERROR_INVALID_FRACTION, MISTAKE)]),
        cachalot_pool_create | cachalot_pool_retain | cachalot_plan_buffers | cachalot_tag_set_limits => {
            (false, &[NO_SENSE])
        }
        cachalot_pool_release | cachalot_get_pool_users => (false, &[NO_POOL]),
        cachalot_pool_empty | cachalot_pool_trim => (true, &[NO_POOL, (CACHALOT_ERROR_STILL_HELD, CAPTURE)]),
        // Calls the driver for the identity of the stream.
        cachalot_pool_begin | cachalot_capture_begin => (true, &[NO_POOL, NO_SENSE, NO_STREAM]),
        cachalot_pool_end | cachalot_capture_end => (true, &[NO_POOL, (CACHALOT_ERROR_NOT_ROUTED, MISTAKE)]),
        cachalot_pool_set_tag => (false, &[NO_POOL, ASLEEP, NOT_MAPPED, NO_PAGES]),
        cachalot_park => (true, &[NO_TAG, NO_STREAM, NO_SENSE, NO_CAPTURE, NOT_PARKABLE, NO_PAGES]),
        cachalot_wake | cachalot_wake_start | cachalot_wake_wait => (true, WAKE),
        cachalot_pool_lend | cachalot_tag_lend => (true, LOAN),
        cachalot_pool_reclaim | cachalot_tag_reclaim => (true, RECLAIM),
        cachalot_tag_set_fallback => (false, &[NO_TAG, NO_SENSE, NO_PAGES]),
        cachalot_tag_trim => (true, &[NO_TAG, NO_SENSE, (CACHALOT_ERROR_STILL_HELD, CAPTURE)]),
        cachalot_get_tag_report => (false, &[NO_TAG, NO_SENSE]),
        // As for the beginning of a route.
        cachalot_get_park_report => (true, &[NO_TAG, NO_STREAM, NO_SENSE, NO_PAGES]),
        cachalot_retain_host_memory => (true, &[NO_PAGES]),
        cachalot_range_reserve => (true, &[NO_SENSE, TOO_LARGE, NO_PAGES]),
        cachalot_range_commit => {
            (true, &[NO_MEMORY, (CACHALOT_ERROR_UNKNOWN_RANGE, MISTAKE), NO_SENSE, NO_STREAM, NO_CAPTURE, NO_PAGES])
        }
        cachalot_range_decommit => (true, &[(CACHALOT_ERROR_UNKNOWN_RANGE, MISTAKE), NO_SENSE, NO_STREAM, NO_CAPTURE]),
        cachalot_range_release => (true, &[(CACHALOT_ERROR_UNKNOWN_RANGE, MISTAKE), NO_CAPTURE]),
        cachalot_find_statistic => (false, &[(CACHALOT_ERROR_UNKNOWN_KEY, MISTAKE)]),
        cachalot_visit_statistics | cachalot_visit_settings | cachalot_write_metrics | cachalot_visit_trace => {
            (false, &[STOP, NO_SENSE])
        }
        cachalot_snapshot => (false, &[STOP, NO_SENSE, (CACHALOT_ERROR_IO, MISTAKE)]),
        cachalot_hold_end => (false, &[NO_SENSE]),
        cachalot_empty_cache => (true, &[NO_CAPTURE]),
        cachalot_process_events
        | cachalot_trim
        | cachalot_end_plans
        | cachalot_set_safe_frontier
        | cachalot_maintain
        | cachalot_begin_iteration
        | cachalot_set_caching
        | cachalot_create => (true, &[]),
        _ => (false, &[]),
    }
}

/// Returns whether a status of a function is permitted.
pub(crate) fn is_permitted(reply: Reply, situation: Situation) -> bool {
    let (calls_driver, permits) = permits(reply.function);
    let failed = matches!(reply.status, CACHALOT_ERROR_DRIVER | CACHALOT_ERROR_OUT_OF_MEMORY);
    reply.status == CACHALOT_OK
        || (calls_driver && failed && situation.has(FAULTS))
        || permits.iter().any(|&(status, given)| status == reply.status && situation.has(given))
}

impl Reply {
    /// Returns whether the call succeeded. An unpermitted status is a finding.
    pub(crate) fn judge(self, situation: Situation) -> bool {
        self.status_in(situation) == CACHALOT_OK
    }

    /// Returns the status, which must be permitted.
    pub(crate) fn status_in(self, situation: Situation) -> cachalot_status {
        if !is_permitted(self, situation) {
            let Self { function, status } = self;
            let name = status_name(status);
            let said = if status == CACHALOT_OK { String::new() } else { last_error() };
            finding::report(
                "status",
                &format!("{function:?} answers {status} {name} (code {}): {said} [{situation:?}]", last_driver_code()),
            );
        }
        self.status
    }

    /// Reports a finding unless the call has the expected status.
    pub(crate) fn must_be(self, expected: cachalot_status) {
        if self.status != expected {
            let Self { function, status } = self;
            let (name, wanted) = (status_name(status), status_name(expected));
            finding::report("status", &format!("{function:?} answers {status} {name} instead of {wanted}"));
        }
    }
}
