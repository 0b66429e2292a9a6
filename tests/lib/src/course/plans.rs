//! Iterations, plans, and settings changed under way.

use super::{Course, note, stream};
use crate::host::DEVICE;
use crate::program::CONFIGS;
use cachalot_core::Host as _;
use cachalot_planner::greedy::Greedy;
use cachalot_planner::{Algorithm, Plan};

impl Course {
    /// Runs one program several times, with a deviation now and then.
    pub(super) fn plans(&mut self) {
        if self.random.u8(..6) == 0 {
            self.told("plans up", self.allocator.plans(DEVICE).unwrap().give_up());
        }
        let seed = self.random.u64(..);
        let length = self.random.u32(4..16);
        for _ in 0..self.random.u8(3..6) {
            self.announce();
            let before = self.held.len();
            let mut body = fastrand::Rng::with_seed(seed);
            for _ in 0..length {
                let largest = 1 << body.u32(8..23);
                let (bytes, number) = (1 + body.u64(..largest), [0, 0, 0, 1, 2][body.usize(..5)]);
                let is_freed = body.bool();
                match self.random.u8(..30) {
                    0 => self.malloc(bytes * 2, stream(number)),
                    1 => continue,
                    _ => self.malloc(bytes, stream(number)),
                }
                self.look(before);
                if is_freed && self.held.len() > before {
                    let held = self.held.remove(body.usize(before..self.held.len()));
                    self.told("free", self.allocator.free(held.ptr));
                }
            }
            while self.held.len() > before {
                let held = self.held.pop().expect("longer than before");
                self.told("free", self.allocator.free(held.ptr));
            }
            note!(self, "planned Ok({:?})", self.allocator.plans(DEVICE).unwrap().report());
        }
        self.announce();
    }

    /// Asks about the latest block, behind the first `before`, or reports a use.
    fn look(&mut self, before: usize) {
        let Some(&held) = self.held[before..].last() else { return };
        let other = self.stream();
        match self.random.u8(..32) {
            0 => {
                let inside = held.ptr.offset(self.random.u64(..held.bytes));
                self.told("base", self.allocator.base_of(inside));
                self.told("explained", self.allocator.explain(inside));
            }
            1 => {
                self.told("own use", self.allocator.record_stream(held.ptr, held.stream));
            }
            2 => {
                self.told("other use", self.allocator.record_stream(held.ptr, other));
            }
            3 => {
                self.told("forecast", self.allocator.forecast(DEVICE).unwrap().malloc(held.bytes, held.stream));
            }
            4 => {
                self.told("no block", self.allocator.free(held.ptr.offset(256)));
            }
            _ => {}
        }
    }

    /// Repeats a phase that uses its blocks once, with pauses and upkeep in between, for
    /// `reclaim:auto` to learn from.
    pub(super) fn phases(&mut self) {
        let seed = self.random.u64(..);
        let period_us = 1 << self.random.u32(10..24);
        for _ in 0..self.random.u8(2..9) {
            let before = self.held.len();
            let mut body = fastrand::Rng::with_seed(seed);
            for _ in 0..body.u8(1..6) {
                let (bytes, number) = (1 + body.u64(..1 << 25), usize::from(body.u8(..8) == 0));
                self.malloc(bytes, stream(number));
                if body.bool() && self.held.len() > before {
                    self.launch(self.held.len() - 1);
                }
            }
            while self.held.len() > before {
                let held = self.held.pop().expect("longer than before");
                self.told("free", self.allocator.free(held.ptr));
            }
            if self.random.u8(..4) > 0 {
                (0..2).for_each(|number| self.device().complete(stream(number)));
            }
            for _ in 0..self.random.u8(1..5) {
                self.upkeep(period_us);
            }
        }
        let pause_us = period_us * self.random.u64(1..40);
        self.upkeep(pause_us);
        let most_us = 1 << self.random.u32(..26);
        self.upkeep(most_us);
    }

    /// Lets time pass, and keeps the memory in order.
    fn upkeep(&mut self, us: u64) {
        note!(self, "pause {}", self.device().pause(us));
        let pages = self.allocator.pages(DEVICE).expect("there is one device");
        let most_us = [0, 60, 300, 10_000, u64::MAX][self.random.usize(..5)];
        let (maintained, stats) = (pages.maintain(most_us), pages.reclaim_stats());
        note!(self, "upkeep {maintained:?} Ok({stats:?})");
    }

    /// Announces an iteration, and plans the observed iteration.
    fn announce(&mut self) {
        self.told("iteration", self.allocator.plans(DEVICE).unwrap().end_iteration());
        let Some(observed) = self.allocator.plans(DEVICE).unwrap().observed() else { return };
        note!(self, "{observed:?}");
        let plan = |problem| Greedy::Size.plan(problem, &mut ()).expect("nobody stops it");
        let plans: Vec<Plan> = observed.streams.iter().map(|stream| plan(&stream.problem)).collect();
        self.told("adopted", self.allocator.plans(DEVICE).unwrap().adopt(observed, &plans));
    }

    pub(super) fn settings(&mut self) {
        let text = CONFIGS[self.random.usize(..CONFIGS.len())];
        let further = cachalot_policies::parse(text).expect("every configuration here is valid");
        let tuning = self.allocator.tuning(DEVICE).expect("there is one device");
        let serial = tuning.window().serial;
        let bytes = self.random.u64(..1 << 30);
        match self.random.u8(..6) {
            0 => self.allocator.configure(&further),
            1 => self.allocator.configure(&self.config),
            2 | 3 => {
                let changed = tuning.put_in_force(&further, serial, bytes);
                note!(self, "tuned {changed:?}");
            }
            4 => {
                let back = tuning.take_back(&self.config, serial, bytes);
                note!(self, "taken back {back:?}");
            }
            _ => {
                let (back, window) = (tuning.give_back(), tuning.window());
                note!(self, "given back {back:?} Ok({window:?})");
            }
        }
        let tuning = self.allocator.tuning(DEVICE).expect("there is one device");
        let (is_possible, own, report) = (tuning.is_possible(), tuning.own_config(), tuning.report());
        note!(
            self,
            "settings (Ok({is_possible:?}), Ok({own:?}), Ok({report:?})) {:?}",
            self.allocator.settings(DEVICE).map(|settings| settings.config())
        );
    }
}
