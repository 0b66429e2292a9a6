//! All figures of a device besides PyTorch's statistics, as rows of one table. Rust, C, C++,
//! Python, the metrics and the documentation read this table, so a new statistic is just a new row.
//!
//! The rows read a [`Reading`], which is taken in one go. The part of the allocator that does
//! something also counts it.

use crate::allocator::{Allocator, On, PageStats, Pages, Planning, Tuning};
use crate::arena::Arena;
use crate::arena::tuning::{TuneReport, TuneStage};
use crate::device::DeviceMemory;
use crate::stats::{PlannedReport, ReclaimStats};
use crate::sync::Lock;
use crate::tables::Storage;
use core::fmt;

/// How a statistic changes over time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum StatisticKind {
    /// A current value, which rises and falls.
    Gauge,
    /// A sum since the allocator was created, which only rises.
    Counter,
    /// The highest value since the allocator was created.
    Peak,
}

impl StatisticKind {
    /// Returns the name of the kind in lower case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gauge => "gauge",
            Self::Counter => "counter",
            Self::Peak => "peak",
        }
    }
}

/// A statistic of a device besides those of `torch.cuda.memory_stats()`, which are in
/// [`Stats`](crate::Stats).
///
/// ```
/// use cachalot_core::Statistic;
///
/// let moved = Statistic::named("pages.moved_bytes").unwrap();
/// assert_eq!((moved.unit, moved.kind.name()), ("bytes", "counter"));
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Statistic {
    /// The name: a group, a dot, and a name within the group, such as `pages.moved_bytes`. The part
    /// after the last dot is never `current`, `peak`, `allocated` or `freed`, because these end the
    /// names of PyTorch's statistics.
    pub name: &'static str,
    /// The unit in the plural, such as `bytes`, `microseconds` or `calls`.
    pub unit: &'static str,
    /// How the value changes.
    pub kind: StatisticKind,
    /// The meaning, in a sentence.
    pub text: &'static str,
    /// The name of the metric, if [`metric`](Self::metric) cannot derive it.
    exported_as: Option<&'static str>,
    of: fn(&Reading) -> u64,
}

/// The statistics of a device at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    pages: PageStats,
    reclaim: ReclaimStats,
    /// Whether `reclaim:auto` is set.
    reclaims: bool,
    tuned: TuneReport,
    planned: PlannedReport,
    /// Whether the policy is `planned`.
    plans: bool,
    leaked_bytes: u64,
}

/// Every statistic, group by group.
const STATISTICS: &[Statistic] = &[
    gauge("pages.mapped_bytes", "Pages mapped where blocks can use them.", |of| of.pages.mapped),
    gauge(
        "pages.spare_bytes",
        "Pages mapped nowhere, which serve the next mapping, and the parts of pages beside guarded blocks.",
        |of| of.pages.spare,
    ),
    gauge("pages.spilled_bytes", "Mapped pages that are memory of the host, as `spill` allows.", |of| of.pages.spilled),
    gauge(
        "pages.spare_of_host_bytes",
        "Pages of the host that are mapped nowhere, and serve the next request that the device has no memory for.",
        |of| of.pages.spare_of_host,
    ),
    gauge("pages.stale_bytes", "Addresses left by moved pages, and mapped until the work on them is complete.", |of| {
        of.pages.stale
    }),
    gauge("pages.pinned_bytes", "Mapped pages that neither move nor return to the device.", |of| of.pages.pinned),
    gauge(
        "pages.reserved_address_bytes",
        "Addresses reserved for segments on pages, elastic ranges and guarded blocks, with memory or without.",
        |of| of.pages.reserved_addresses,
    ),
    gauge("pages.parked_bytes", "Parked memory: addresses without memory of the device.", |of| of.pages.parked),
    counter("pages.moved_bytes", "Pages moved by the stitched policy.", |of| of.pages.moved),
    counter("pages.consolidated_bytes", "Pages mapped in place of shorter pages.", |of| of.pages.consolidated),
    counter("pages.reserve.calls", "Calls of the driver that reserved addresses.", |of| of.pages.calls.reserve.calls),
    counter("pages.reserve.us", "Time of the calls that reserved addresses.", |of| of.pages.calls.reserve.us),
    counter("pages.unreserve.calls", "Calls of the driver that released addresses.", |of| {
        of.pages.calls.unreserve.calls
    }),
    counter("pages.unreserve.us", "Time of the calls that released addresses.", |of| of.pages.calls.unreserve.us),
    counter("pages.create.calls", "Calls of the driver that allocated physical memory.", |of| {
        of.pages.calls.create.calls
    }),
    counter("pages.create.us", "Time of the calls that allocated physical memory.", |of| of.pages.calls.create.us),
    counter("pages.destroy.calls", "Calls of the driver that released physical memory.", |of| {
        of.pages.calls.destroy.calls
    }),
    counter("pages.destroy.us", "Time of the calls that released physical memory.", |of| of.pages.calls.destroy.us),
    counter("pages.map.calls", "Calls of the driver that mapped physical memory.", |of| of.pages.calls.map.calls),
    counter("pages.map.us", "Time of the calls that mapped physical memory.", |of| of.pages.calls.map.us),
    counter("pages.set_access.calls", "Calls of the driver that made mapped ranges accessible.", |of| {
        of.pages.calls.set_access.calls
    }),
    counter("pages.set_access.us", "Time of the calls that made mapped ranges accessible.", |of| {
        of.pages.calls.set_access.us
    }),
    counter("pages.unmap.calls", "Calls of the driver that removed mappings.", |of| of.pages.calls.unmap.calls),
    counter("pages.unmap.us", "Time of the calls that removed mappings.", |of| of.pages.calls.unmap.us),
    counter("pages.export_fd.calls", "Calls of the driver that exported physical memory to another process.", |of| {
        of.pages.calls.export.calls
    }),
    counter("pages.export_fd.us", "Time of the calls that exported physical memory to another process.", |of| {
        of.pages.calls.export.us
    }),
    counter(
        "pages.stalls",
        "Requests and commits under the stitched policy that mapped for longer than `max_stall_us`.",
        |of| of.pages.stalls,
    ),
    peak("pages.longest_stall_us", "Longest time of mapping for a request or commit, under every policy.", |of| {
        of.pages.longest_stall_us
    }),
    counter("reclaim.looks", "Looks at the memory for something to give back.", |of| of.reclaim.looks),
    counter("reclaim.given_back_bytes", "Idle memory given back to the device.", |of| of.reclaim.given_back)
        .exported_as("cachalot_reclaimed_bytes"),
    counter("reclaim.given_back_units", "Segments and pages given back to the device.", |of| {
        of.reclaim.given_back_units
    }),
    counter("reclaim.obtained_again_bytes", "Memory obtained in place of memory given back.", |of| {
        of.reclaim.obtained_again
    })
    .exported_as("cachalot_reclaimed_obtained_again_bytes"),
    counter("reclaim.obtained_again_units", "Segments and pages obtained in place of those given back.", |of| {
        of.reclaim.obtained_again_units
    }),
    counter("reclaim.too_early_units", "Segments and pages that were released too early.", |of| {
        of.reclaim.too_early_units
    })
    .exported_as("cachalot_reclaimed_too_early_units"),
    counter("reclaim.driver_us", "Time of the calls that gave memory back.", |of| of.reclaim.driver_us),
    counter(
        "reclaim.observed_units",
        "Segments and pages whose idle time has ended, from which uses are predicted.",
        |of| of.reclaim.observed_units,
    ),
    gauge("reclaim.idle_bytes", "Idle memory at the latest look.", |of| of.reclaim.idle)
        .exported_as("cachalot_idle_bytes"),
    gauge("reclaim.needed_soon_bytes", "Idle memory that is expected to be needed soon.", |of| of.reclaim.needed_soon)
        .exported_as("cachalot_idle_needed_soon_bytes"),
    gauge("reclaim.busy_bytes", "Idle memory that waits for the device's work.", |of| of.reclaim.busy)
        .exported_as("cachalot_idle_busy_bytes"),
    gauge("reclaim.unpaid_bytes", "Idle memory that waits for budget.", |of| of.reclaim.unpaid)
        .exported_as("cachalot_idle_unpaid_bytes"),
    gauge("reclaim.budget_us", "Driver time left of the budget.", |of| of.reclaim.budget_us),
    gauge("reclaim.caution", "Doublings of the idle time before memory goes back.", |of| of.reclaim.caution.into())
        .in_units("doublings"),
    counter("tune.windows", "Windows of requests read for searches and trials.", |of| of.tuned.windows),
    counter("tune.searches", "Searches for settings that ended.", |of| of.tuned.searches),
    counter("tune.candidates", "Configurations run on a window.", |of| of.tuned.candidates),
    counter("tune.without_gain", "Searches that found nothing better.", |of| of.tuned.without_gain)
        .in_units("searches"),
    counter("tune.switches", "Settings that became active.", |of| of.tuned.switches),
    counter("tune.held", "Trials that held what was predicted.", |of| of.tuned.held).in_units("trials"),
    counter("tune.taken_back", "Settings that were taken back.", |of| of.tuned.taken_back)
        .in_units("reversals")
        .exported_as("cachalot_tune_reversals"),
    counter("tune.search_us", "Time of all searches.", |of| of.tuned.search_us),
    gauge("tune.before_bytes", "Peak of reserved memory before the latest switch.", |of| of.tuned.before_bytes),
    gauge("tune.predicted_bytes", "Peak of reserved memory predicted for the latest switch.", |of| {
        of.tuned.predicted_bytes
    }),
    gauge("tune.after_bytes", "Peak of reserved memory in the latest trial.", |of| of.tuned.after_bytes),
    counter("tune.given_back_bytes", "Idle memory given back after switches.", |of| of.tuned.given_back_bytes),
    gauge("tune.retired_bytes", "Segments that wait for the device to go back.", |of| of.tuned.retired_bytes),
    counter("planned.announced", "Iterations announced by the program.", |of| of.planned.announced)
        .in_units("iterations"),
    counter("planned.plans", "Plans that became active.", |of| of.planned.plans),
    counter("planned.given_up", "Plans given up after too many deviations.", |of| of.planned.given_up)
        .in_units("plans"),
    counter("planned.no_memory", "Plans that could not become active because memory ran out.", |of| {
        of.planned.no_memory
    })
    .in_units("plans"),
    gauge("planned.peak_bytes", "Memory needed by the latest plans, summed over streams.", |of| of.planned.peak_bytes),
    gauge("planned.lower_bound_bytes", "Least memory of any plan for the same requests, summed over streams.", |of| {
        of.planned.lower_bound_bytes
    }),
    gauge("planned.segment_bytes", "Memory reserved for the active plans.", |of| of.planned.segment_bytes),
    counter("planned.served", "Requests served from plans.", |of| of.planned.served).in_units("requests"),
    counter("planned.lasting", "Requests observed to outlive their iteration, and served by the fallback.", |of| {
        of.planned.lasting
    })
    .in_units("requests"),
    counter("planned.extra", "Requests without a place nearby in the plan, and served by the fallback.", |of| {
        of.planned.extra
    })
    .in_units("requests"),
    counter("planned.missing", "Requests of the plan that the program did not make.", |of| of.planned.missing)
        .in_units("requests"),
    counter("planned.reordered", "Requests later than planned, and served from the plan.", |of| of.planned.reordered)
        .in_units("requests"),
    counter("planned.occupied", "Requests whose planned bytes were not free yet, and served by the fallback.", |of| {
        of.planned.occupied
    })
    .in_units("requests"),
    gauge("device.leaked_bytes", "Memory whose release failed.", |of| of.leaked_bytes)
        .exported_as("cachalot_leaked_bytes"),
];

/// Declares a current value. The unit is the last word of the name.
const fn gauge(name: &'static str, text: &'static str, of: fn(&Reading) -> u64) -> Statistic {
    Statistic { name, unit: last_word(name), kind: StatisticKind::Gauge, text, exported_as: None, of }
}

/// Declares a sum.
const fn counter(name: &'static str, text: &'static str, of: fn(&Reading) -> u64) -> Statistic {
    Statistic { kind: StatisticKind::Counter, ..gauge(name, text, of) }
}

/// Declares a highest value.
const fn peak(name: &'static str, text: &'static str, of: fn(&Reading) -> u64) -> Statistic {
    Statistic { kind: StatisticKind::Peak, ..gauge(name, text, of) }
}

/// Returns the word after the last dot or underscore of a name, and `microseconds` for `us`.
const fn last_word(name: &'static str) -> &'static str {
    let mut at = name.len();
    while !matches!(name.as_bytes()[at - 1], b'.' | b'_') {
        at -= 1;
    }
    match name.split_at(at).1.as_bytes() {
        b"us" => "microseconds",
        _ => name.split_at(at).1,
    }
}

impl Statistic {
    /// Every statistic, group by group.
    pub const ALL: &'static [Self] = STATISTICS;

    /// Sets the unit, for a name that does not end in one.
    const fn in_units(self, unit: &'static str) -> Self {
        Self { unit, ..self }
    }

    const fn exported_as(self, metric: &'static str) -> Self {
        Self { exported_as: Some(metric), ..self }
    }

    /// Returns the statistic with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        Self::ALL.iter().find(|statistic| statistic.name == name)
    }

    /// Returns the group: the part of the name before the first dot.
    #[must_use]
    pub fn group(&self) -> &'static str {
        self.name.split('.').next().unwrap_or_default()
    }

    /// Returns the name of the metric. It ends with the unit, as `OpenMetrics` requires.
    #[must_use]
    pub fn metric(&self) -> impl fmt::Display + use<> {
        Metric(*self)
    }
}

/// Writes the name of a statistic's metric.
struct Metric(Statistic);

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Statistic { name, unit, exported_as, .. } = self.0;
        if let Some(name) = exported_as {
            return f.write_str(name);
        }
        f.write_str("cachalot")?;
        let stem = name.strip_suffix("_us").or_else(|| name.strip_suffix(".us")).unwrap_or(name);
        stem.split('.').try_for_each(|part| write!(f, "_{part}"))?;
        if stem.ends_with(unit) { Ok(()) } else { write!(f, "_{unit}") }
    }
}

impl Reading {
    /// Reads the statistics of the device of `arena`.
    pub(super) fn of<D: DeviceMemory, R: Lock, S: Storage>(
        allocator: &Allocator<D, R, S>,
        arena: &Arena<On<D, R, S>>,
    ) -> Self {
        let pages = Pages { allocator, arena };
        let config = arena.settings.copy();
        Self {
            pages: pages.stats(),
            reclaim: pages.reclaim_stats(),
            reclaims: config.reclaim().is_some(),
            tuned: Tuning { allocator, arena }.report(),
            planned: Planning { allocator, arena }.report(),
            plans: config.planned().is_some(),
            leaked_bytes: arena.leaked_bytes(),
        }
    }

    /// Returns the value of a statistic.
    #[must_use]
    pub fn value(&self, statistic: &Statistic) -> u64 {
        (statistic.of)(self)
    }

    /// Returns whether the settings use what this statistic counts. If they do not, its value does
    /// not change, and is 0 at first.
    #[must_use]
    pub fn is_in_use(&self, statistic: &Statistic) -> bool {
        match statistic.group() {
            "reclaim" => self.reclaims,
            "tune" => self.tuned.stage != TuneStage::Off,
            "planned" => self.plans,
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::{CallCount, MemoryCalls};

    /// Returns statistics of pages with the numbers of `next`.
    fn numbered_pages(next: &mut impl FnMut() -> u64) -> PageStats {
        let mut calls = || CallCount { calls: next(), us: next() };
        let calls = MemoryCalls {
            reserve: calls(),
            unreserve: calls(),
            create: calls(),
            destroy: calls(),
            map: calls(),
            set_access: calls(),
            unmap: calls(),
            export: calls(),
        };
        PageStats {
            mapped: next(),
            spare: next(),
            spilled: next(),
            spare_of_host: next(),
            stale: next(),
            parked: next(),
            pinned: next(),
            moved: next(),
            consolidated: next(),
            reserved_addresses: next(),
            calls,
            stalls: next(),
            longest_stall_us: next(),
        }
    }

    /// Returns a reading in which all numbers differ, counted from 1 up, and how many there are.
    fn numbered() -> (Reading, u64) {
        let mut last = 0;
        let mut next = || {
            last += 1;
            last
        };
        let reading = Reading {
            pages: numbered_pages(&mut next),
            reclaim: ReclaimStats {
                looks: next(),
                given_back: next(),
                given_back_units: next(),
                obtained_again: next(),
                obtained_again_units: next(),
                too_early_units: next(),
                driver_us: next(),
                observed_units: next(),
                idle: next(),
                needed_soon: next(),
                busy: next(),
                unpaid: next(),
                budget_us: next(),
                caution: next() as u32,
            },
            reclaims: false,
            tuned: TuneReport {
                stage: TuneStage::Off,
                is_tuned: false,
                windows: next(),
                searches: next(),
                candidates: next(),
                without_gain: next(),
                switches: next(),
                held: next(),
                taken_back: next(),
                search_us: next(),
                before_bytes: next(),
                predicted_bytes: next(),
                after_bytes: next(),
                given_back_bytes: next(),
                retired_bytes: next(),
            },
            planned: PlannedReport {
                stage: crate::stats::Stage::Waiting,
                announced: next(),
                plans: next(),
                given_up: next(),
                no_memory: next(),
                peak_bytes: next(),
                lower_bound_bytes: next(),
                segment_bytes: next(),
                served: next(),
                lasting: next(),
                extra: next(),
                missing: next(),
                reordered: next(),
                occupied: next(),
            },
            plans: false,
            leaked_bytes: next(),
        };
        (reading, last)
    }

    /// If a structure gets a new field, this does not compile, and a number without a row is
    /// missing from the values.
    #[test]
    fn every_number_has_one_row() {
        let (reading, last) = numbered();
        assert_eq!(Statistic::ALL.len() as u64, last);
        for number in 1..=last {
            let rows = Statistic::ALL.iter().filter(|row| reading.value(row) == number);
            assert_eq!(rows.count(), 1, "the number {number} of {reading:?}");
        }
    }

    #[test]
    fn names_units_and_texts_are_well_formed() {
        for (at, row) in Statistic::ALL.iter().enumerate() {
            let Statistic { name, unit, text, .. } = *row;
            let (group, rest) = name.split_once('.').expect(name);
            let last = rest.rsplit('.').next().unwrap_or_default();
            let is_word = |part: &str| !part.is_empty() && part.bytes().all(|c| c.is_ascii_lowercase() || c == b'_');
            assert!(row.group() == group && name.split('.').all(is_word), "{name}");
            assert!(!["current", "peak", "allocated", "freed"].contains(&last), "{name}: PyTorch's");
            assert_eq!(last.ends_with("bytes"), unit == "bytes", "{name}");
            assert_eq!(last.ends_with("us"), unit == "microseconds", "{name}");
            assert!(is_word(unit) && unit.ends_with('s'), "{name}: {unit}");
            let is_sentence = text.starts_with(|c: char| c.is_ascii_uppercase()) && text.ends_with('.');
            assert!(is_sentence && !text.contains('|'), "{name}: {text}");
            assert!(Statistic::ALL[..at].iter().all(|other| other.name != name), "{name} twice");
            assert_eq!(Statistic::named(name).map(|found| found.text), Some(text));
        }
        assert!(Statistic::named("pages").is_none() && Statistic::named("").is_none());
    }

    #[cfg(all(feature = "alloc", not(loom)))]
    #[test]
    fn a_group_is_in_use_if_its_setting_is() {
        let in_use = |config: &str| {
            let config = crate::Config::parse(config).unwrap();
            let device = crate::simulated::SimulatedDevice::new(1 << 30);
            let allocator = crate::Allocator::<_, spin::Mutex<()>, crate::Growable>::new([device], &config).unwrap();
            let reading = allocator.stats(crate::DeviceIndex(0)).unwrap().reading();
            let of = |group: &str| {
                Statistic::ALL.iter().filter(|row| row.group() == group).all(|row| reading.is_in_use(row))
            };
            ["pages", "reclaim", "tune", "planned"].map(of)
        };
        assert_eq!(in_use(""), [true, false, false, false]);
        assert_eq!(in_use("reclaim:auto"), [true, true, false, false]);
        assert_eq!(in_use("tune:auto"), [true, false, true, false]);
        assert_eq!(in_use("policy:planned"), [true, false, false, true]);
    }
}
