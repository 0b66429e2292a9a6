//! Call stacks in reports: their options, and the groups of blocks with their lines.

use super::bytes::{duration, plural, show};
use super::table::Look;
use cachalot_replay::inspect::{By, Group, StackLines};
use std::fmt::Write as _;

/// Options of stacks in a report.
#[derive(clap::Args)]
pub(crate) struct StackArgs {
    /// Number of frames of each stack, from the innermost; JSON has all frames
    #[arg(long, value_name = "N", default_value_t = 6)]
    frames: usize,
    /// Show every frame: also those of PyTorch, of C++ and of the interpreter, which are hidden
    /// beside lines of the program
    #[arg(long)]
    all_frames: bool,
}

impl StackArgs {
    /// Returns what is in one group: for a reader, all that look the same.
    pub(crate) fn by(&self, json: bool) -> By {
        if json || self.all_frames { By::Stack } else { By::Place { frames: self.frames.max(1) } }
    }
}

/// Why a block has no stack.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoStack {
    /// The block is older than the first event of the history.
    Before,
    /// The history has its allocation, without a stack.
    Recorded,
    /// Either of these, or there is no history.
    Unknown,
}

impl NoStack {
    /// Returns why blocks have no stack, by the ages of the oldest in events and microseconds.
    pub(crate) fn of(oldest: (Option<u64>, Option<i64>)) -> Self {
        match oldest {
            (Some(_), _) => Self::Recorded,
            (None, Some(_)) => Self::Before,
            (None, None) => Self::Unknown,
        }
    }

    /// Returns what to tell the reader, with the remedy.
    fn text(self) -> &'static str {
        match self {
            Self::Before => "allocated before recording began: call _record_memory_history() before the model is made",
            Self::Recorded => {
                "recorded without a stack: _record_memory_history() records one with context='all' and stacks='all', the defaults"
            }
            Self::Unknown => "no stack was recorded: call torch.cuda.memory._record_memory_history() at the start",
        }
    }
}

/// Writes stacks to a report.
pub(crate) struct StackPrinter<'a> {
    pub(crate) shown: &'a StackArgs,
    pub(crate) look: &'a Look,
}

/// The column of the lines about a group, after its bytes.
pub(crate) const INDENT: usize = 14;

impl StackPrinter<'_> {
    /// Writes groups of blocks.
    pub(crate) fn groups(&self, text: &mut String, title: &str, groups: &[Group]) {
        if groups.is_empty() {
            return;
        }
        let _ = writeln!(text, "\n{title}");
        for group in groups {
            let blocks = plural(group.blocks, "block");
            let mut line = format!("{:>12}  in {blocks}, the largest {}", show(group.bytes), show(group.largest));
            match group.pending {
                0 => {}
                all if all == group.bytes => line.push_str("; pending: freed, and still used by other streams"),
                part => _ = write!(line, "; {} of it pending: freed, and still used by other streams", show(part)),
            }
            match (group.oldest_us, group.oldest_events) {
                (Some(us), Some(_)) => _ = write!(line, "; the oldest {} old", duration(us)),
                (Some(us), None) => _ = write!(line, "; the oldest more than {} old", duration(us)),
                (None, Some(events)) => _ = write!(line, "; the oldest {} old", plural(events, "event")),
                (None, None) => {}
            }
            match group.earlier {
                0 => {}
                all if all == group.bytes => line.push_str("; from before the range"),
                part => _ = write!(line, "; {} of it from before the range", show(part)),
            }
            let _ = writeln!(text, "\n{}", self.look.fold(&line, INDENT));
            self.stack(text, &group.lines, NoStack::of((group.oldest_events, group.oldest_us)));
        }
    }

    /// Writes the lines of a stack that a reader looks for, or all, or why there is none.
    pub(crate) fn stack(&self, text: &mut String, lines: &StackLines, without: NoStack) {
        let StackLines { stack, shown } = lines;
        if stack.is_empty() {
            let _ = writeln!(text, "{}", self.look.fold(&format!("{:INDENT$}{}", "", without.text()), INDENT));
        }
        let lines = if self.shown.all_frames { stack } else { shown };
        for line in lines.iter().take(self.shown.frames) {
            let _ = writeln!(text, "              {line}");
        }
        let (further, hidden) = (lines.len().saturating_sub(self.shown.frames), stack.len() - lines.len());
        let further = (further > 0).then(|| format!("{} further out", plural(further as u64, "frame")));
        let hidden = (hidden > 0).then(|| format!("{} hidden", plural(hidden as u64, "frame")));
        let rest: Vec<String> = further.into_iter().chain(hidden).collect();
        if !rest.is_empty() {
            let _ = writeln!(text, "              … {}", rest.join(", "));
        }
    }
}
