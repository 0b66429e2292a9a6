//! Churn: creates and destroys streams, threads, pools and blocks in great numbers, and checks that
//! host memory stays flat.

mod library;
mod memory;
mod phases;
mod source;

use crate::options::ChurnOptions;
use library::{Answer, Library};
use memory::Progress;
use parking_lot::Mutex;
use phases::Scene;
use source::Source;
use std::ffi::c_int;
use std::process::ExitCode;

/// The work of one thread of a phase, identified by a number.
type Phase = fn(&Scene, &Progress, u64) -> Answer;

/// Runs every requested phase, each with a new allocator, and prints the faults.
pub(crate) fn churn(options: &ChurnOptions) -> ExitCode {
    let all: [(&str, u64, Phase); 4] = [
        ("streams", options.streams, phases::streams),
        ("threads", options.threads, phases::threads),
        ("pools", options.pools, phases::pools),
        ("operations", options.ops, phases::blocks),
    ];
    let mut status = ExitCode::SUCCESS;
    for (name, total, phase) in all.into_iter().filter(|&(_, total, _)| total > 0) {
        let scene = match set_up(options) {
            Ok(scene) => scene,
            Err(error) => {
                eprintln!("{error}");
                return ExitCode::from(crate::setup::NOT_BEGUN);
            }
        };
        let progress = Progress::new(name, total, options.bound_kib);
        if let Err(why) = run(&scene, &progress, phase, options.workers, total) {
            eprintln!("{progress}: {why}");
            status = ExitCode::FAILURE;
        }
    }
    status
}

/// Creates the allocator, and a permanent stream of each device.
fn set_up(options: &ChurnOptions) -> Answer<Scene> {
    let devices = options.devices;
    let source = if options.simulated { Source::simulated() } else { Source::driver(devices)? };
    let library = Library::create(devices, options.simulated, options.asked, &options.config)?;
    let permanent = (0..devices as c_int).map(|device| source.make(device)).collect::<Result<_, _>>()?;
    Ok(Scene { library, source, devices, reported: !options.asked, permanent, held: options.held })
}

/// Runs a phase on several threads, and checks that all memory is released afterwards.
fn run(scene: &Scene, progress: &Progress, phase: Phase, workers: u32, total: u64) -> Answer {
    let wrong = Mutex::new(None);
    std::thread::scope(|scope| {
        for worker in 0..u64::from(workers) {
            let wrong = &wrong;
            scope.spawn(move || {
                if let Err(why) = phase(scene, progress, worker) {
                    progress.stop();
                    wrong.lock().get_or_insert(why);
                }
            });
        }
    });
    if let Some(why) = wrong.into_inner() {
        return Err(why);
    }
    scene.finish()?;
    progress.measure(total)?;
    scene.library.destroy()
}
