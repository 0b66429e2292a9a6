//! A watch over the threads: a case in which no thread gets on is a finding.

use crate::abi;
use crate::finding::{self, Origin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Greatest number of watched threads.
const MOST_THREADS: usize = 16;

/// The present operation of each thread.
static PRESENT: [AtomicU64; MOST_THREADS] = [const { AtomicU64::new(0) }; MOST_THREADS];

/// Notes the operation of a thread.
pub(crate) fn note(thread: u32, op: u64) {
    if let Some(present) = PRESENT.get(thread as usize) {
        present.store(op + 1, Ordering::Relaxed);
    }
}

/// Starts the watch over `threads` threads.
pub(crate) fn start(threads: u32, patience: Duration) {
    std::thread::spawn(move || {
        finding::set_origin(Origin { thread: u32::MAX, op: 0 });
        let look = || -> Vec<u64> { PRESENT.iter().map(|present| present.load(Ordering::Relaxed)).collect() };
        let (mut seen, mut since) = (look(), Instant::now());
        loop {
            std::thread::sleep(Duration::from_millis(500));
            let now = look();
            if now != seen {
                (seen, since) = (now, Instant::now());
            } else if since.elapsed() > patience {
                let place =
                    |thread: u32| format!("{thread}:{} in {}", now[thread as usize], abi::present(thread as usize));
                let places: Vec<String> = (0..threads).map(place).collect();
                finding::report("hang", &format!("no progress for {} s: {}", patience.as_secs(), places.join(", ")));
            }
        }
    });
}
