//! Libraries of kernels, and the ways to make a graph executable.

use crate::common::{Emulated, in_child, is_child, text};
use crate::kernels::Object;
use cachalot_emulated_driver::api::InstantiateParams;
use std::ffi::CStr;

/// Loads a library from an image.
fn library(driver: &Emulated, image: Option<&CStr>) -> (u32, u64) {
    let (mut library, image) = (0, image.map_or(std::ptr::null(), |image| image.as_ptr().cast()));
    let (options, values) = (std::ptr::null_mut(), std::ptr::null_mut());
    (driver.cuLibraryLoadData(&mut library, image, options, values, 0, options, values, 0), library)
}

#[test]
fn a_library_has_one_module_and_kernels_that_run() {
    let object = Object::new("library");
    let driver = Emulated::new();
    let (code, library) = library(&driver, Some(&object.image()));
    assert_eq!(code, 0);
    let (mut first, mut second, mut kernel, mut function) = (0, 0, 0, 0);
    assert_eq!(
        (driver.cuLibraryGetModule(&mut first, library), driver.cuLibraryGetModule(&mut second, library)),
        (0, 0)
    );
    assert_eq!(first, second);
    assert_eq!(driver.cuModuleUnload(first), 800, "the module belongs to the library");
    assert_eq!(driver.cuLibraryGetKernel(&mut kernel, library, c"write".as_ptr()), 0);
    assert_eq!(driver.cuLibraryGetKernel(&mut kernel, library, c"nothing".as_ptr()), 500);
    assert_eq!(driver.cuKernelGetFunction(&mut function, kernel), 0);
    assert_eq!(driver.cuModuleGetFunction(&mut function, first, c"write".as_ptr()), 0);
    let address = driver.alloc(24).expect("memory");
    for launched in [kernel, function] {
        let arguments = [address, 5];
        let mut params = arguments.each_ref().map(|argument| std::ptr::from_ref(argument).cast_mut().cast());
        let launch = driver.cuLaunchKernel(launched, 2, 1, 1, 4, 1, 1, 0, 0, params.as_mut_ptr(), std::ptr::null_mut());
        assert_eq!((launch, driver.cuCtxSynchronize()), (0, 0));
        assert_eq!(driver.read(address, 24).map(|bytes| (bytes[0], bytes[8], bytes[16])), Ok((5, 2, 4)));
        assert_eq!(driver.write(address, &[0; 24]), 0);
    }
    assert_eq!((driver.cuLibraryUnload(library), driver.cuLibraryUnload(library)), (0, 400));
    assert_eq!((driver.cuLibraryGetModule(&mut first, library), driver.cuLibraryUnload(0)), (400, 400));
    assert_eq!((driver.count("libraries"), driver.count("modules")), (0, 0));
}

#[test]
fn a_wrong_image_is_found_when_the_library_is_used() {
    let driver = Emulated::new();
    assert_eq!(library(&driver, None).0, 1);
    let (code, library) = library(&driver, Some(c"rubbish"));
    assert_eq!((code, driver.cuLibraryGetModule(&mut 0, library)), (0, 200));
    assert_eq!(driver.cuModuleLoadData(&mut 0, c"rubbish".as_ptr().cast()), 200, "a module is looked at when loaded");
}

#[test]
fn contexts_and_modules_need_memory_of_their_own_if_told() {
    const NAME: &str = "contexts_and_modules_need_memory_of_their_own_if_told";
    if is_child(NAME) {
        let driver = Emulated::without(&[]);
        assert_eq!(driver.cuInit(0), 0);
        let (page, total) = (2 << 20, 1 << 30);
        let context = driver.enter(0).expect("a context");
        let free = || driver.info().expect("info").0;
        assert_eq!(free(), total - 2 * page, "3 MiB are whole pages");
        let object = Object::new("memory");
        let (mut module, mut second) = (0, 0);
        assert_eq!(driver.cuModuleLoadData(&mut module, object.image().as_ptr().cast()), 0);
        assert_eq!(free(), total - 3 * page);
        assert_eq!((driver.cuModuleUnload(module), free()), (0, total - 2 * page));
        assert_eq!(driver.cuCtxCreate_v2(&mut second, 0, 0), 0);
        assert_eq!(driver.cuModuleLoadData(&mut module, object.image().as_ptr().cast()), 0);
        assert_eq!(free(), total - 5 * page);
        // A module ends with its context.
        assert_eq!((driver.cuCtxDestroy_v2(second), driver.cuCtxSetCurrent(context)), (0, 0));
        assert_eq!((free(), driver.cuModuleUnload(module)), (total - 2 * page, 400));
        let all = driver.alloc(total - 2 * page).expect("memory");
        assert_eq!((driver.cuCtxCreate_v2(&mut second, 0, 0), driver.cuMemFree_v2(all)), (2, 0));
        return;
    }
    let variables = [("CACHALOT_EMU_CONTEXT_BYTES", "3145728"), ("CACHALOT_EMU_MODULE_BYTES", "1")];
    let child = in_child(NAME, &variables);
    assert!(child.status.success(), "{}", text(&child));
}

#[test]
fn a_library_outlives_the_context_of_its_module() {
    let object = Object::new("outlives");
    let driver = Emulated::new();
    let (code, library) = library(&driver, Some(&object.image()));
    let (mut first, mut second) = (0, 0);
    assert_eq!((code, driver.cuLibraryGetModule(&mut first, library)), (0, 0));
    assert_eq!(driver.cuDevicePrimaryCtxReset_v2(0), 0);
    driver.enter(0).expect("a context");
    assert_eq!(driver.count("modules"), 0);
    assert_eq!((driver.cuLibraryGetModule(&mut second, library), driver.count("modules")), (0, 1));
    assert_eq!((driver.cuLibraryUnload(library), driver.count("modules")), (0, 0));
}

#[test]
fn a_graph_is_instantiated_in_three_ways() {
    let driver = Emulated::new();
    let (stream, address) = (driver.stream(1).expect("a stream"), driver.alloc(64).expect("memory"));
    assert_eq!(driver.cuStreamBeginCapture_v2(stream, 0), 0);
    assert_eq!(driver.cuMemsetD8Async(address, 6, 64, stream), 0);
    let graph = driver.end_capture(stream).expect("a graph");
    let null = std::ptr::null_mut();
    let mut params = InstantiateParams { result: 9, ..InstantiateParams::default() };
    let mut made = [0; 3];
    assert_eq!(driver.cuGraphInstantiateWithFlags(&mut made[0], graph, 0), 0);
    assert_eq!(driver.cuGraphInstantiate_v2(&mut made[1], graph, null, std::ptr::null_mut(), 0), 0);
    assert_eq!(driver.cuGraphInstantiateWithParams(&mut made[2], graph, &mut params), 0);
    assert_eq!(params.result, 0);
    for executable in made {
        assert_eq!(driver.write(address, &[0; 64]), 0);
        assert_eq!((driver.cuGraphLaunch(executable, stream), driver.cuStreamSynchronize(stream)), (0, 0));
        assert_eq!(driver.read(address, 64), Ok(vec![6; 64]));
        assert_eq!(driver.cuGraphExecDestroy(executable), 0);
    }
    assert_eq!(driver.cuGraphInstantiateWithFlags(&mut 0, graph, 0x100), 1);
    assert_eq!(driver.cuGraphInstantiateWithFlags(&mut 0, 0, 0), 1);
    assert_eq!(driver.cuGraphInstantiateWithParams(&mut 0, 0, &mut params), 1);
    let mut empty = 0;
    assert_eq!((driver.cuGraphCreate(&mut empty, 1), driver.cuGraphCreate(&mut empty, 0)), (1, 0));
    assert_eq!(driver.cuGraphInstantiateWithFlags(&mut made[0], empty, 0), 0);
    assert_eq!((driver.cuGraphLaunch(made[0], stream), driver.cuStreamSynchronize(stream)), (0, 0));
}
