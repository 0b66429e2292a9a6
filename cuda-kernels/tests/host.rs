//! Tests of the host's kernels against the pattern in Rust. Host kernels and device kernels share
//! their source.

use cachalot_kernels::{Evidence, Findings, Life, ROW_BYTES, checksum, emulated_image};
use core::ffi::{c_uint, c_void};
use libloading::Library;

/// Signature of a host kernel.
type HostKernel = unsafe extern "C" fn(parameters: *mut *mut c_void, grid: c_uint, block: c_uint);

/// The library of host kernels.
struct Kernels(Library);

impl Kernels {
    /// Loads the library, or prints a line about the missing library.
    fn load() -> Option<Self> {
        let Some(image) = emulated_image() else {
            use std::io::Write;
            let _ = writeln!(std::io::stderr(), "skipped: host kernels (built without a C++ compiler)");
            return None;
        };
        let image = image.to_str().expect("UTF-8");
        let path = image.strip_prefix("CACHALOT-EMULATED ").expect("what the emulated driver looks for");
        // SAFETY: the library was built from this crate's kernels and has no initialisers.
        Some(Self(unsafe { Library::new(path) }.expect("the library that the build made")))
    }

    /// Runs a kernel with the given parameters.
    fn run(&self, name: &str, arguments: &[u64]) {
        // SAFETY: the symbol is a number: the count of the kernel's parameters.
        let count = unsafe { self.0.get::<*const c_uint>(format!("{name}_params")) }.expect("a number of parameters");
        // SAFETY: the symbol is a constant of the library, which is loaded.
        assert_eq!(unsafe { **count } as usize, arguments.len(), "parameters of {name}");
        // SAFETY: the symbol is a host kernel.
        let kernel = unsafe { self.0.get::<HostKernel>(name) }.expect("a kernel");
        let mut values = arguments.to_vec();
        let mut parameters: Vec<*mut c_void> = values.iter_mut().map(|value| (&raw mut *value).cast()).collect();
        // SAFETY: the count matches the kernel's parameters; each is a number, or the address of a
        // live and sufficiently long buffer.
        unsafe { kernel(parameters.as_mut_ptr(), 3, 32) };
    }
}

/// A buffer aligned to 8, with `bytes` bytes in use and a margin after the bytes.
struct Buffer {
    /// The memory, in words.
    words: Vec<u64>,
    /// Bytes in use.
    bytes: usize,
}

/// Value of every byte in the margin.
const MARGIN: u8 = 0xee;

impl Buffer {
    /// Creates a buffer of zeros.
    fn new(bytes: usize) -> Self {
        let mut buffer = Self { words: vec![u64::from_ne_bytes([MARGIN; 8]); bytes.div_ceil(8) + 1], bytes };
        buffer.bytes_mut()[..bytes].fill(0);
        buffer
    }

    /// Returns all bytes, the margin included.
    fn bytes_mut(&mut self) -> &mut [u8] {
        let length = self.words.len() * 8;
        // SAFETY: the words are live and exclusively borrowed, and every byte is initialised.
        unsafe { core::slice::from_raw_parts_mut(self.words.as_mut_ptr().cast(), length) }
    }

    /// Returns the buffer's address.
    fn address(&mut self) -> u64 {
        self.words.as_mut_ptr() as u64
    }

    /// Checks that the margin is unchanged. Returns the bytes in use.
    fn checked(&mut self) -> &mut [u8] {
        let bytes = self.bytes;
        let (used, margin) = self.bytes_mut().split_at_mut(bytes);
        assert!(margin.iter().all(|byte| *byte == MARGIN), "written behind the end of {bytes} bytes");
        used
    }
}

/// Sizes with and without whole words and tails.
const SIZES: [usize; 12] = [0, 1, 7, 8, 9, 15, 16, 63, 64, 511, 512, 100_003];
/// The launch of the tests' tables.
const LAUNCH: u64 = 7;
/// The life used by the tests.
const LIFE: Life = Life { block: 17, generation: 4 };

#[test]
fn fill_writes_the_pattern_and_nothing_else() {
    let Some(kernels) = Kernels::load() else { return };
    for bytes in SIZES {
        let mut buffer = Buffer::new(bytes);
        kernels.run("cachalot_fill", &[buffer.address(), bytes as u64, LIFE.block, LIFE.generation]);
        let expected: Vec<u8> = (0..bytes as u64).map(|offset| LIFE.byte(offset)).collect();
        assert_eq!(buffer.checked(), expected, "{bytes} bytes");
    }
}

/// Returns the findings of a check of a buffer against a life.
fn verify(kernels: &Kernels, buffer: &mut Buffer, life: Life) -> Findings {
    let mut result = [0_u64, u64::MAX];
    let (at, bytes) = (buffer.address(), buffer.bytes as u64);
    kernels.run("cachalot_verify", &[at, bytes, life.block, life.generation, result.as_mut_ptr() as u64]);
    Findings { wrong_bytes: result[0], lowest_wrong: result[1] }
}

#[test]
fn verify_finds_every_wrong_byte() {
    let Some(kernels) = Kernels::load() else { return };
    for bytes in SIZES {
        let mut buffer = Buffer::new(bytes);
        kernels.run("cachalot_fill", &[buffer.address(), bytes as u64, LIFE.block, LIFE.generation]);
        assert_eq!(verify(&kernels, &mut buffer, LIFE), Findings::NONE, "{bytes} bytes");
        for wrong in (0..bytes).step_by(bytes / 37 + 1) {
            buffer.checked()[wrong] ^= 0x10;
            let found = Findings { wrong_bytes: 1, lowest_wrong: wrong as u64 };
            assert_eq!(verify(&kernels, &mut buffer, LIFE), found, "byte {wrong} of {bytes}");
            buffer.checked()[wrong] ^= 0x10;
        }
        if bytes >= 64 {
            for other in [Life { generation: 5, ..LIFE }, Life { block: 18, ..LIFE }] {
                let found = verify(&kernels, &mut buffer, other);
                assert!(found.wrong_bytes as usize > bytes / 2, "{other:?} is told from {LIFE:?}: {found:?}");
            }
        }
    }
}

#[test]
fn many_blocks_are_filled_and_checked_at_once() {
    let Some(kernels) = Kernels::load() else { return };
    let mut buffers: Vec<Buffer> = SIZES.iter().map(|&bytes| Buffer::new(bytes)).collect();
    let mut table = vec![0_u64; SIZES.len() * (ROW_BYTES as usize / 8)];
    let at = table.as_mut_ptr() as u64;
    let life = |row: usize| Life { block: 100 + row as u64, generation: row as u64 % 3 };
    for (row, (buffer, entry)) in buffers.iter_mut().zip(table.chunks_mut(5)).enumerate() {
        let distance = buffer.address().wrapping_sub(at);
        entry.copy_from_slice(&[distance, buffer.bytes as u64, life(row).block, life(row).generation, LAUNCH]);
    }
    kernels.run("cachalot_fill_many", &[at, SIZES.len() as u64, LAUNCH, 0]);
    for (row, buffer) in buffers.iter_mut().enumerate() {
        let expected: Vec<u8> = (0..buffer.bytes as u64).map(|offset| life(row).byte(offset)).collect();
        assert_eq!(buffer.checked(), expected, "row {row}");
    }
    let verify = || {
        let mut result = [0_u64, u64::MAX];
        kernels.run("cachalot_verify_many", &[at, SIZES.len() as u64, result.as_mut_ptr() as u64, LAUNCH, 0]);
        Findings { wrong_bytes: result[0], lowest_wrong: result[1] }
    };
    assert_eq!((verify(), verify().first_of_many()), (Findings::NONE, None));
    for (row, offset) in [(11, 100_002), (8, 63), (4, 8)] {
        buffers[row].checked()[offset] ^= 1;
        assert_eq!(verify().first_of_many(), Some((row, offset as u64)));
    }
    assert_eq!(verify().wrong_bytes, 3);
    let (mut result, mut evidence) = ([0_u64, u64::MAX], Evidence::default());
    let evidence_at = (&raw mut evidence) as u64;
    kernels.run("cachalot_verify_many", &[at, SIZES.len() as u64, result.as_mut_ptr() as u64, LAUNCH, evidence_at]);
    let Life { block, generation } = life(4);
    let whole = SIZES[4] as u64 - 8;
    let actual = (life(4).word(1) ^ 1) & (u64::MAX >> (64 - 8 * whole));
    assert_eq!(evidence, Evidence { is_taken: 1, block, generation, word: 1, actual, launch: LAUNCH });
    // Rows of another launch are not written, count as wrong at their beginnings, and are told of.
    let (mut result, mut evidence, mut filled) = ([0_u64, u64::MAX], Evidence::default(), Evidence::default());
    let [evidence_at, filled_at] = [&raw mut evidence, &raw mut filled].map(|evidence| evidence as u64);
    buffers.iter_mut().for_each(|buffer| buffer.checked().fill(0));
    kernels.run("cachalot_fill_many", &[at, SIZES.len() as u64, LAUNCH + 1, filled_at]);
    assert!(buffers.iter_mut().all(|buffer| buffer.checked().iter().all(|&byte| byte == 0)));
    kernels.run("cachalot_verify_many", &[at, SIZES.len() as u64, result.as_mut_ptr() as u64, LAUNCH + 1, evidence_at]);
    assert_eq!(result, [SIZES.len() as u64, 0]);
    let Life { block, generation } = life(0);
    let first = Evidence { is_taken: 1, block, generation, word: LAUNCH + 1, actual: 0, launch: LAUNCH };
    assert_eq!((filled, evidence), (first, first));
}

#[test]
fn findings_of_several_checks_are_summed() {
    let Some(kernels) = Kernels::load() else { return };
    let mut buffer = Buffer::new(100);
    let mut result = [0_u64, u64::MAX];
    for (first, value) in [(40, 1), (20, 2), (60, 3)] {
        buffer.checked().fill(0xdd);
        buffer.checked()[first] = value;
        kernels.run("cachalot_probe", &[buffer.address(), 100, 0xdd, result.as_mut_ptr() as u64]);
    }
    assert_eq!(result, [3, 20]);
}

#[test]
fn the_checksum_matches_rust_and_depends_on_order() {
    let Some(kernels) = Kernels::load() else { return };
    for bytes in SIZES {
        let mut buffer = Buffer::new(bytes);
        kernels.run("cachalot_fill", &[buffer.address(), bytes as u64, LIFE.block, LIFE.generation]);
        let mut sum = 5_u64;
        kernels.run("cachalot_checksum", &[buffer.address(), bytes as u64, (&raw mut sum) as u64]);
        let expected = checksum(buffer.checked());
        assert_eq!(sum, expected.wrapping_add(5), "{bytes} bytes");
        if bytes > 16 {
            buffer.checked().swap(3, 11);
            assert_ne!(checksum(buffer.checked()), expected);
        }
    }
}

#[test]
fn scribble_copy_and_add_write_the_right_bytes() {
    let Some(kernels) = Kernels::load() else { return };
    for bytes in SIZES {
        let (mut from, mut to) = (Buffer::new(bytes), Buffer::new(bytes));
        kernels.run("cachalot_scribble", &[from.address(), bytes as u64, 0x1ab, 50]);
        assert!(from.checked().iter().all(|byte| *byte == 0xab), "{bytes} bytes");
        kernels.run("cachalot_copy", &[to.address(), from.address(), bytes as u64]);
        assert_eq!(to.checked(), from.checked(), "{bytes} bytes");
    }
    let (left, right, mut sum) = ([1.0_f32, 2.0, 3.0], [0.5_f32, 0.25, 4.0], [0.0_f32; 3]);
    let addresses = [sum.as_mut_ptr() as u64, left.as_ptr() as u64, right.as_ptr() as u64];
    kernels.run("cachalot_add", &[addresses[0], addresses[1], addresses[2], 3]);
    assert_eq!(sum.map(f32::to_bits), [1.5_f32, 2.25, 7.0].map(f32::to_bits));
}

#[test]
fn hold_lasts_at_least_as_long_as_requested() {
    let Some(kernels) = Kernels::load() else { return };
    let begin = std::time::Instant::now();
    kernels.run("cachalot_hold", &[2_000]);
    assert!(begin.elapsed().as_micros() >= 2_000);
}
