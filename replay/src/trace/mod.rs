//! Reads recorded programs: `.csv`, `.csv.gz`, memory snapshots of `PyTorch` and cachalot, traces
//! of `torch.profiler`, and logs of RMM.
//!
//! A record is the events of one device's allocator. If the first events are missing, the state at
//! the start is reconstructed from the state at the end, which a snapshot has. Files are
//! recognized by content. A contradictory record is refused with the line of the contradiction.

mod backward;
mod consistency;
mod csv_record;
pub(crate) mod error;
mod event;
mod expected;
pub(crate) mod kind;
pub(crate) mod open;
mod page;
mod pools;
mod profile;
mod rebuilt;
mod refused;
mod rmm;
pub mod snapshot;
mod start;
mod timeline;
mod vma;

pub use crate::memory::Action;
pub use error::{BadInput, Place};
pub use event::{Event, Note, PoolNumber, Pools, RecordFacts};
pub use expected::{BlockState, Expected, ExpectedBlock, Segment};
pub use start::Start;
pub(crate) use start::size as shown;

use consistency::Contradiction;
use kind::Kind;
use open::Opened;
use std::io::BufRead;
use std::path::{Path, PathBuf};

/// A recorded program of a device.
#[derive(Debug, Clone)]
pub struct Trace {
    /// Name of the record: the file name without extensions, followed by `#device` if the file has
    /// several records.
    pub name: String,
    /// The file of the record.
    pub file: PathBuf,
    /// The device in a snapshot; 0 in any other record.
    pub device: i64,
    /// The events in order. Never empty, and free of contradictions.
    pub events: Vec<Event>,
    /// The names of the pools of the events.
    pub pools: Pools,
    /// The memory before the first event, if the record starts in the middle of the program.
    pub start: Option<Start>,
    /// The recorded end of the run, if known.
    pub expected: Option<Expected>,
    /// Free bytes of the device at the first failed request, if the record has it.
    pub device_free: Option<u64>,
    /// Whether the recorded PyTorch knows the settings of version 2.11. `None` if the record does
    /// not say.
    pub has_late_keys: Option<bool>,
    /// Whether the history starts in the middle of the program, so that its peaks are those of its
    /// events alone: the first events were overwritten, or the recording started late.
    pub is_cut: bool,
    /// Whether the record is made of requests and frees alone, so that its segments are made up.
    pub is_rebuilt: bool,
    /// What was left out of the history or filled in, in sentences without a full stop.
    pub remarks: Vec<String>,
    /// Peak of the bytes reserved from the device, if the record states it. A record without
    /// segments does not show it.
    pub stated_peak_bytes: Option<u64>,
}

/// The number of a device, with its record, or why that cannot be used.
type OfDevice = (i64, Result<Trace, BadInput>);

impl Trace {
    /// Reads every record of a file: a single record, or a record for each device of a snapshot. A
    /// device with a record that cannot be used is left out, if another one has a record, and a
    /// remark says so.
    ///
    /// # Errors
    /// The first mistake in the file, or in the `NAME.expected.json.gz` next to the file.
    pub fn load(file: &Path) -> Result<Vec<Self>, BadInput> {
        Self::load_with_snapshot(file).map(|(traces, _)| traces)
    }

    /// Reads every record of a file like [`load`](Self::load), with the snapshot that they are
    /// from, which has the stacks.
    ///
    /// # Errors
    /// As for `load`.
    pub fn load_with_snapshot(file: &Path) -> Result<(Vec<Self>, Option<cachalot_snapshot::Snapshot>), BadInput> {
        let (mut found, snapshot) = Self::parse(file, open::decompressed(file)?)?;
        // A file next to the record has more data than the record: limit, statistics, and the
        // configuration of a `.csv`.
        if let Some(expected) = expected::beside(file, &base_name(file))? {
            for trace in found.iter_mut().filter_map(|(_, trace)| trace.as_mut().ok()) {
                trace.expected = Some(expected.clone());
            }
        }
        Ok((Self::completed(found)?, snapshot))
    }

    /// Reads every record from the bytes of a file, without a second file.
    ///
    /// # Errors
    /// The first mistake in the bytes.
    pub fn load_bytes(file: &Path, bytes: &[u8]) -> Result<Vec<Self>, BadInput> {
        Self::read(file, open::decompress(file, bytes.len() as u64, bytes)?)
    }

    /// Reads every record from the decompressed content of a file, without a second file.
    pub(crate) fn read(file: &Path, content: Box<dyn BufRead + '_>) -> Result<Vec<Self>, BadInput> {
        Self::completed(Self::parse(file, content)?.0)
    }

    /// Returns every record of a snapshot that was read from a file.
    ///
    /// # Errors
    /// If the snapshot has no events, or contradicts itself.
    pub fn of_snapshot(file: &Path, snapshot: &cachalot_snapshot::Snapshot) -> Result<Vec<Self>, BadInput> {
        Self::completed(snapshot::traces(file, &base_name(file), snapshot)?)
    }

    /// Returns the record of every device with events, by the number of the device, or why it
    /// cannot be used: other devices' records may well be. `rank` is the name of the snapshot in
    /// its file.
    pub fn each_of_snapshot(
        file: &Path,
        rank: &str,
        snapshot: &cachalot_snapshot::Snapshot,
    ) -> Vec<(i64, Result<Self, BadInput>)> {
        let name = snapshot::ranked(&base_name(file), rank);
        let complete = |trace: Result<Self, BadInput>| {
            let mut trace = trace?;
            trace.complete()?;
            Ok(trace)
        };
        snapshot::each(file, &name, snapshot).map(|(device, trace)| (device, complete(trace))).collect()
    }

    /// Returns the record of `device` from events that were read one by one, with the names of
    /// their pools. `segments` are those of the end.
    ///
    /// # Errors
    /// If there are no events, or the data contradicts itself.
    pub fn of_events<'s>(
        file: &Path,
        device: i64,
        (events, pools): (Vec<Event>, Pools),
        config: Option<String>,
        segments: impl Iterator<Item = &'s cachalot_snapshot::Segment>,
    ) -> Result<Self, BadInput> {
        let (events, remark) = snapshot::with_both_frees(events);
        let trace = snapshot::trace(file, base_name(file), device, events, config, segments)?;
        let mut trace = Self { pools, ..trace };
        trace.remarks.extend(remark.map(str::to_owned));
        if trace.events.is_empty() {
            return Err(BadInput::whole(file, "there are no events"));
        }
        trace.complete()?;
        Ok(trace)
    }

    /// Returns the record from event number `first` on, as if recording had started there.
    ///
    /// # Errors
    /// If no event is left, or the remaining data is insufficient: without a state at the end, or
    /// with a state that contradicts the events.
    pub fn from_event(&self, first: usize) -> Result<Self, BadInput> {
        let events = self.events.get(first..).unwrap_or_default().to_vec();
        if events.is_empty() {
            return Err(BadInput::whole(&self.file, format!("there is no event {first}")));
        }
        let mut rest = Self { events, start: None, ..self.clone() };
        rest.find_start()?;
        Ok(rest)
    }

    /// Completes the records of several devices. A device with a record that cannot be used is left
    /// out, and a remark of the first other device says why.
    fn completed(found: Vec<OfDevice>) -> Result<Vec<Self>, BadInput> {
        let (mut good, mut bad) = (Vec::new(), Vec::new());
        for (device, trace) in found {
            let trace = trace.and_then(|mut trace| trace.complete().map(|()| trace));
            match trace {
                Ok(trace) => good.push(trace),
                Err(error) => bad.push((device, error)),
            }
        }
        let Some(first) = good.first_mut() else {
            return bad.into_iter().next().map_or(Ok(good), |(_, error)| Err(error));
        };
        let remark = |(device, error): (i64, BadInput)| {
            format!("the history of device {device} cannot be used: {}", error.without_file())
        };
        first.remarks.extend(bad.into_iter().map(remark));
        Ok(good)
    }

    /// Finds the pools of events, reconstructs the memory before the first event, and checks the
    /// events.
    fn complete(&mut self) -> Result<(), BadInput> {
        self.find_pools();
        self.find_start()
    }

    /// Finds the pools of events by the segments at the end. The notes of a record say more.
    fn find_pools(&mut self) {
        let Some(end) = self.expected.as_ref().filter(|end| !end.end_is_unknown) else { return };
        if self.events.iter().any(|event| event.of.note != Note::None) {
            return;
        }
        let remark = match pools::fill(&mut self.events, &mut self.pools, &end.segments) {
            0 => return,
            1 => "1 segment was released before the end, and its pool is unknown: it is replayed in the default pool"
                .to_owned(),
            many => format!(
                "{many} segments were released before the end, and their pools are unknown: they are replayed in the \
                 default pool"
            ),
        };
        self.remarks.push(remark);
    }

    /// Reconstructs the memory before the first event, and checks the events.
    fn find_start(&mut self) -> Result<(), BadInput> {
        let (file, events) = (&self.file, &self.events);
        let Some(end) = self.expected.as_ref().filter(|end| !end.end_is_unknown) else {
            return consistency::check(file, events, self.start.as_ref());
        };
        let start = match (backward::start(events, &self.pools, end), consistency::walk(events, None)) {
            // The events form a whole program, and the final state is that of another moment.
            (Err((_, why)), Ok(())) if !self.lacks_requests() => {
                self.remarks.push(format!(
                    "the history does not lead to the end ({why}): what is said of its peaks follows the events"
                ));
                return Ok(());
            }
            (Err(_), Ok(())) => {
                let what = "the history has no `alloc` (skip_actions), and memory that it obtained is in use at the \
                            end: nothing is known of the blocks";
                return Err(BadInput::whole(file, what));
            }
            (Err((number, why)), Err((_, Contradiction::Beginning(_)))) => {
                let what = format!("{why}: the events do not lead to the final state");
                return Err(BadInput::at_place(file, events[number].of.place, what));
            }
            (Ok(start), _) if !start.is_empty() => start,
            _ => return consistency::check(file, events, None),
        };
        consistency::check(file, events, Some(&start))?;
        self.start = Some(start);
        self.is_cut = true;
        Ok(())
    }

    /// Returns whether the events do not have the requests for blocks that are in use at the end:
    /// they have none, and obtained the memory of these blocks.
    fn lacks_requests(&self) -> bool {
        let obtained = || self.events.iter().filter(|event| event.action.obtains());
        let segments = || self.expected.iter().flat_map(|end| &end.segments);
        let mut used =
            segments().flat_map(|segment| &segment.blocks).filter(|block| block.state != BlockState::Inactive);
        self.events.iter().all(|event| event.action != Action::Alloc)
            && used.any(|block| obtained().any(|event| (event.addr..event.addr + event.size).contains(&block.address)))
    }

    /// Reads every record from the decompressed content of a file, with the snapshot that they are
    /// from, if it is the only one. Does not check for contradictions between events.
    fn parse(
        file: &Path,
        content: Box<dyn BufRead + '_>,
    ) -> Result<(Vec<OfDevice>, Option<cachalot_snapshot::Snapshot>), BadInput> {
        let Opened { kind, mut reader } = open::recognise(file, content)?;
        if let Some(what) = refused::described(kind, &mut reader) {
            return Err(BadInput::whole(file, what));
        }
        let name = base_name(file);
        let traces = match kind {
            Kind::Snapshot => return snapshot::read(file, &name, reader),
            Kind::Profile => profile::read(file, &name, reader)?,
            Kind::Rmm => {
                vec![Self::of_calls(file, name, 0, rmm::read(file, reader)?)]
            }
            _ => vec![Self::of(file, name, 0, csv_record::read(file, reader)?)],
        };
        Ok((traces.into_iter().map(|trace| (trace.device, Ok(trace))).collect(), None))
    }

    /// Creates a record of calls.
    fn of_calls(file: &Path, name: String, device: i64, made: rebuilt::Rebuilt) -> Self {
        let rebuilt::Rebuilt { events, start, end, remarks } = made;
        // Without a block from before, nothing of the program is missing but its idle memory.
        let is_cut = start.as_ref().is_some_and(|start| start.blocks().next().is_some());
        let is_rebuilt = true;
        Self { is_cut, is_rebuilt, start, expected: Some(end), remarks, ..Self::of(file, name, device, events) }
    }

    /// Creates a record of events alone.
    fn of(file: &Path, name: String, device: i64, events: Vec<Event>) -> Self {
        let (file, start, expected, device_free, has_late_keys) = (file.to_owned(), None, None, None, None);
        let (pools, remarks, stated_peak_bytes) = (Pools::default(), Vec::new(), None);
        let (is_cut, is_rebuilt) = (false, false);
        Self {
            name,
            file,
            device,
            events,
            pools,
            start,
            expected,
            device_free,
            has_late_keys,
            is_cut,
            is_rebuilt,
            remarks,
            stated_peak_bytes,
        }
    }

    /// Returns the configuration string of the program. Empty for the default configuration, and if
    /// unknown.
    pub fn config(&self) -> &str {
        self.expected.as_ref().map_or("", |expected| &expected.config)
    }

    /// Returns whether the record tells the configuration.
    pub fn tells_config(&self) -> bool {
        self.expected.as_ref().is_some_and(|expected| !expected.config_is_unknown)
    }

    /// Returns the number of events of a history that starts in the middle of the program: those of
    /// the file, without those that were made up. `None` for a whole program.
    pub fn cut_to(&self) -> Option<u64> {
        let is_in_file = |event: &&Event| !self.is_rebuilt || event.action.is_call();
        self.is_cut.then(|| self.events.iter().filter(is_in_file).count() as u64)
    }

    /// Returns the memory limit of the program in bytes. `None` without a limit, and if unknown.
    pub fn limit_bytes(&self) -> Option<u64> {
        self.expected.as_ref().and_then(|expected| expected.limit_bytes)
    }
}

/// Returns the file name without the extensions of the format, or `stdin` for the standard input.
pub fn base_name(file: &Path) -> String {
    if open::is_standard_input(file) {
        return "stdin".to_owned();
    }
    let name = file.file_name().unwrap_or(file.as_os_str()).to_string_lossy();
    let name = name.strip_suffix(".gz").unwrap_or(&name);
    [".csv", ".pickle", ".pkl", ".json", ".html"]
        .iter()
        .find_map(|ending| name.strip_suffix(ending))
        .unwrap_or(name)
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::base_name;
    use std::path::Path;

    #[test]
    fn a_name_loses_only_the_endings_of_its_format() {
        assert_eq!(base_name(Path::new("some/where/mlp.v1.csv.gz")), "mlp.v1");
        assert_eq!(base_name(Path::new("run__stacks.pickle.gz")), "run__stacks");
        assert_eq!(base_name(Path::new("run.csv")), "run");
        assert_eq!(base_name(Path::new("run.txt")), "run.txt");
        assert_eq!(base_name(Path::new("-")), "stdin");
    }
}
