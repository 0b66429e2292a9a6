//! Pieces of work: entries of a stream's queue and of a graph, and the tasks that a thread runs.

use crate::backing::space::Space;
use crate::tables::watch::Watch;
use crate::values::code::Code;
use std::ffi::c_void;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// A host function queued with `cuLaunchHostFunc`.
pub(crate) type HostFunction = unsafe extern "C" fn(*mut c_void);
/// A kernel of a host object, called with pointers to the arguments, the number of blocks, and the
/// threads of a block.
pub(crate) type PlainKernel = unsafe extern "C" fn(*mut *mut c_void, u32, u32);
/// A `__global__` function compiled for the host, called with pointers to the arguments, and with
/// grid and block, three sizes each.
pub(crate) type GlobalKernel = unsafe extern "C" fn(*mut *mut c_void, *const u32);

/// The code of a kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) enum KernelCode {
    Plain(PlainKernel),
    Global(GlobalKernel),
}

/// The shape of a launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
}

/// The arguments of a launch. Each argument has whole slots, which are aligned for every type.
#[derive(Clone, Debug)]
pub(crate) struct Arguments {
    pub(crate) slots: Arc<[u128]>,
    /// Start of each argument.
    pub(crate) starts: Arc<[usize]>,
}

/// A part of a region of device memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Span {
    /// Start of the region.
    pub(crate) region: u64,
    /// Start of the part within the region.
    pub(crate) offset: u64,
    /// Length of the part.
    pub(crate) bytes: u64,
}

/// The time at which a piece of work was done, once done.
pub(crate) type Stamp = Arc<OnceLock<Instant>>;

/// A piece of work in a queue, with the program's device addresses.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    /// Only a point in the stream's order.
    Nothing,
    /// Record the time.
    Stamp(Stamp),
    /// Map memory of a pool at an allocation.
    Expose(Span),
    /// Unmap memory of a pool at a free.
    Withdraw(Span),
    /// Fill with four bytes, again and again.
    Fill { device: usize, address: u64, bytes: u64, value: [u8; 4] },
    /// Copy.
    Copy { to: Place, from: Place, bytes: u64 },
    /// Call a host function with an argument.
    Call { function: HostFunction, argument: u64 },
    /// Run a kernel.
    Kernel { code: KernelCode, arguments: Arguments, addresses: u64, shape: Shape },
    /// Wait for a number in memory.
    Await(Watch),
    /// Do pieces of work in order.
    Several(Arc<[Work]>),
    /// Break the context.
    Fail(Code),
}

/// An end of a copy.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// Device memory, in the view of `device`.
    Device { device: usize, address: u64 },
    /// Host memory.
    Host(u64),
    /// The contents of host memory at the time of queueing.
    Kept(Arc<[u8]>),
}

/// Work ready to run, with all addresses translated for the running thread.
#[derive(Debug)]
pub(crate) enum Task {
    Fill { at: u64, bytes: usize, value: [u8; 4] },
    Copy { to: u64, from: u64, bytes: usize, kept: Option<Arc<[u8]>> },
    Stamp(Stamp),
    Expose(Span),
    Withdraw(Span),
    Call { function: HostFunction, argument: u64 },
    Kernel { code: KernelCode, slots: Vec<u128>, starts: Arc<[usize]>, shape: Shape },
    Fail(Code),
}

impl Work {
    /// Returns pieces of work in order as one.
    pub(crate) fn in_order(pieces: Vec<Self>) -> Self {
        match <[Self; 1]>::try_from(pieces) {
            Ok([piece]) => piece,
            Err(pieces) => Self::Several(pieces.into()),
        }
    }

    /// Returns whether the work may start: work that waits for a number in memory starts once the
    /// number is there.
    pub(crate) fn is_due(&self) -> bool {
        if let Self::Await(watch) = self { watch.is_over() } else { true }
    }

    /// Returns the pieces of work if a piece waits for memory.
    pub(crate) fn pieces_with_a_wait(&self) -> Option<Arc<[Self]>> {
        let Self::Several(pieces) = self else { return None };
        let waits = |piece: &Self| matches!(piece, Self::Await(_)) || piece.pieces_with_a_wait().is_some();
        pieces.iter().any(waits).then(|| Arc::clone(pieces))
    }

    /// Returns the tasks of the work on a stream of `device`.
    pub(crate) fn tasks(&self, device: usize, space: &Space) -> Vec<Task> {
        match self {
            Self::Nothing | Self::Await(_) => Vec::new(),
            Self::Stamp(stamp) => vec![Task::Stamp(Arc::clone(stamp))],
            &Self::Expose(span) => vec![Task::Expose(span)],
            &Self::Withdraw(span) => vec![Task::Withdraw(span)],
            &Self::Fill { device, address, bytes, value } => {
                vec![Task::Fill { at: space.seen_by(device, address), bytes: bytes as usize, value }]
            }
            Self::Copy { to, from, bytes } => {
                let kept = if let Place::Kept(data) = from { Some(Arc::clone(data)) } else { None };
                vec![Task::Copy { to: to.at(space), from: from.at(space), bytes: *bytes as usize, kept }]
            }
            &Self::Call { function, argument } => vec![Task::Call { function, argument }],
            Self::Kernel { code, arguments, addresses, shape } => {
                let mut slots = arguments.slots.to_vec();
                let is_address = |index: usize| index < 64 && addresses >> index & 1 == 1;
                for (_, &start) in arguments.starts.iter().enumerate().filter(|&(index, _)| is_address(index)) {
                    slots[start] = space.seen_by(device, slots[start] as u64).into();
                }
                vec![Task::Kernel { code: *code, slots, starts: Arc::clone(&arguments.starts), shape: *shape }]
            }
            Self::Several(pieces) => pieces.iter().flat_map(|piece| piece.tasks(device, space)).collect(),
            &Self::Fail(code) => vec![Task::Fail(code)],
        }
    }
}

impl Place {
    /// Returns the address for the running thread.
    fn at(&self, space: &Space) -> u64 {
        match self {
            &Self::Device { device, address } => space.seen_by(device, address),
            &Self::Host(address) => address,
            Self::Kept(data) => data.as_ptr() as u64,
        }
    }
}
