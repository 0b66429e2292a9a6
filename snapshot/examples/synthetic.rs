//! Writes a memory snapshot of any length, in the form of a snapshot that Python pickled with
//! stacks. Frames and the keys of dictionaries are shared, as are the stacks of a free and of the
//! free's completion. Every other stack is a separate list.
//!
//! ```sh
//! cargo run --release -p cachalot-snapshot --example synthetic -- /tmp/large.pickle 5000000
//! cargo run --release -p cachalot-snapshot --example synthetic -- /tmp/deep.pickle 10000000 96 7
//! ```
//!
//! The arguments are the file, the number of events, the number of frames in a stack (20), and the
//! seed (1). The program trains a model of 48 layers with batches of varying length on a simulated
//! device, so the file can be replayed. 5 million events with 20 frames take about 580 MB, and 10
//! million with 96 frames 5 GB.

use cachalot_core::simulated::SimulatedDevice;
use cachalot_core::{
    Action, Allocator, BlockState, Config, DeviceIndex, DevicePtr, Growable, PoolKind, SnapshotSegment, StreamId,
    TraceEntry,
};
use std::collections::{HashMap, VecDeque};
use std::error::Error;
use std::fs::File;
use std::io::{self, BufWriter, Write};

type Simulated = Allocator<SimulatedDevice, spin::mutex::SpinMutex<()>, Growable>;

const DEVICE: DeviceIndex = DeviceIndex(0);
/// Layers of the model, and blocks of a layer's forward pass.
const LAYERS: u64 = 48;
const BLOCKS: u64 = 6;
/// Outermost frames, which all stacks share, and innermost frames of the called operation.
const OUTER: u64 = 3;
const INNER: u64 = 2;
/// Most frames of a layer.
const LAYER_FRAMES: u64 = 256;
/// Most events between two readings of the allocator's trace: a step of the training.
const EVENTS_PER_STEP: usize = 1 << 14;
/// Entries in each batch of a list, as in Python's pickler.
const BATCH: usize = 1000;

/// Writes operations of protocol 4, and numbers the values as Python's pickler does.
struct Pickler<W> {
    to: W,
    memoized: u32,
    /// Number of frames in a stack.
    depth: u64,
    texts: HashMap<&'static str, u32>,
    frames: HashMap<u64, u32>,
}

/// A place of the program that calls the allocator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Site {
    layer: u64,
    operation: u64,
}

/// The operations other than those of a layer's forward pass, by number.
const BACKWARD: u64 = BLOCKS;
const FREE: u64 = BLOCKS + 1;
const PARAMETERS: u64 = BLOCKS + 2;
const OPERATIONS: [&str; 9] =
    ["linear", "scaled_dot_product_attention", "dropout", "gelu", "layer_norm", "add", "backward", "del", "empty"];

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

    /// Writes a frame, or refers to it: the outermost have the lowest numbers, then come
    /// operations, then layers.
    fn frame(&mut self, frame: u64) -> io::Result<()> {
        if let Some(&number) = self.frames.get(&frame) {
            return self.recall(number);
        }
        self.put(b"}")?;
        let number = self.memoize()?;
        self.frames.insert(frame, number);
        self.put(b"(")?;
        let operations = OUTER + INNER * OPERATIONS.len() as u64;
        let (name, file) = match frame {
            0 => ("<module>".to_owned(), "/home/user/project/train.py".to_owned()),
            1 => ("main".to_owned(), "/home/user/project/train.py".to_owned()),
            2 => ("step".to_owned(), "/home/user/project/train.py".to_owned()),
            _ if frame < operations => {
                let operation = OPERATIONS[((frame - OUTER) / INNER) as usize];
                (operation.to_owned(), "torch/nn/functional.py".to_owned())
            }
            _ => {
                let (layer, depth) = ((frame - operations) / LAYER_FRAMES, (frame - operations) % LAYER_FRAMES);
                match depth % 3 {
                    0 => (format!("forward_{depth}"), format!("/home/user/project/model/layer_{layer}.py")),
                    1 => ("_call_impl".to_owned(), "torch/nn/modules/module.py".to_owned()),
                    _ => ("_wrapped_call_impl".to_owned(), "torch/nn/modules/module.py".to_owned()),
                }
            }
        };
        self.text("name")?;
        self.own_text(&name)?;
        self.text("filename")?;
        self.own_text(&file)?;
        self.entry("line", 10 + frame * 7 % 997)?;
        self.put(b"u")
    }

    /// Writes a stack as a list of frames, the innermost first. Returns the number of the list.
    fn stack(&mut self, site: Site) -> io::Result<u32> {
        self.put(b"]")?;
        let number = self.memoize()?;
        self.put(b"(")?;
        for depth in 0..INNER {
            self.frame(OUTER + site.operation * INNER + depth)?;
        }
        let layers = OUTER + INNER * OPERATIONS.len() as u64;
        for depth in 0..self.depth.saturating_sub(INNER + OUTER).min(LAYER_FRAMES) {
            self.frame(layers + site.layer * LAYER_FRAMES + depth)?;
        }
        for outer in (0..OUTER).rev() {
            self.frame(outer)?;
        }
        self.put(b"e")?;
        Ok(number)
    }

    fn event(&mut self, entry: &TraceEntry, site: Site, stacks: &mut HashMap<u64, u32>) -> io::Result<()> {
        self.dictionary()?;
        self.text("action")?;
        self.text(entry.action.name())?;
        self.entry("addr", entry.addr.0)?;
        self.entry("size", entry.size)?;
        self.entry("stream", entry.stream.0)?;
        self.entry("time_us", 1_700_000_000_000_000 + entry.time_us)?;
        self.text("frames")?;
        let completed = stacks.remove(&entry.addr.0).filter(|_| entry.action == Action::FreeCompleted);
        if let Some(number) = completed {
            self.recall(number)?;
        } else {
            let number = self.stack(site)?;
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

    fn segment(&mut self, segment: &SnapshotSegment, sites: &HashMap<u64, Site>) -> io::Result<()> {
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
                let site = sites.get(&block.address.0).copied();
                self.stack(site.unwrap_or(Site { layer: 0, operation: PARAMETERS }))?;
            }
            self.put(b"u")?;
        }
        self.put(b"eu")
    }
}

/// A training of a model: the calls of the allocator, with their sites.
struct Training<'a> {
    allocator: &'a Simulated,
    random: u64,
    /// The sites of calls whose events are not written yet. A request may have several events.
    calls: VecDeque<Site>,
    /// The sites of blocks in use.
    sites: HashMap<u64, Site>,
}

impl Training<'_> {
    /// Returns a number below a bound.
    fn random(&mut self, below: u64) -> u64 {
        // Knuth's MMIX generator.
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % below
    }

    fn malloc(&mut self, bytes: u64, site: Site) -> Result<DevicePtr, Box<dyn Error>> {
        self.calls.push_back(site);
        Ok(self.allocator.malloc(DEVICE, bytes, StreamId(u64::from(site.operation == PARAMETERS)))?)
    }

    fn free(&mut self, block: DevicePtr, layer: u64) -> Result<(), Box<dyn Error>> {
        self.calls.push_back(Site { layer, operation: FREE });
        Ok(self.allocator.free(block)?)
    }

    /// Runs a step: forward, and backward in the opposite order. Blocks of the forward pass live
    /// until the backward pass of their layer.
    fn step(&mut self) -> Result<(), Box<dyn Error>> {
        let length = 64 + self.random(192);
        let mut kept = Vec::new();
        for layer in 0..LAYERS {
            for operation in 0..BLOCKS {
                let bytes = length * (1 + operation) * (4096 + 512 * (layer % 5));
                kept.push((layer, self.malloc(bytes, Site { layer, operation })?));
                if self.random(3) == 0 {
                    let bytes = 1 + self.random(8 << 20);
                    let workspace = self.malloc(bytes, Site { layer, operation })?;
                    self.free(workspace, layer)?;
                }
            }
        }
        while let Some((layer, block)) = kept.pop() {
            let gradient = self.malloc(length * 4096, Site { layer, operation: BACKWARD })?;
            self.free(block, layer)?;
            self.free(gradient, layer)?;
        }
        Ok(())
    }
}

/// Trains until the trace has `count` events, and writes every event. Returns the sites of the
/// blocks in use.
fn events(
    pickler: &mut Pickler<impl Write>,
    allocator: &Simulated,
    count: usize,
    seed: u64,
) -> Result<HashMap<u64, Site>, Box<dyn Error>> {
    let mut training = Training { allocator, random: seed, calls: VecDeque::new(), sites: HashMap::new() };
    let (mut written, mut stacks) = (0, HashMap::new());
    while written < count {
        allocator.trace(DEVICE)?.record(EVENTS_PER_STEP)?;
        if written == 0 {
            for layer in 0..LAYERS {
                training.malloc((1 + layer % 4) << 20, Site { layer, operation: PARAMETERS })?;
            }
        }
        training.step()?;
        let mut entries = Vec::new();
        allocator.trace(DEVICE)?.for_each(|entry| entries.push(*entry));
        let mut freed = None;
        for entry in entries {
            if written % BATCH == 0 {
                pickler.put(if written == 0 { b"(" } else { b"e(" })?;
            }
            // The events of a request come before its `alloc`, and a completion after its free.
            let site = match entry.action {
                Action::FreeCompleted => freed,
                Action::Alloc | Action::FreeRequested => training.calls.pop_front(),
                _ => training.calls.front().copied(),
            };
            let site = site.ok_or("an event without a call")?;
            match entry.action {
                Action::Alloc => _ = training.sites.insert(entry.addr.0, site),
                Action::FreeRequested => {
                    training.sites.remove(&entry.addr.0);
                    freed = Some(site);
                }
                _ => {}
            }
            pickler.event(&entry, site, &mut stacks)?;
            written += 1;
        }
    }
    pickler.put(b"e")?;
    Ok(training.sites)
}

fn main() -> Result<(), Box<dyn Error>> {
    const USAGE: &str =
        "the arguments are the file, the number of events, and if wanted the frames of a stack and the seed";
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or(USAGE)?;
    let mut number = |default: Option<u64>| match arguments.next() {
        Some(text) => text.parse().map_err(|error| format!("{text}: {error}")),
        None => default.ok_or_else(|| USAGE.to_owned()),
    };
    let (count, depth, seed) = (number(None)?, number(Some(20))?, number(Some(1))?);
    let allocator = Simulated::new([SimulatedDevice::new(1 << 40)], &Config::default())?;
    let to = BufWriter::with_capacity(1 << 20, File::create(path)?);
    let mut pickler = Pickler { to, memoized: 0, depth, texts: HashMap::new(), frames: HashMap::new() };
    pickler.put(b"\x80\x04")?;
    pickler.dictionary()?;
    pickler.text("device_traces")?;
    pickler.put(b"]")?;
    pickler.memoize()?;
    pickler.put(b"]")?;
    pickler.memoize()?;
    let sites = events(&mut pickler, &allocator, count as usize, seed)?;
    pickler.put(b"a")?;
    pickler.text("segments")?;
    pickler.put(b"]")?;
    pickler.memoize()?;
    pickler.put(b"(")?;
    for segment in allocator.snapshot() {
        pickler.segment(&segment, &sites)?;
    }
    pickler.put(b"eu.")?;
    Ok(pickler.to.flush()?)
}
