//! The options `--from` and `--to`: a part of a history, for the commands on snapshots.

use super::bytes::{duration, grouped};
use cachalot_replay::inspect::Since;
use cachalot_replay::range::{self, EarlierStacks, HistoryRange, Moment, Span};
use cachalot_replay::trace::{BadInput, Trace, snapshot};
use cachalot_snapshot::Snapshot;
use std::path::Path;

/// How a moment is written.
const WHEN: &str = "\
Where the range of the history begins (--from) and ends (--to, --until). What
takes time is in the range as a whole, as in `--from step:3 --until step:3`

1200             after 1200 events: event 1200 is the first, or the first left out
3.5s, 120ms      a time after the first event: us, ms, s, min, h
annotation:NAME  what the program or a profiler has marked; NAME#2 is the second
step:3           a step: ProfilerStep#3 of torch.profiler, an annotation such as
                 `step 3`, or without them the fourth part between the ends of
                 `Optimizer.step`, which PyTorch marks by itself";

/// The options of a range.
#[derive(clap::Args)]
pub(crate) struct RangeArgs {
    /// Where the range of the history begins: a number of events, a time such as 3.5s after the
    /// first event, annotation:NAME, or step:N
    #[arg(long, value_name = "WHEN", value_parser = Moment::parse, long_help = WHEN)]
    from: Option<Moment>,
    /// Where the range ends, in the same words
    #[arg(long, visible_alias = "until", value_name = "WHEN", value_parser = Moment::parse)]
    to: Option<Moment>,
}

/// The same for a command with another `--to`.
#[derive(Clone, clap::Args)]
pub(crate) struct UntilArgs {
    /// Where the range of the history begins: a number of events, a time such as 3.5s after the
    /// first event, annotation:NAME, or step:N
    #[arg(long, value_name = "WHEN", value_parser = Moment::parse, long_help = WHEN)]
    from: Option<Moment>,
    /// Where the range ends, in the same words
    #[arg(long, value_name = "WHEN", value_parser = Moment::parse)]
    until: Option<Moment>,
}

impl From<UntilArgs> for RangeArgs {
    fn from(args: UntilArgs) -> Self {
        Self { from: args.from, to: args.until }
    }
}

impl RangeArgs {
    /// Returns whether a range is asked for.
    pub(crate) fn is_given(&self) -> bool {
        self.from.is_some() || self.to.is_some()
    }

    /// Finds the range in a snapshot. `None` without the options.
    pub(crate) fn find(&self, file: &Path, snapshot: &Snapshot) -> Result<Option<HistoryRange>, BadInput> {
        if !self.is_given() {
            return Ok(None);
        }
        let found = range::resolve(snapshot, self.from.as_ref(), self.to.as_ref());
        found.map(Some).map_err(|what| BadInput::whole(file, what))
    }

    /// Makes a snapshot what it was at the end of the range, and returns the range, with the first
    /// events of a report.
    pub(crate) fn rewind(
        &self,
        file: &Path,
        snapshot: &mut Snapshot,
    ) -> Result<(Option<HistoryRange>, Since), BadInput> {
        let Some(range) = self.find(file, snapshot)? else { return Ok((None, Since::default())) };
        range::rewind(snapshot, &range).map_err(|what| BadInput::whole(file, what))?;
        let since = Since(range.devices.iter().map(|span| (span.device, span.from_event)).collect());
        Ok((Some(range), since))
    }

    /// Makes a snapshot one of the range alone, and returns the range, with the stacks of the
    /// blocks from before it.
    pub(crate) fn cut(
        &self,
        file: &Path,
        snapshot: &mut Snapshot,
    ) -> Result<(Option<HistoryRange>, EarlierStacks), BadInput> {
        let (range, _) = self.rewind(file, snapshot)?;
        let before = range.as_ref().map_or_else(EarlierStacks::default, |range| range::cut(snapshot, range));
        Ok((range, before))
    }

    /// Reads the records of a file, or of the range of a snapshot.
    pub(crate) fn traces(&self, file: &Path) -> Result<Vec<Trace>, BadInput> {
        if !self.is_given() {
            return Trace::load(file);
        }
        let mut snapshot = snapshot::load(file)?;
        self.cut(file, &mut snapshot)?;
        Trace::of_snapshot(file, &snapshot)
    }
}

/// Returns the part of a device's history in words. `None` for a device without a history.
pub(crate) fn words(range: &HistoryRange, device: i64) -> Option<String> {
    range.devices.iter().find(|span| span.device == device).map(words_of)
}

/// Returns a part of a history in words.
pub(crate) fn words_of(span: &Span) -> String {
    let [from, to, events] = [span.from_event, span.to_event, span.events].map(|number| grouped(number as u64));
    match (span.from_us, span.to_us) {
        (Some(first), Some(last)) => {
            format!("events {from} to {to} of {events}, {} to {} after the first", duration(first), duration(last))
        }
        _ => format!("events {from} to {to} of {events}"),
    }
}
