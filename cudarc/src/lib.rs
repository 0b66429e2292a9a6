//! Device memory of [cachalot] for programs over [cudarc].
//!
//! A [`Pool`] serves the requests of one context of cudarc. Copies, launches and views take a
//! [`CachalotSlice`] in place of a [`CudaSlice`](cudarc::driver::CudaSlice).
//!
//! ```no_run
//! use cachalot_cudarc::{Config, Pool};
//! use cudarc::driver::CudaContext;
//!
//! let context = CudaContext::new(0)?;
//! let stream = context.new_stream()?;
//! let pool = Pool::new(&context, &Config::parse("policy:stitched")?)?;
//! let mut numbers = pool.alloc_zeros::<f32>(&stream, 1000)?;
//! stream.memcpy_htod(&[1.0; 1000], &mut numbers)?;
//! assert_eq!(stream.clone_dtoh(&numbers)?, vec![1.0; 1000]);
//! drop(numbers); // freed behind the copies, and served again without the driver
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A slice belongs to the stream of the request. cudarc orders the work of several streams on a
//! slice with two events of the slice, and the drop of a slice orders the slice's stream after both
//! events. After [`disable_event_tracking`](cudarc::driver::CudaContext::disable_event_tracking)
//! there are no events, and a program announces the uses of other streams with
//! [`CachalotSlice::record_stream`].

mod pool;
mod slice;

pub use cachalot::Config;
pub use pool::{DEVICE, Pool, RequestError};
pub use slice::CachalotSlice;
