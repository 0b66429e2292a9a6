//! Writes a memory snapshot of any length, in the form of a snapshot that Python pickled with
//! stacks. Frames and the keys of dictionaries are shared, as are the stacks of a free and of the
//! free's completion. Every other stack is a separate list.
//!
//! ```sh
//! cargo run --release -p cachalot-snapshot --example synthetic -- /tmp/large.pickle 5000000
//! ```
//!
//! The events come from a program on a simulated device, so the file can be replayed. 5 million
//! events take about 610 MB.

use cachalot_core::simulated::SimulatedDevice;
use cachalot_core::{
    Action, Allocator, BlockState, Config, DeviceIndex, DevicePtr, Growable, PoolKind, SnapshotSegment, StreamId,
    TraceEntry,
};
use std::collections::HashMap;
use std::error::Error;
use std::fs::File;
use std::io::{self, BufWriter, Write};

type Simulated = Allocator<SimulatedDevice, spin::mutex::SpinMutex<()>, Growable>;

const DEVICE: DeviceIndex = DeviceIndex(0);
/// Number of distinct frames of the program. `DEPTH` is the number of frames in a stack.
const FRAMES: u64 = 3000;
const DEPTH: u64 = 20;
/// Distinct stacks of the program.
const STACKS: u64 = 2000;
/// Most blocks in use at a time.
const HELD: usize = 3000;
/// Calls between two readings of the allocator's trace. A call leaves at most `EVENTS_PER_CALL`
/// events.
const CALLS: usize = 1 << 12;
const EVENTS_PER_CALL: usize = 4;
/// Entries in each batch of a list, as in Python's pickler.
const BATCH: usize = 1000;

/// Writes operations of protocol 4, and numbers the values as Python's pickler does.
struct Pickler<W> {
    to: W,
    memoized: u32,
    texts: HashMap<&'static str, u32>,
    frames: HashMap<u64, u32>,
}

impl<W: Write> Pickler<W> {
    fn put(&mut self, operations: &[u8]) -> io::Result<()> {
        self.to.write_all(operations)
    }

    /// Writes `MEMOIZE`. Returns the number of the value on top.
    fn memoize(&mut self) -> io::Result<u32> {
        self.put(b"\x94")?;
        self.memoized += 1;
        Ok(self.memoized - 1)
    }

    /// Writes `BINGET` or `LONG_BINGET`.
    fn recall(&mut self, number: u32) -> io::Result<()> {
        match u8::try_from(number) {
            Ok(short) => self.put(&[b'h', short]),
            Err(_) => self.put(&[&b"j"[..], &number.to_le_bytes()].concat()),
        }
    }

    /// Writes a text as a separate object: `SHORT_BINUNICODE`.
    fn own_text(&mut self, text: &str) -> io::Result<u32> {
        self.put(&[b"\x8c", &[text.len() as u8][..], text.as_bytes()].concat())?;
        self.memoize()
    }

    /// Writes a text as an object shared by all uses.
    fn text(&mut self, text: &'static str) -> io::Result<()> {
        if let Some(&number) = self.texts.get(text) {
            return self.recall(number);
        }
        let number = self.own_text(text)?;
        self.texts.insert(text, number);
        Ok(())
    }

    /// Writes `BININT1`, `BININT2`, `BININT` or `LONG1`.
    fn int(&mut self, value: u64) -> io::Result<()> {
        let bytes = value.to_le_bytes();
        match value {
            0..=0xff => self.put(&[b'K', bytes[0]]),
            0x100..=0xffff => self.put(&[b'M', bytes[0], bytes[1]]),
            0x1_0000..=0x7fff_ffff => self.put(&[b"J", &bytes[..4]].concat()),
            _ => {
                let length = 8 - value.leading_zeros() as usize / 8;
                let signed = length + usize::from(bytes[length - 1] >= 0x80);
                let mut content = bytes[..length].to_vec();
                content.resize(signed, 0);
                self.put(&[b"\x8a", &[signed as u8][..], &content].concat())
            }
        }
    }

    fn entry(&mut self, key: &'static str, value: u64) -> io::Result<()> {
        self.text(key)?;
        self.int(value)
    }

    fn dictionary(&mut self) -> io::Result<()> {
        self.put(b"}")?;
        self.memoize()?;
        self.put(b"(")
    }

    fn frame(&mut self, frame: u64) -> io::Result<()> {
        if let Some(&number) = self.frames.get(&frame) {
            return self.recall(number);
        }
        self.put(b"}")?;
        let number = self.memoize()?;
        self.frames.insert(frame, number);
        self.put(b"(")?;
        self.text("name")?;
        self.own_text(&format!("function_{frame}"))?;
        self.text("filename")?;
        let file = format!("/home/user/project/package_{}/module_{}.py", frame % 17, frame % 211);
        self.own_text(if frame.is_multiple_of(3) { "torch/nn/modules/module.py" } else { &file })?;
        self.entry("line", frame % 997)?;
        self.put(b"u")
    }

    /// Writes a stack as a list of frames. Returns the number of the list.
    fn stack(&mut self, stack: u64) -> io::Result<u32> {
        self.put(b"]")?;
        let number = self.memoize()?;
        self.put(b"(")?;
        for depth in 0..DEPTH {
            self.frame((stack * (DEPTH - depth) + depth * depth) % FRAMES)?;
        }
        self.put(b"e")?;
        Ok(number)
    }

    fn event(&mut self, entry: &TraceEntry, stacks: &mut HashMap<u64, u32>) -> io::Result<()> {
        self.dictionary()?;
        self.text("action")?;
        self.text(entry.action.name())?;
        self.entry("addr", entry.addr.0)?;
        self.entry("size", entry.size)?;
        self.entry("stream", entry.stream.0)?;
        self.entry("time_us", 1_700_000_000_000_000 + entry.time_us)?;
        self.text("frames")?;
        let stack = (entry.addr.0 / 512 + entry.size) % STACKS;
        let completed = stacks.remove(&entry.addr.0).filter(|_| entry.action == Action::FreeCompleted);
        if let Some(number) = completed {
            self.recall(number)?;
        } else {
            let number = self.stack(stack)?;
            if entry.action == Action::FreeRequested {
                stacks.insert(entry.addr.0, number);
            }
        }
        // The text is a separate object in each event.
        self.text("compile_context")?;
        self.own_text("N/A")?;
        self.text("user_metadata")?;
        self.text("")?;
        self.put(b"u")
    }

    fn segment(&mut self, segment: &SnapshotSegment) -> io::Result<()> {
        self.dictionary()?;
        self.entry("device", 0)?;
        self.entry("address", segment.address.0)?;
        self.entry("total_size", segment.total_size)?;
        self.entry("stream", segment.stream.0)?;
        self.text("segment_type")?;
        self.text(if segment.kind == PoolKind::Small { "small" } else { "large" })?;
        self.text("blocks")?;
        self.put(b"]")?;
        self.memoize()?;
        self.put(b"(")?;
        for block in &segment.blocks {
            self.dictionary()?;
            self.entry("address", block.address.0)?;
            self.entry("size", block.size)?;
            self.entry("requested_size", block.requested_size)?;
            self.text("state")?;
            self.text(block.state.name())?;
            if block.state != BlockState::Inactive {
                self.text("frames")?;
                self.stack((block.address.0 / 512 + block.requested_size) % STACKS)?;
            }
            self.put(b"u")?;
        }
        self.put(b"eu")
    }
}

/// Runs a program until the trace has `count` events, and writes every event.
fn events(pickler: &mut Pickler<impl Write>, allocator: &Simulated, count: usize) -> Result<(), Box<dyn Error>> {
    let (mut number, mut written, mut held) = (1_u64, 0, Vec::<DevicePtr>::new());
    let mut stacks = HashMap::new();
    while written < count {
        allocator.record_trace(DEVICE, CALLS * EVENTS_PER_CALL)?;
        for _ in 0..CALLS {
            // Knuth's MMIX generator.
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let random = (number >> 33) as usize;
            if held.len() < HELD && random & 1 == 0 {
                let bytes = 1 + ((number >> 40) & ((1 << (9 + random % 15)) - 1));
                held.push(allocator.malloc(DEVICE, bytes, StreamId((number >> 60) % 2))?);
            } else if !held.is_empty() {
                allocator.free(held.swap_remove(random % held.len()))?;
            }
        }
        let mut entries = Vec::new();
        allocator.for_each_trace_entry(DEVICE, |entry| entries.push(*entry))?;
        for entry in entries {
            if written % BATCH == 0 {
                pickler.put(if written == 0 { b"(" } else { b"e(" })?;
            }
            pickler.event(&entry, &mut stacks)?;
            written += 1;
        }
    }
    Ok(pickler.put(b"e")?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("the arguments are the file and the number of events")?;
    let count = arguments.next().ok_or("the arguments are the file and the number of events")?.parse()?;
    let allocator = Simulated::new([SimulatedDevice::new(1 << 40)], &Config::default())?;
    let to = BufWriter::with_capacity(1 << 20, File::create(path)?);
    let mut pickler = Pickler { to, memoized: 0, texts: HashMap::new(), frames: HashMap::new() };
    pickler.put(b"\x80\x04")?;
    pickler.dictionary()?;
    pickler.text("device_traces")?;
    pickler.put(b"]")?;
    pickler.memoize()?;
    pickler.put(b"]")?;
    pickler.memoize()?;
    events(&mut pickler, &allocator, count)?;
    pickler.put(b"a")?;
    pickler.text("segments")?;
    pickler.put(b"]")?;
    pickler.memoize()?;
    pickler.put(b"(")?;
    for segment in allocator.snapshot() {
        pickler.segment(&segment)?;
    }
    pickler.put(b"eu.")?;
    Ok(pickler.to.flush()?)
}
