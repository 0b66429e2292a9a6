//! `cachalot park`, `wake`, `trim` and `status`: a process leaves the GPU, comes back, gives back
//! what it does not use, and says how it is.

mod answers;
mod ask;
mod status;
mod trim;

pub(crate) use ask::{ParkArgs, WakeArgs, park, wake};
pub(crate) use status::{StatusArgs, status};
pub(crate) use trim::{TrimArgs, trim};
