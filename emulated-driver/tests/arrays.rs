//! Arrays take memory of the device, and give it back.

use crate::common::{Emulated, PAGE};
use cachalot_emulated_driver::api::{ArrayShape, Given, SolidShape};

/// Creates an array of floats.
fn flat(driver: &Emulated, width: usize, height: usize) -> Given<u64> {
    let mut array = 0;
    let shape = ArrayShape { width, height, format: 0x20, channels: 4 };
    match driver.cuArrayCreate_v2(&mut array, &shape) {
        0 => Ok(array),
        code => Err(code),
    }
}

#[test]
fn an_array_takes_whole_pages_until_it_is_destroyed() {
    let driver = Emulated::new();
    let free = || driver.info().expect("info").0;
    let before = free();
    let array = flat(&driver, 1024, 256).expect("memory");
    assert_eq!(before - free(), 2 * PAGE);
    let mut solid = 0;
    let shape = SolidShape { width: 512, height: 512, depth: 8, format: 1, channels: 1, flags: 1 };
    assert_eq!((driver.cuArray3DCreate_v2(&mut solid, &shape), before - free()), (0, 3 * PAGE));
    let mut levels = 0;
    assert_eq!((driver.cuMipmappedArrayCreate(&mut levels, &shape, 2), before - free()), (0, 5 * PAGE));
    assert_eq!((driver.cuMipmappedArrayDestroy(array), driver.cuArrayDestroy(levels)), (400, 400));
    assert_eq!((driver.cuArrayDestroy(array), driver.cuArrayDestroy(array)), (0, 400));
    assert_eq!((driver.cuArrayDestroy(solid), driver.cuMipmappedArrayDestroy(levels), free()), (0, 0, before));
}

#[test]
fn an_array_ends_with_its_context() {
    let driver = Emulated::new();
    let before = driver.info().expect("info").0;
    let mut context = 0;
    assert_eq!(driver.cuCtxCreate_v2(&mut context, 0, 0), 0);
    flat(&driver, 4096, 4096).expect("memory");
    assert_eq!((driver.count("arrays"), driver.cuCtxDestroy_v2(context)), (1, 0));
    assert_eq!((driver.count("arrays"), driver.info().expect("info").0), (0, before));
}

#[test]
fn wrong_shapes_and_too_large_arrays_are_refused() {
    let driver = Emulated::new();
    assert_eq!(
        (flat(&driver, 0, 1), flat(&driver, 1 << 30, 1 << 30), flat(&driver, 1 << 30, 4)),
        (Err(1), Err(2), Err(2))
    );
    let shape = SolidShape { width: 8, height: 8, depth: 0, format: 1, channels: 1, flags: 0 };
    let code = |shape| driver.cuArray3DCreate_v2(&mut 0, &shape);
    assert_eq!((code(SolidShape { format: 7, ..shape }), code(SolidShape { channels: 3, ..shape })), (1, 1));
    assert_eq!(
        (code(SolidShape { height: 0, depth: 1, ..shape }), code(SolidShape { flags: 1 << 9, ..shape })),
        (1, 1)
    );
    assert_eq!(driver.cuMipmappedArrayCreate(&mut 0, &shape, 0), 1);
}
