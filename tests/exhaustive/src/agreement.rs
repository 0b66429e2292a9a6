//! The naive model beside the core: every call of a letter is made on both, and the states are
//! compared.

use crate::letter::Letter;
use crate::world::{Step, World, stream};
use cachalot_core::{DevicePtr, Route, SnapshotSegment};
use cachalot_tests::model::agreement;
use cachalot_tests::model::{Answer, Model, Purpose, Refusal};

impl World {
    /// Makes the call of a step on the model, if the setting has a model. Returns the model's
    /// answer.
    pub fn follow(&mut self, step: &Step) -> Option<Answer<DevicePtr>> {
        let mut model = self.model.take()?;
        let given = core::mem::take(&mut self.device().books().given);
        model.device.script_addresses(given);
        let answer = follow(&mut model, self, step, self.pool);
        self.model = Some(model);
        Some(answer)
    }

    /// Compares core and model behind a step, if the setting has a model: the answers and the
    /// segments.
    ///
    /// # Errors
    /// A message with the difference.
    pub fn agree(&mut self, step: &Step, snapshot: &[SnapshotSegment]) -> Result<(), String> {
        let Some(answer) = self.follow(step) else { return Ok(()) };
        agreement::of_answers(&step.answer, &answer)?;
        let of_model = self.model.as_ref().map(Model::snapshot).unwrap_or_default();
        agreement::of_segments(snapshot, &of_model)
    }
}

/// Makes the call of a step on the model.
fn follow(model: &mut Model, world: &World, step: &Step, pool: Option<cachalot_core::PoolId>) -> Answer<DevicePtr> {
    let none = |answer: Answer<()>| answer.map(|()| DevicePtr::NULL);
    match (step.letter, &step.block, pool) {
        (Letter::Malloc(size, on), ..) => {
            let bytes = world.setting.sizes[usize::from(size)];
            let ptr = model.malloc(bytes, stream(on))?;
            if world.capture != Some(on) {
                work(model, on, ptr, bytes)?;
            }
            Ok(ptr)
        }
        (Letter::Free(_), Some(block), _) => none(model.free(block.ptr, None)),
        (Letter::Record(_), Some(block), _) => {
            let other = stream(1 - block.stream);
            if !block.is_captured && world.capture.is_none() {
                // The program orders its streams on the device of the model, too.
                model.device.order(other, stream(block.stream))?;
                work(model, 1 - block.stream, block.ptr, block.bytes)?;
            }
            none(model.record_stream(block.ptr, other))
        }
        (Letter::Complete(on), ..) => {
            model.device.complete(stream(on));
            Ok(DevicePtr::NULL)
        }
        (Letter::Begin(on), _, Some(pool)) => {
            let begun = model.begin_route(pool, Route::Stream(stream(on)), Purpose::Capture);
            model.set_capturing(stream(on), true);
            none(begun)
        }
        (Letter::End, _, Some(pool)) => {
            (0..2).filter(|&on| model.captures(stream(on))).collect::<Vec<_>>().into_iter().for_each(|on| {
                model.set_capturing(stream(on), false);
            });
            let ended = model.end_route(pool, Purpose::Capture).map(|_| ());
            none(ended.and_then(|()| model.release_pool(pool)))
        }
        (Letter::Empty, ..) => none(model.empty_cache()),
        (Letter::Caching(on), ..) => {
            model.set_caching(on);
            Ok(DevicePtr::NULL)
        }
        _ => Err(Refusal::Unexpected),
    }
}

/// Queues the program's work on the device of the model, too: a wait of a stream is over with the
/// work behind the wait, so without work the model would take later events for incomplete.
fn work(model: &Model, on: u8, at: DevicePtr, bytes: u64) -> Answer<()> {
    model.device.launch(stream(on), at, bytes).map_err(|_| Refusal::Unexpected)
}
