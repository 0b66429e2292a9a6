//! The maintenance thread, which does what is due without a call of the program: it parks the
//! memory of an idle process, returns memory owed to the group, and answers other processes.

use crate::control::Server;
use crate::serve::process::{Process, process};
use crate::serve::sleeping::Sleeping;
use crate::shared::threads::without_signals;
use cachalot_cuda::{BackgroundWork, log};
use std::sync::Once;
use std::time::{Duration, Instant};

/// The longest and the shortest sleep of the thread between two rounds.
const LONGEST: Duration = Duration::from_secs(1);
const SHORTEST: Duration = Duration::from_millis(5);

/// The shortest time between two looks at the control groups: a look opens some twenty files.
const GROUP_LOOKS: Duration = Duration::from_millis(100);

/// Bytes of the thread's stack. The driver's own calls need some ten KiB.
const STACK: usize = 1 << 20;

impl Process {
    /// Starts the thread of the calling process, at the first call. If the system refuses a thread,
    /// the work is not done.
    pub(super) fn start_maintenance(&self) {
        static STARTED: Once = Once::new();
        if !self.is_whole || self.sleeping.is_none() && self.options.group.is_none() && !self.recorder.is_on() {
            return;
        }
        STARTED.call_once(|| {
            let Some(process) = process() else { return };
            // In the calling thread, so that the process answers as soon as it holds memory. A
            // sanitizer of the program's threads knows nothing of the library's locks, and would
            // report a name of the socket that another thread has stored.
            let is_asked = process.sleeping.is_some() || process.recorder.is_on();
            let server = if is_asked { answer(process) } else { None };
            let _ = without_signals(|| {
                let run = move || maintain(process, server);
                std::thread::Builder::new().name("cachalot-maint".to_owned()).stack_size(STACK).spawn(run)
            });
        });
    }
}

/// Does one round after another, as long as the process lives.
fn maintain(process: &'static Process, mut server: Option<Server>) -> ! {
    let pause = process.sleeping.as_ref().map_or(LONGEST, Sleeping::look_every).clamp(SHORTEST, LONGEST);
    let mut looked = Instant::now();
    loop {
        std::thread::sleep(pause);
        // Once the process has started to exit, the driver may be gone.
        let Some(_work) = BackgroundWork::begin() else { continue };
        process.park_if_idle();
        process.yield_to_group();
        process.give_host_memory_back();
        process.pay();
        if looked.elapsed() >= GROUP_LOOKS {
            looked = Instant::now();
            process.give_to_groups();
        }
        process.charge.all().iter().for_each(|charge| charge.stay_published());
        // The system deletes a user's files at the last logout.
        if server.as_ref().is_some_and(Server::is_out_of_reach) {
            drop(server.take());
            server = answer(process);
        }
    }
}

/// Starts to answer other processes.
fn answer(process: &'static Process) -> Option<Server> {
    let server = Server::start(process.options.name.as_deref(), process);
    server.map_err(|error| log::warning(format_args!("no other process can ask this one: {error}"))).ok()
}
