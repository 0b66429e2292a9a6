//! Memory of a program that calls the driver, served.
//!
//! [`Process`] has one method for each function that stands in place of the driver's, with the
//! driver's own parameters, and answers the driver's code. A method may be called from every thread,
//! with any context current or none. What is not served is passed on to the real driver.
//!
//! ```text
//! memory · ordered   requests and frees: complete for the host · in the order of a stream
//! describe · handles what a program asks about an address · handles for other processes
//! life · passed      contexts, streams and captures that come and go · memory and code of the driver itself
//! process            the state of a process, and which way a call goes
//! contexts           which allocator serves a thread, and which one owns an address
//! served             the allocator of one context
//! device             a context as the device of an allocator
//! frees              when freed memory may be given out again
//! notes              what is kept about a block beside its place
//! pools              which default pools of the driver are served
//! observed           the memory of a process that only observes, recorded
//! published          handles of blocks, published for other processes
//! ```
//!
//! # The rules of a served free
//! * A block is unchanged until all work is complete that the process had submitted before the free.
//! * A block is complete for the host when it is given out: every stream may use it at once.
//! * A failed context answers its code at every call.

mod contexts;
mod describe;
mod device;
mod frees;
mod handles;
mod life;
mod memory;
mod notes;
mod observed;
mod ordered;
mod passed;
mod pools;
mod process;
mod published;
mod served;

pub use process::{Counts, Process, process};
