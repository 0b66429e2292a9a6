//! Modules and launches: host objects as kernels.

use crate::common::{Emulated, PAGE, in_child, is_child, text};
use cachalot_emulated_driver::api::LaunchConfig;
use std::ffi::{CString, c_void};
use std::path::PathBuf;
use std::process::Command;

/// Kernels by the rules of the README: `write` stores the launch shape, `poke` stores an argument
/// at an address not marked as an address, `trap` breaks the context.
const SOURCE: &str = r"
static void (*raise_error)(unsigned) = 0;
void cachalot_host_set_raise(void (*function)(unsigned)) { raise_error = function; }
static unsigned long long at(void **args, int i) { return *(unsigned long long *)args[i]; }

const unsigned write_params = 2;
void write(void **args, unsigned grid, unsigned block) {
    unsigned long long *out = (unsigned long long *)at(args, 0);
    out[0] = at(args, 1); out[1] = grid; out[2] = block;
}
const unsigned keep_params = 2;
const unsigned long long keep_addresses = 1;
void keep(void **args, unsigned grid, unsigned block) { *(unsigned long long *)at(args, 0) = at(args, 1); }

const unsigned trap_params = 1;
void trap(void **args, unsigned grid, unsigned block) { raise_error((unsigned)at(args, 0)); }

void no_params(void **args, unsigned grid, unsigned block) {}
";

/// A file of compiled kernels, removed on drop.
pub(crate) struct Object(PathBuf);

impl Object {
    pub(crate) fn new(name: &str) -> Self {
        let folder = std::env::temp_dir();
        let source = folder.join(format!("cachalot-emu-{name}-{}.c", std::process::id()));
        let object = source.with_extension("so");
        std::fs::write(&source, SOURCE).expect("written");
        let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
        let mut command = Command::new(compiler);
        command.args(["-shared", "-fPIC", "-O1", "-w", "-fno-builtin", "-o"]).arg(&object).arg(&source);
        assert!(command.status().expect("a C compiler").success());
        std::fs::remove_file(source).expect("removed");
        Self(object)
    }

    pub(crate) fn image(&self) -> CString {
        CString::new(format!("CACHALOT-EMULATED {}", self.0.display())).expect("no NUL")
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        // A file left behind does no harm.
        let _removed = std::fs::remove_file(&self.0);
    }
}

/// Creates a driver with the kernels loaded.
fn loaded(name: &str) -> (Emulated, u64) {
    let object = Object::new(name);
    let driver = Emulated::new();
    let mut module = 0;
    assert_eq!(driver.cuModuleLoadData(&mut module, object.image().as_ptr().cast()), 0);
    (driver, module)
}

/// Launches a kernel with the given arguments.
fn launch(driver: &Emulated, module: u64, name: &std::ffi::CStr, stream: u64, args: &[u64]) -> u32 {
    let mut function = 0;
    assert_eq!(driver.cuModuleGetFunction(&mut function, module, name.as_ptr()), 0);
    let mut params: Vec<*mut c_void> = args.iter().map(|arg| std::ptr::from_ref(arg).cast_mut().cast()).collect();
    driver.cuLaunchKernel(function, 2, 3, 4, 5, 6, 7, 0, stream, params.as_mut_ptr(), std::ptr::null_mut())
}

#[test]
fn a_kernel_runs_on_its_stream_with_the_arguments_of_its_launch() {
    let (driver, module) = loaded("run");
    let stream = driver.stream(1).expect("a stream");
    let address = driver.alloc(PAGE).expect("memory");
    driver.control.hold(stream).expect("a stream");
    let mut args = [address, 99];
    assert_eq!(launch(&driver, module, c"write", stream, &args), 0);
    args[1] = 1;
    assert_eq!(driver.cuStreamQuery(stream), 600);
    driver.control.release(stream).expect("a stream");
    // The unload waits for the kernel.
    assert_eq!((driver.cuModuleUnload(module), driver.cuStreamQuery(stream)), (0, 0));
    let bytes = driver.read(address, 24).expect("memory");
    let words: Vec<u64> = bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("8"))).collect();
    assert_eq!((words, args[1]), (vec![99, 24, 210], 1));
}

#[test]
fn only_declared_addresses_are_moved() {
    let (driver, module) = loaded("declared");
    let address = driver.alloc(PAGE).expect("memory");
    // The second argument is also a device address, but the kernel's mask declares a plain
    // number.
    assert_eq!(launch(&driver, module, c"keep", 0, &[address, address]), 0);
    assert_eq!(driver.read(address, 8), Ok(address.to_le_bytes().to_vec()));
    assert_eq!(launch(&driver, module, c"write", 0, &[address, address]), 0);
    let moved = driver.control.seen_by(0, address) as u64;
    assert_eq!(driver.read(address, 8), Ok(moved.to_le_bytes().to_vec()));
}

#[test]
fn a_kernel_has_the_attributes_of_its_device_and_those_that_are_set() {
    let (driver, module) = loaded("attributes");
    let (mut kernel, mut other) = (0, 0);
    assert_eq!(driver.cuModuleGetFunction(&mut kernel, module, c"keep".as_ptr()), 0);
    assert_eq!(driver.cuModuleGetFunction(&mut other, module, c"write".as_ptr()), 0);
    let asked = |function, attribute| {
        let mut value = -7;
        let code = driver.cuFuncGetAttribute(&mut value, attribute, function);
        if code == 0 { Ok(value) } else { Err(code) }
    };
    let first: Vec<_> = (0..=9).map(|attribute| asked(kernel, attribute)).collect();
    assert_eq!(first, [1024, 0, 0, 0, 32, 90, 90, 0, 48 << 10, -1].map(Ok));
    assert_eq!((asked(kernel, u32::MAX), asked(kernel, 16), asked(1, 0)), (Err(1), Err(1), Err(400)));
    assert_eq!(driver.cuFuncSetAttribute(kernel, 8, 100 << 10), 0);
    assert_eq!((asked(kernel, 8), asked(other, 8)), (Ok(100 << 10), Ok(48 << 10)));
    assert_eq!((driver.cuFuncSetAttribute(kernel, 8, 228 << 10), driver.cuFuncSetAttribute(kernel, 4, 1)), (1, 1));
    assert_eq!((driver.cuFuncSetCacheConfig(kernel, 3), driver.cuFuncSetCacheConfig(kernel, 4)), (0, 1));
}

#[test]
fn every_form_of_a_launch_runs_the_kernel() {
    let (driver, module) = loaded("forms");
    let address = driver.alloc(PAGE).expect("memory");
    let mut function = 0;
    assert_eq!(driver.cuModuleGetFunction(&mut function, module, c"keep".as_ptr()), 0);
    let args = [address, 7, 8];
    let [to, seven, eight]: [*mut c_void; 3] = args.each_ref().map(|arg| std::ptr::from_ref(arg).cast_mut().cast());
    let stored = || driver.read(address, 8).map(|bytes| u64::from_le_bytes(bytes.try_into().expect("8")));
    let stream = driver.stream(1).expect("a stream");
    let config = LaunchConfig { grid: [1; 3], block: [1; 3], stream, ..LaunchConfig::default() };
    assert_eq!(driver.cuLaunchKernelEx(&config, function, [to, seven].as_mut_ptr(), std::ptr::null_mut()), 0);
    assert_eq!((driver.cuStreamSynchronize(stream), stored()), (0, Ok(7)));
    assert_eq!(driver.cuLaunchCooperativeKernel_ptsz(function, 1, 1, 1, 1, 1, 1, 0, 0, [to, eight].as_mut_ptr()), 0);
    assert_eq!((driver.cuStreamSynchronize(2), stored()), (0, Ok(8)));
    let none = LaunchConfig { grid: [1, 0, 1], ..config };
    assert_eq!(driver.cuLaunchKernelEx(&none, function, [to, seven].as_mut_ptr(), std::ptr::null_mut()), 1);
}

#[test]
fn a_trap_breaks_the_context() {
    let (driver, module) = loaded("trap");
    let stream = driver.stream(1).expect("a stream");
    assert_eq!(launch(&driver, module, c"trap", stream, &[719]), 0);
    assert_eq!((driver.cuStreamSynchronize(stream), driver.alloc(1)), (719, Err(719)));
}

#[test]
fn a_captured_launch_keeps_its_arguments() {
    let (driver, module) = loaded("capture");
    let stream = driver.stream(1).expect("a stream");
    let address = driver.alloc(PAGE).expect("memory");
    assert_eq!(driver.cuStreamBeginCapture_v2(stream, 0), 0);
    assert_eq!(launch(&driver, module, c"write", stream, &[address, 5]), 0);
    let graph = driver.end_capture(stream).expect("a graph");
    let mut executable = 0;
    assert_eq!(driver.cuGraphInstantiateWithFlags(&mut executable, graph, 0), 0);
    assert_eq!(driver.read(address, 1), Ok(vec![0xa5]));
    assert_eq!((driver.cuGraphLaunch(executable, stream), driver.cuStreamSynchronize(stream)), (0, 0));
    assert_eq!(driver.read(address, 1), Ok(vec![5]));
}

#[test]
fn images_names_and_shapes_are_checked() {
    let (driver, module) = loaded("checks");
    for (image, code) in
        [(c"CACHALOT-EMULATED /nowhere.so", 301), (c"CACHALOT", 200), (c"", 200), (c".version 7.0", 200)]
    {
        assert_eq!(driver.cuModuleLoadData(&mut 0, image.as_ptr().cast()), code);
    }
    assert_eq!(driver.cuModuleLoadData(&mut 0, std::ptr::null()), 1);
    for name in [c"absent", c"no_params", c"write_params"] {
        assert_eq!(driver.cuModuleGetFunction(&mut 0, module, name.as_ptr()), 500);
    }
    let mut function = 0;
    assert_eq!(driver.cuModuleGetFunction(&mut function, module, c"trap".as_ptr()), 0);
    let (null, none) = (std::ptr::null_mut(), std::ptr::null_mut());
    let launch = |grid: u32, block: u32| driver.cuLaunchKernel(function, grid, 1, 1, 1, block, 1, 0, 0, null, none);
    // The last shape is valid, but the arguments are missing.
    for (grid, block) in [(0, 1), (1, 0), (1, 1025), (1, 1)] {
        assert_eq!(launch(grid, block), 1);
    }
    assert_eq!(driver.cuLaunchKernel(1, 1, 1, 1, 1, 1, 1, 0, 0, null, none), 400);
    assert_eq!((driver.cuModuleUnload(module), driver.cuModuleUnload(module)), (0, 400));
}

#[test]
fn an_image_is_loaded_in_three_ways() {
    let object = Object::new("ways");
    let driver = Emulated::new();
    let mut made = [0; 3];
    let image = object.image();
    let (options, values) = (std::ptr::null_mut(), std::ptr::null_mut());
    assert_eq!(driver.cuModuleLoadData(&mut made[0], image.as_ptr().cast()), 0);
    assert_eq!(driver.cuModuleLoadDataEx(&mut made[1], image.as_ptr().cast(), 0, options, values), 0);
    assert_eq!(driver.cuModuleLoadFatBinary(&mut made[2], image.as_ptr().cast()), 0);
    let at = driver.alloc(PAGE).expect("memory");
    for (number, module) in made.into_iter().enumerate() {
        assert_eq!(launch(&driver, module, c"write", 0, &[at, number as u64]), 0);
        assert_eq!(driver.cuCtxSynchronize(), 0);
        assert_eq!(driver.control.peek(at, 8), Ok((number as u64).to_ne_bytes().to_vec()));
    }
}

#[test]
fn a_kernel_without_code_for_the_host_is_skipped_on_request() {
    const NAME: &str = "a_kernel_without_code_for_the_host_is_skipped_on_request";
    if !is_child(NAME) {
        let output = in_child(NAME, &[("CACHALOT_EMU_KERNELS", "skip")]);
        assert!(output.status.success(), "{}", text(&output));
        return;
    }
    let (driver, own) = loaded("skipped");
    let (mut of_gpu, mut library, mut of_library) = (0, 0, 0);
    assert_eq!(driver.cuModuleLoadData(&mut of_gpu, c"machine code of a GPU".as_ptr().cast()), 0);
    let code = c"\x7fELF of a GPU".as_ptr().cast();
    let (options, values) = (std::ptr::null_mut(), std::ptr::null_mut());
    assert_eq!(driver.cuLibraryLoadData(&mut library, code, options, values, 0, options, values, 0), 0);
    assert_eq!(driver.cuLibraryGetModule(&mut of_library, library), 0);
    for module in [of_gpu, of_library, own] {
        assert_eq!(launch(&driver, module, c"kernel_of_a_gpu", 0, &[1]), 0);
    }
    // What has code for the host runs.
    let at = driver.alloc(PAGE).expect("memory");
    assert_eq!(launch(&driver, own, c"write", 0, &[at, 7]), 0);
    assert_eq!(driver.cuCtxSynchronize(), 0);
    assert_eq!(driver.control.peek(at, 8), Ok(7_u64.to_ne_bytes().to_vec()));
    assert_eq!((driver.cuModuleUnload(of_gpu), driver.cuLibraryUnload(library)), (0, 0));
}
