//! Pieces of work: what a stream queues and a graph replays, and how one is done.

use crate::call::Call;
use crate::code::Code;
use crate::context;
use crate::memory;
use crate::space::Space;
use crate::thread;
use std::ffi::c_void;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// A host function queued with `cuLaunchHostFunc`.
pub(crate) type HostFunction = unsafe extern "C" fn(*mut c_void);
/// A kernel of a host object: pointers to its arguments, number of blocks, threads of a block.
pub(crate) type PlainKernel = unsafe extern "C" fn(*mut *mut c_void, u32, u32);
/// A `__global__` function that was compiled for the host: pointers to its arguments; grid and block, three sizes each.
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

/// The arguments of a launch, each in whole slots, which are aligned for every type.
#[derive(Clone, Debug)]
pub(crate) struct Arguments {
    pub(crate) slots: Arc<[u128]>,
    /// Where each argument begins.
    pub(crate) starts: Arc<[usize]>,
}

/// A part of a region of device memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Span {
    /// Where the region begins.
    pub(crate) region: u64,
    /// Where the part begins in it.
    pub(crate) offset: u64,
    /// How long it is.
    pub(crate) bytes: u64,
}

/// When a piece of work was done, once it was.
pub(crate) type Stamp = Arc<OnceLock<Instant>>;

/// A piece of work as it was queued: device addresses are the program's.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    /// Only a point in the stream's order.
    Nothing,
    /// Note the time.
    Stamp(Stamp),
    /// Memory of a pool begins to be memory.
    Expose(Span),
    /// Memory that is being freed ends to be memory.
    Withdraw(Span),
    /// Fill with a byte.
    Fill { device: usize, address: u64, bytes: u64, value: u8 },
    /// Copy.
    Copy { to: Place, from: Place, bytes: u64 },
    /// Call a host function with its argument.
    Call { function: HostFunction, argument: u64 },
    /// Run a kernel.
    Kernel { code: KernelCode, arguments: Arguments, addresses: u64, shape: Shape },
    /// Run these in order.
    Graph(Arc<[Work]>),
    /// Break the context.
    Fail(Code),
}

/// One end of a copy.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// Device memory, as that device sees it.
    Device { device: usize, address: u64 },
    /// Host memory.
    Host(u64),
    /// What the host memory held when the copy was queued.
    Kept(Arc<[u8]>),
}

/// Work ready to be done: every address as the thread that runs it may use it.
#[derive(Debug)]
pub(crate) enum Task {
    Fill { at: u64, bytes: usize, value: u8 },
    Copy { to: u64, from: u64, bytes: usize, kept: Option<Arc<[u8]>> },
    Stamp(Stamp),
    Expose(Span),
    Withdraw(Span),
    Call { function: HostFunction, argument: u64 },
    Kernel { code: KernelCode, slots: Vec<u128>, starts: Arc<[usize]>, shape: Shape },
    Fail(Code),
}

impl Work {
    /// The tasks of this work on a stream of `device`.
    pub(crate) fn tasks(&self, device: usize, space: &Space) -> Vec<Task> {
        match self {
            Self::Nothing => Vec::new(),
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
            Self::Graph(parts) => parts.iter().flat_map(|part| part.tasks(device, space)).collect(),
            &Self::Fail(code) => vec![Task::Fail(code)],
        }
    }
}

impl Place {
    /// The address that the running thread uses.
    fn at(&self, space: &Space) -> u64 {
        match self {
            &Self::Device { device, address } => space.seen_by(device, address),
            &Self::Host(address) => address,
            Self::Kept(data) => data.as_ptr() as u64,
        }
    }
}

/// Does the tasks on the calling thread, for a stream of `context`. The state must not be locked.
pub(crate) fn run(tasks: Vec<Task>, context: u64) {
    thread::running_for(context, || tasks.into_iter().for_each(run_one));
}

/// Does one task.
fn run_one(task: Task) {
    match task {
        Task::Fill { at, bytes, value } => {
            // SAFETY: the range was device memory when queued, and lies outside every Rust object; if the program
            // freed it since, the fault that follows is what this library is to show.
            unsafe { libc::memset(at as *mut c_void, i32::from(value), bytes) };
        }
        Task::Copy { to, from, bytes, kept } => {
            // SAFETY: as for a fill; host ranges are the caller's promise, as with the real function.
            unsafe { libc::memmove(to as *mut c_void, from as *const c_void, bytes) };
            drop(kept);
        }
        Task::Stamp(stamp) => {
            stamp.get_or_init(Instant::now);
        }
        Task::Expose(span) => {
            let exposed = memory::expose(&mut Call::open().state, span);
            exposed.expect("the system maps what it gave");
        }
        Task::Withdraw(span) => memory::withdraw(&mut Call::open().state, span),
        Task::Call { function, argument } => {
            // SAFETY: the caller of cuLaunchHostFunc promised a function that takes this argument.
            thread::as_host_function(|| unsafe { function(argument as *mut c_void) });
        }
        Task::Kernel { code, mut slots, starts, shape } => {
            let first = slots.as_mut_ptr();
            let mut pointers: Vec<*mut c_void> = starts.iter().map(|&start| first.wrapping_add(start).cast()).collect();
            let Shape { grid, block } = shape;
            match code {
                KernelCode::Plain(kernel) => {
                    let (blocks, threads) = (grid.iter().product(), block.iter().product());
                    // SAFETY: the object that defines the kernel declared that it takes this number of 8-byte arguments.
                    unsafe { kernel(pointers.as_mut_ptr(), blocks, threads) };
                }
                KernelCode::Global(kernel) => {
                    let sizes = [grid, block].concat();
                    // SAFETY: the object that defines the kernel declared the sizes of its arguments.
                    unsafe { kernel(pointers.as_mut_ptr(), sizes.as_ptr()) };
                }
            }
        }
        Task::Fail(code) => raise(code),
    }
}

/// Breaks the context whose work the calling thread runs, as a faulting kernel does.
pub(crate) fn raise(code: Code) {
    let mut call = Call::open();
    context::break_down(&mut call.state, thread::running(), code);
    call.changed();
}
