//! A thread for what is due without a call of the program: memory of an idle process is parked, memory owed to the group goes back,
//! and other processes find a way in.

use crate::control::Server;
use crate::serve::process::{Process, process};
use crate::serve::sleeping::Sleeping;
use crate::shared::threads::without_signals;
use cachalot_cuda::{BackgroundWork, log};
use std::sync::Once;
use std::time::Duration;

/// How long the thread sleeps at most between two looks, and at least.
const LONGEST: Duration = Duration::from_secs(1);
const SHORTEST: Duration = Duration::from_millis(5);

/// Bytes of the thread's stack. The driver's own calls need some ten KiB.
const STACK: usize = 1 << 20;

impl Process {
    /// Starts the thread of the calling process, at the first call. A system without another thread leaves the work undone.
    pub(super) fn start_keeper(&self) {
        static STARTED: Once = Once::new();
        if !self.is_whole || self.sleeping.is_none() && self.options.group.is_none() {
            return;
        }
        STARTED.call_once(|| {
            let _ = without_signals(|| {
                std::thread::Builder::new().name("cachalot-keeper".to_owned()).stack_size(STACK).spawn(|| {
                    if let Some(process) = process() {
                        keep(process);
                    }
                })
            });
        });
    }
}

/// Looks again and again, as long as the process lives.
fn keep(process: &'static Process) -> ! {
    let mut server = process.sleeping.as_ref().and_then(|_| answer(process));
    let pause = process.sleeping.as_ref().map_or(LONGEST, Sleeping::look_every).clamp(SHORTEST, LONGEST);
    loop {
        std::thread::sleep(pause);
        // Once exit has begun, the driver may be gone.
        let Some(_work) = BackgroundWork::begin() else { continue };
        process.park_if_idle();
        process.yield_to_group();
        process.give_host_memory_back();
        process.pay();
        process.charge.all().iter().for_each(|charge| charge.stay_published());
        // The files of a user go at the user's last logout.
        if server.as_ref().is_some_and(Server::is_out_of_reach) {
            drop(server.take());
            server = answer(process);
        }
    }
}

/// Begins to answer other processes.
fn answer(process: &'static Process) -> Option<Server> {
    let server = Server::start(process.options.name.as_deref(), process);
    server.map_err(|error| log::warning(format_args!("no other process can park this one: {error}"))).ok()
}
