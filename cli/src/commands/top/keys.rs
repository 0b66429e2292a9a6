//! Keys of a terminal, while a table is shown again and again.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, isatty, tcgetattr, tcgetpgrp, tcsetattr,
};
use std::io::{Stdin, stdin};
use std::time::{Duration, Instant};

/// The bytes that `Ctrl-C` and `Ctrl-D` send.
const INTERRUPT: u8 = 3;
const END: u8 = 4;

/// The action of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wish {
    /// The next table.
    Show,
    /// The end.
    Quit,
    /// Another order of the processes, by the letter of the order.
    Sort(char),
}

/// A terminal that gives each key at once. The drop gives the terminal back as it was.
pub(super) struct Keys {
    input: Stdin,
    before: Termios,
}

impl Keys {
    /// Takes the standard input. `None`: it is no terminal, or belongs to another program in front.
    pub(super) fn new() -> Option<Self> {
        let input = stdin();
        let is_in_front = tcgetpgrp(&input).is_ok_and(|front| front == rustix::process::getpgrp());
        if !isatty(&input) || !is_in_front {
            return None;
        }
        let before = tcgetattr(&input).ok()?;
        let mut now = before.clone();
        // Without signals of keys, which would end the command before the terminal is as it was.
        now.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG);
        now.special_codes[SpecialCodeIndex::VMIN] = 1;
        now.special_codes[SpecialCodeIndex::VTIME] = 0;
        tcsetattr(&input, OptionalActions::Now, &now).ok()?;
        Some(Self { input, before })
    }

    /// Waits for a key that has a meaning, or until the time is over.
    pub(super) fn wait(&self, time: Duration) -> Wish {
        let until = Instant::now() + time;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            let mut ready = [PollFd::new(&self.input, PollFlags::IN)];
            match poll(&mut ready, Some(&left)) {
                Ok(0) => return Wish::Show,
                Err(rustix::io::Errno::INTR) => continue,
                Err(_) => return Wish::Quit,
                Ok(_) => {}
            }
            let mut keys = [0; 64];
            match rustix::io::read(&self.input, &mut keys) {
                // The terminal has gone.
                Ok(0) => return Wish::Quit,
                Ok(count) => {
                    if let Some(wish) = keys[..count].iter().find_map(|&key| meaning(key)) {
                        return wish;
                    }
                }
                Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
                Err(_) => return Wish::Quit,
            }
        }
    }
}

/// Returns the wish of a key. `None`: the key has no meaning.
fn meaning(key: u8) -> Option<Wish> {
    match key {
        b'q' | b'Q' | INTERRUPT | END => Some(Wish::Quit),
        b' ' | b'\n' | b'\r' => Some(Wish::Show),
        b'm' | b'n' | b'p' | b'i' => Some(Wish::Sort(key.into())),
        _ => None,
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        let _ = tcsetattr(&self.input, OptionalActions::Now, &self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::{INTERRUPT, Wish, meaning};

    #[test]
    fn keys_quit_sort_and_show_and_others_do_nothing() {
        for key in [b'q', b'Q', INTERRUPT] {
            assert_eq!(meaning(key), Some(Wish::Quit));
        }
        assert_eq!(meaning(b' '), Some(Wish::Show));
        assert_eq!(meaning(b'p'), Some(Wish::Sort('p')));
        assert_eq!(meaning(b'x'), None);
    }
}
