//! Memory of a program, served in place of the driver.
//!
//! [`Process`] has a method for each function in place of the driver's, with the driver's own
//! parameters, and answers the driver's code. A method may be called from every thread, with any
//! context current or none. Everything else is passed on to the real driver.
//!
//! ```text
//! memory · ordered   requests and frees: complete for the host · in the order of a stream
//! describe · handles answers about an address · handles for other processes
//! life · passed      contexts, streams and captures, from begin to end · memory and code of the driver
//! access             memory opened to peers
//! program_maps       memory that the program creates and maps by itself
//! program_memory · program_sleep  the records of such memory · how the memory is parked and woken
//! followed           memory that the program maps by itself and no park moves, to its end
//! program_recipe · program_pieces · program_whole  how it is created · its handles, one or several · one handle again
//! peers              which contexts may access the memory of others
//! controlled         the process as other processes park, wake and ask it
//! maintenance        the thread that does what is due without a call
//! parking            the memory of the process, parked and woken
//! sleeping           the figures of a process's sleep
//! turns              a wait for memory of a group whose members are parked for each other
//! launches           first launches, at which the driver loads code
//! signs              what a launch reads before it goes to the driver
//! process            the state of a process, and which way a call goes
//! contexts           the allocator of a thread, and the owner of an address
//! served             the allocator of a context
//! device             a context as the device of an allocator
//! frees              when freed memory may be given out again
//! notes              numbers, flags and handles of blocks
//! pools              which default pools of the driver are served
//! pool_memory · pool_calls  what other pools keep · calls about pools
//! pool_attributes    what a program is told about a served pool
//! observed           the memory of an observing process, recorded
//! published          handles of blocks, published for other processes
//! recorder           the latest events, in a file after a failed request
//! ```
//!
//! # The rules of a served free
//! * A block is unchanged until all work submitted by the process before the free is complete.
//! * A new block is complete for the host: every stream may use the block at once.
//! * A failed context answers with the failure's code at every call.

mod access;
mod contexts;
mod controlled;
mod describe;
mod device;
mod followed;
mod frees;
mod handles;
mod launches;
mod life;
mod maintenance;
mod memory;
mod notes;
mod observed;
mod ordered;
mod parking;
mod passed;
mod peers;
mod pool_attributes;
mod pool_calls;
mod pool_memory;
mod pools;
mod process;
mod program_maps;
mod program_memory;
mod program_pieces;
mod program_recipe;
mod program_sleep;
mod program_whole;
mod published;
mod recorder;
mod served;
mod signs;
mod sleeping;
mod turns;

pub use launches::is_first_launch;
pub use process::{Counts, Process, enter, process};
pub use signs::{fast_guard, may_sleep, tells_first_launches};
pub use sleeping::SleepFigures;
