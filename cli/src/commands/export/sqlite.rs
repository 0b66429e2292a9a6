//! A database with the segments, blocks, events and stacks of a snapshot.

use super::{own_frame, progress_of};
use cachalot_replay::inspect::{History, Sums};
use cachalot_snapshot::{Event, Segment, Snapshot, Stack};
use rusqlite::{Connection, Statement, ToSql, Transaction, params};
use std::collections::HashMap;
use std::io;
use std::path::Path;

/// The tables.
const SCHEMA: &str = include_str!("schema.sql");

/// Version of the tables, which grows if a program that reads them would have to change.
const VERSION: &str = "1";

/// Events between two updates of the progress bar.
const PART: usize = 1 << 16;

/// Writes the database of a snapshot.
pub(super) fn write(output: &Path, snapshot: &Snapshot, name: &str) -> io::Result<()> {
    // SQLite writes files by name: its own folder next to the target keeps other programs away.
    let parent = output.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let place = tempfile::Builder::new().prefix(".cachalot-").tempdir_in(parent)?;
    let file = place.path().join("export.db");
    fill(&file, snapshot, name).map_err(io::Error::other)?;
    cachalot_atomic_file::write(output, |to| io::copy(&mut std::fs::File::open(&file)?, to).map(drop))
}

fn fill(file: &Path, snapshot: &Snapshot, name: &str) -> rusqlite::Result<()> {
    let mut database = Connection::open(file)?;
    // The database is copied to the output once it is whole, so it needs no journal.
    database.pragma_update(None, "journal_mode", "OFF")?;
    database.pragma_update(None, "synchronous", "OFF")?;
    let transaction = database.transaction()?;
    transaction.execute_batch(SCHEMA)?;
    let settings = snapshot.allocator_settings.as_ref().and_then(|settings| settings.string.clone());
    for (key, value) in [
        ("schema_version", Some(VERSION.to_owned())),
        ("source", Some(name.to_owned())),
        ("written_by", Some(concat!("cachalot ", env!("CARGO_PKG_VERSION")).to_owned())),
        ("settings", settings),
    ] {
        transaction.execute("INSERT INTO meta VALUES (?1, ?2)", params![key, value])?;
    }
    Writer::new(&transaction)?.write(snapshot)?;
    transaction.commit()?;
    database.close().map_err(|(_, error)| error)
}

/// The statements of a database under construction.
struct Writer<'t> {
    stacks: StackTable<'t>,
    segment: Statement<'t>,
    block: Statement<'t>,
    event: Statement<'t>,
    annotation: Statement<'t>,
}

/// The stacks of the blocks that are not free, by device and address.
type Known<'s> = HashMap<(i64, u64), &'s Stack>;

/// Writes each stack once.
struct StackTable<'t> {
    /// The numbers of stacks by the address of the frames, which stay while the snapshot does.
    by_address: HashMap<usize, i64>,
    by_frames: HashMap<Stack, i64>,
    stack: Statement<'t>,
    frame: Statement<'t>,
}

impl<'t> Writer<'t> {
    fn new(to: &'t Transaction<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            stacks: StackTable {
                by_address: HashMap::new(),
                by_frames: HashMap::new(),
                stack: to.prepare("INSERT INTO stacks VALUES (?1, ?2)")?,
                frame: to.prepare("INSERT INTO frames VALUES (?1, ?2, ?3, ?4, ?5)")?,
            },
            segment: to.prepare("INSERT INTO segments VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)")?,
            block: to.prepare("INSERT INTO blocks VALUES (?1, ?2, ?3, ?4, ?5, ?6)")?,
            event: to.prepare("INSERT INTO events VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)")?,
            annotation: to.prepare("INSERT INTO annotations VALUES (?1, ?2, ?3, ?4)")?,
        })
    }

    fn write(&mut self, snapshot: &Snapshot) -> rusqlite::Result<()> {
        // A block without its own stack has the stack of its allocation's event.
        let mut known = HashMap::new();
        let mut histories = Vec::new();
        for (device, _) in (0..).zip(&snapshot.device_traces) {
            histories.push(History::of(snapshot, device, |life| {
                if let (None, Some(stack)) = (life.end, life.stack) {
                    known.insert((device, life.address), stack);
                }
            }));
        }
        let segments = snapshot.segments.iter().chain(snapshot.host_segments.iter().flatten());
        for (number, segment) in (1..).zip(segments) {
            self.segment(number, segment, &known)?;
        }
        let progress = progress_of(snapshot);
        for ((device, trace), history) in (0..).zip(&snapshot.device_traces).zip(histories) {
            let mut sums = history.start().iter().copied().fold(Sums::default(), Sums::plus);
            for (number, (event, (change, place))) in trace.iter().zip(history.steps()).enumerate() {
                sums = sums.after(change);
                self.event(device, number, event, history.places()[place].pool, sums)?;
                if number % PART == PART - 1 {
                    progress.advance(PART as u64);
                }
            }
        }
        progress.finish();
        for mark in snapshot.external_annotations.iter().flatten() {
            self.annotation.execute(params![mark.device, mark.time_us, mark.stage, mark.name])?;
        }
        Ok(())
    }

    fn segment(&mut self, number: i64, segment: &Segment, known: &Known<'_>) -> rusqlite::Result<()> {
        let stack = self.stacks.number(segment.frames.as_ref())?;
        let address = segment.address.cast_signed();
        self.segment.execute(params![
            number,
            segment.device,
            address,
            segment.total_size.cast_signed(),
            segment.stream,
            pool(segment.segment_pool_id.unwrap_or_default()),
            segment.segment_type.as_deref(),
            segment.is_expandable,
            stack
        ])?;
        let mut at = segment.address;
        for block in &segment.blocks {
            let start = block.address.unwrap_or(at);
            at = start.saturating_add(block.size);
            let own = block.stack();
            let event = || known.get(&(segment.device, start)).copied().filter(|_| block.state != "inactive");
            let stack = self.stacks.number(own.or_else(event))?;
            let requested = block.requested_size.map(u64::cast_signed);
            let (start, bytes) = (start.cast_signed(), block.size.cast_signed());
            self.block.execute(params![number, start, bytes, requested, &*block.state, stack])?;
        }
        Ok(())
    }

    fn event(
        &mut self,
        device: i64,
        number: usize,
        event: &Event,
        of: Option<(u64, u64)>,
        sums: Sums,
    ) -> rusqlite::Result<()> {
        let stack = self.stacks.number(event.frames.as_ref())?;
        let note = event.details.as_ref().and_then(|details| details.user_metadata.as_deref());
        let is_of_memory = event.addr.is_some();
        let values: [&dyn ToSql; 13] = [
            &device,
            &(number as i64),
            &event.time_us,
            &&*event.action,
            &event.addr.map(u64::cast_signed),
            &event.size,
            &event.stream,
            &of.filter(|_| is_of_memory).map(pool),
            &stack,
            &note.filter(|note| !note.is_empty()),
            &sums.reserved.cast_signed(),
            &sums.allocated.cast_signed(),
            &sums.pending.cast_signed(),
        ];
        self.event.execute(&values[..]).map(drop)
    }
}

impl StackTable<'_> {
    /// Returns the number of a stack, after writing a new stack. `None` without frames.
    fn number(&mut self, stack: Option<&Stack>) -> rusqlite::Result<Option<i64>> {
        let Some(stack) = stack.filter(|stack| !stack.is_empty()) else { return Ok(None) };
        let address = stack.frames().as_ptr().addr();
        if let Some(&number) = self.by_address.get(&address) {
            return Ok(Some(number));
        }
        let next = self.by_frames.len() as i64 + 1;
        let number = *self.by_frames.entry(stack.clone()).or_insert(next);
        self.by_address.insert(address, number);
        if number == next {
            self.stack.execute(params![number, own_frame(Some(stack))])?;
            for (depth, frame) in (0_i64..).zip(stack.frames()) {
                self.frame.execute(params![number, depth, frame.name, frame.filename, frame.line])?;
            }
        }
        Ok(Some(number))
    }
}

/// Returns the name of a pool, as in a trace.
fn pool((first, second): (u64, u64)) -> String {
    format!("{first}.{second}")
}
