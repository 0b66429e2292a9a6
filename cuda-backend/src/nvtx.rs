//! Announces segments and blocks to a memory checker that listens through the memory interface of
//! NVTX, such as compute-sanitizer, so that it knows which part of a segment is a block.
//!
//! ```text
//! heap     a segment        an access outside of its regions is an error
//! region   a live block
//! ```
//!
//! A tool announces itself by the variable `NVTX_INJECTION64_PATH`, which has the name of its
//! library. This library fills a table of functions (`nvToolsExtMem.h`, NVTX 3). Nothing of NVTX is
//! linked, and without the variable nothing is loaded.

use core::ffi::{CStr, c_char, c_int, c_void};
use libloading::Library;
use std::sync::OnceLock;

/// The variable that names the library of a tool.
const VARIABLE: &str = "NVTX_INJECTION64_PATH";

/// The version of NVTX, and the version and the number of its memory interface.
const VERSION: u16 = 3;
const COMPATIBLE: u16 = 0x0102;
const MODULE: u16 = 1;

/// The number of functions in the table. The tool fills in the functions that it has, and leaves
/// the others null.
const FUNCTIONS: usize = 63;
/// The places of the functions in the table: the numbers of the calls in NVIDIA's header, which
/// start at 0. An earlier header started at 1, and compute-sanitizer 2025.3 does not.
const HEAP_REGISTER: usize = 0;
const HEAP_UNREGISTER: usize = 1;
const REGIONS_REGISTER: usize = 3;
const REGIONS_UNREGISTER: usize = 5;
const REGIONS_NAME: usize = 6;

/// Values of NVTX: a heap in which only the regions may be used; memory with an address; a
/// reference by address; an ASCII text.
const SUB_ALLOCATOR: u32 = 1;
const VIRTUAL_ADDRESS: u32 = 1;
const BY_POINTER: u32 = 1;
const ASCII: u32 = 1;

/// The table of functions in the form that the tool gets.
#[repr(C)]
struct Segment {
    id: usize,
    count: usize,
    functions: *mut usize,
}

/// The description of the interface for the tool.
#[repr(C)]
struct Module {
    version: u16,
    size: u16,
    number: u16,
    compatible: u16,
    segment_count: usize,
    segments: *mut Segment,
    export: *const c_void,
    extra: *const c_void,
}

/// Addresses.
#[repr(C)]
struct Span {
    bytes: usize,
    at: usize,
}

/// A heap that is to be registered.
#[repr(C)]
struct HeapDescription {
    compatible: u16,
    size: u16,
    reserved: u32,
    usage: u32,
    kind: u32,
    span_size: usize,
    span: *const Span,
    category: u32,
    text_kind: u32,
    text: *const c_char,
}

/// Regions that are to be registered.
#[repr(C)]
struct Registered {
    compatible: u16,
    size: u16,
    kind: u32,
    heap: usize,
    count: usize,
    element_size: usize,
    elements: *const Span,
    handles: *mut usize,
}

/// Regions that are to be unregistered.
#[repr(C)]
struct Unregistered {
    compatible: u16,
    size: u16,
    kind: u32,
    count: usize,
    element_size: usize,
    elements: *const usize,
}

/// The name of a region.
#[repr(C)]
struct Named {
    kind: u32,
    text_kind: u32,
    at: usize,
    text: *const c_char,
    category: u32,
    reserved: u32,
}

/// Regions that are to be named.
#[repr(C)]
struct NamedRegions {
    compatible: u16,
    size: u16,
    reserved: u32,
    count: usize,
    element_size: usize,
    elements: *const Named,
    more: usize,
}

/// The functions of a tool.
type Initialize = unsafe extern "C" fn(*mut Module) -> c_int;
type RegisterHeap = unsafe extern "C" fn(*const c_void, *const HeapDescription) -> usize;
type UnregisterHeap = unsafe extern "C" fn(*const c_void, usize);
type RegisterRegions = unsafe extern "C" fn(*const c_void, *const Registered);
type UnregisterRegions = unsafe extern "C" fn(*const c_void, *const Unregistered);
type NameRegions = unsafe extern "C" fn(*const c_void, *const NamedRegions);

/// The default domain of NVTX.
const DOMAIN: *const c_void = core::ptr::null();

/// A tool that listens.
#[derive(Debug)]
pub struct MemoryTool {
    functions: [usize; FUNCTIONS],
    /// The library of the tool, which remains loaded.
    _library: Library,
}

/// The tool's name of a heap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ToolHeap(usize);

impl MemoryTool {
    /// Returns the tool of the process. The first call loads the library that the environment
    /// names.
    pub fn of_process() -> Option<&'static Self> {
        static TOOL: OnceLock<Option<MemoryTool>> = OnceLock::new();
        TOOL.get_or_init(|| Self::load(&std::env::var_os(VARIABLE)?)).as_ref()
    }

    /// Loads the library of a tool. Returns `None` if it has no memory interface.
    fn load(path: &std::ffi::OsStr) -> Option<Self> {
        // SAFETY: the user of the process has named the library, which NVTX's own loader would
        // load, too.
        let library = unsafe { Library::new(path) }.ok()?;
        // SAFETY: the symbol is NVTX's, with this signature.
        let initialize = unsafe { library.get::<Initialize>(b"InitializeInjectionNvtxExtension\0") }.ok()?;
        Some(Self { functions: functions_of(*initialize)?, _library: library })
    }

    /// Registers a segment in which only the regions may be used. Returns `None` if the tool
    /// refuses, and then the segment is plain memory for it. compute-sanitizer refuses a thread
    /// without a current context.
    pub fn register_heap(&self, at: u64, bytes: u64, name: &CStr) -> Option<ToolHeap> {
        let span = Span { bytes: bytes as usize, at: at as usize };
        let description = HeapDescription {
            compatible: COMPATIBLE,
            size: size_of::<HeapDescription>() as u16,
            reserved: 0,
            usage: SUB_ALLOCATOR,
            kind: VIRTUAL_ADDRESS,
            span_size: size_of::<Span>(),
            span: &raw const span,
            category: 0,
            text_kind: ASCII,
            text: name.as_ptr(),
        };
        // SAFETY: the tool has filled the place with a function of this signature.
        let register: RegisterHeap = unsafe { core::mem::transmute(self.functions[HEAP_REGISTER]) };
        // SAFETY: the structures are complete, and outlive the call.
        let heap = unsafe { register(DOMAIN, &raw const description) };
        (heap != 0 && heap != usize::MAX).then_some(ToolHeap(heap))
    }

    /// Unregisters a segment, with its regions.
    pub fn unregister_heap(&self, heap: ToolHeap) {
        // SAFETY: the tool has filled the place with a function of this signature.
        let unregister: UnregisterHeap = unsafe { core::mem::transmute(self.functions[HEAP_UNREGISTER]) };
        // SAFETY: the tool has given the handle.
        unsafe { unregister(DOMAIN, heap.0) };
    }

    /// Registers a block of a segment.
    pub fn register_region(&self, heap: ToolHeap, at: u64, bytes: u64) {
        let span = Span { bytes: bytes as usize, at: at as usize };
        let batch = Registered {
            compatible: COMPATIBLE,
            size: size_of::<Registered>() as u16,
            kind: VIRTUAL_ADDRESS,
            heap: heap.0,
            count: 1,
            element_size: size_of::<Span>(),
            elements: &raw const span,
            handles: core::ptr::null_mut(),
        };
        // SAFETY: the tool has filled the place with a function of this signature.
        let register: RegisterRegions = unsafe { core::mem::transmute(self.functions[REGIONS_REGISTER]) };
        // SAFETY: the structures are complete, and outlive the call.
        unsafe { register(DOMAIN, &raw const batch) };
    }

    /// Unregisters the block at an address.
    pub fn unregister_region(&self, at: u64) {
        let at = at as usize;
        let batch = Unregistered {
            compatible: COMPATIBLE,
            size: size_of::<Unregistered>() as u16,
            kind: BY_POINTER,
            count: 1,
            element_size: size_of::<usize>(),
            elements: &raw const at,
        };
        // SAFETY: the tool has filled the place with a function of this signature.
        let unregister: UnregisterRegions = unsafe { core::mem::transmute(self.functions[REGIONS_UNREGISTER]) };
        // SAFETY: the structures are complete, and outlive the call.
        unsafe { unregister(DOMAIN, &raw const batch) };
    }

    /// Names the block at an address, if the tool keeps names.
    pub fn name_region(&self, at: u64, name: &CStr) {
        let function = self.functions[REGIONS_NAME];
        if function == 0 || function == usize::MAX {
            return;
        }
        let element = Named {
            kind: BY_POINTER,
            text_kind: ASCII,
            at: at as usize,
            text: name.as_ptr(),
            category: 0,
            reserved: 0,
        };
        let batch = NamedRegions {
            compatible: COMPATIBLE,
            size: size_of::<NamedRegions>() as u16,
            reserved: 0,
            count: 1,
            element_size: size_of::<Named>(),
            elements: &raw const element,
            more: 0,
        };
        // SAFETY: the tool has filled the place with a function of this signature.
        let name: NameRegions = unsafe { core::mem::transmute(function) };
        // SAFETY: the structures are complete, and outlive the call.
        unsafe { name(DOMAIN, &raw const batch) };
    }
}

/// Lets a tool fill the table of functions. Returns `None` if the tool does not listen, or if it
/// does not have a function that is needed.
fn functions_of(initialize: Initialize) -> Option<[usize; FUNCTIONS]> {
    let mut functions = [0; FUNCTIONS];
    let mut segment = Segment { id: 1, count: FUNCTIONS, functions: functions.as_mut_ptr() };
    let mut module = Module {
        version: VERSION,
        size: size_of::<Module>() as u16,
        number: MODULE,
        compatible: COMPATIBLE,
        segment_count: 1,
        segments: &raw mut segment,
        export: core::ptr::null(),
        extra: core::ptr::null(),
    };
    // SAFETY: the structures are complete, and outlive the call, which fills the table.
    let listens = unsafe { initialize(&raw mut module) } != 0;
    let complete = [HEAP_REGISTER, HEAP_UNREGISTER, REGIONS_REGISTER, REGIONS_UNREGISTER];
    // 0 means that the tool does not have the function, and -1 that the function does nothing.
    let has_all = complete.into_iter().all(|at| functions[at] != 0 && functions[at] != usize::MAX);
    (listens && has_all).then_some(functions)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};
    use std::io::Write;
    use std::path::Path;

    thread_local! {
        /// The announcements that the tool got, and its answer to the registration of a heap.
        static TOLD: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
        static HEAP: Cell<usize> = const { Cell::new(0x77) };
    }

    fn note(text: String) {
        TOLD.with_borrow_mut(|told| told.push(text));
    }

    fn told() -> Vec<String> {
        TOLD.take()
    }

    /// Returns the value at a pointer of the caller.
    fn at<'a, T>(pointer: *const T) -> &'a T {
        // SAFETY: the tool is given complete structures, which outlive the call.
        unsafe { &*pointer }
    }

    fn text<'a>(pointer: *const c_char) -> &'a str {
        // SAFETY: the tool is given texts, which outlive the call.
        unsafe { CStr::from_ptr(pointer) }.to_str().expect("ASCII")
    }

    unsafe extern "C" fn heap_register(domain: *const c_void, heap: *const HeapDescription) -> usize {
        let heap = at(heap);
        let span = at(heap.span);
        assert!(domain.is_null() && usize::from(heap.size) == size_of::<HeapDescription>());
        assert_eq!((heap.compatible, heap.usage, heap.kind, heap.text_kind), (0x0102, 1, 1, 1));
        assert_eq!((heap.span_size, heap.category, heap.reserved), (16, 0, 0));
        note(format!("heap {:#x} {:#x} {}", span.at, span.bytes, text(heap.text)));
        HEAP.get()
    }

    unsafe extern "C" fn heap_unregister(domain: *const c_void, heap: usize) {
        assert!(domain.is_null());
        note(format!("heap {heap:#x} ends"));
    }

    unsafe extern "C" fn regions_register(domain: *const c_void, batch: *const Registered) {
        let batch = at(batch);
        let span = at(batch.elements);
        assert!(domain.is_null() && usize::from(batch.size) == size_of::<Registered>());
        assert_eq!((batch.compatible, batch.kind, batch.count, batch.element_size), (0x0102, 1, 1, 16));
        note(format!("region {:#x} {:#x} of {:#x}", span.at, span.bytes, batch.heap));
    }

    unsafe extern "C" fn regions_unregister(domain: *const c_void, batch: *const Unregistered) {
        let batch = at(batch);
        assert!(domain.is_null() && usize::from(batch.size) == size_of::<Unregistered>());
        assert_eq!((batch.compatible, batch.kind, batch.count, batch.element_size), (0x0102, 1, 1, 8));
        note(format!("region {:#x} ends", at(batch.elements)));
    }

    unsafe extern "C" fn regions_name(domain: *const c_void, batch: *const NamedRegions) {
        let batch = at(batch);
        let named = at(batch.elements);
        assert!(domain.is_null() && usize::from(batch.size) == size_of::<NamedRegions>());
        assert_eq!((batch.compatible, batch.count, batch.element_size), (0x0102, 1, size_of::<Named>()));
        assert_eq!((named.kind, named.text_kind), (1, 1));
        note(format!("region {:#x} is {}", named.at, text(named.text)));
    }

    /// Fills the table of functions, as the library of a tool does.
    unsafe extern "C" fn initialize(module: *mut Module) -> c_int {
        let module = at(module);
        let segment = at(module.segments);
        assert_eq!((module.version, module.number, module.segment_count, segment.id), (3, 1, 1, 1));
        assert_eq!((usize::from(module.size), segment.count), (size_of::<Module>(), FUNCTIONS));
        // SAFETY: the table has as many places.
        let functions = unsafe { core::slice::from_raw_parts_mut(segment.functions, segment.count) };
        functions[HEAP_REGISTER] = heap_register as *const () as usize;
        functions[HEAP_UNREGISTER] = heap_unregister as *const () as usize;
        functions[REGIONS_REGISTER] = regions_register as *const () as usize;
        functions[REGIONS_UNREGISTER] = regions_unregister as *const () as usize;
        functions[REGIONS_NAME] = regions_name as *const () as usize;
        1
    }

    /// Does the same as [`initialize`], but without the function at a place.
    unsafe extern "C" fn initialize_without<const AT: usize, const ABSENT: usize>(module: *mut Module) -> c_int {
        // SAFETY: the caller passes on its own pointer.
        let listens = unsafe { initialize(module) };
        let functions = at(at(module).segments).functions;
        // SAFETY: the place is in the table.
        unsafe { *functions.wrapping_add(AT) = ABSENT };
        listens
    }

    unsafe extern "C" fn refuse(module: *mut Module) -> c_int {
        // SAFETY: the caller passes on its own pointer.
        unsafe { initialize(module) };
        0
    }

    fn tool(initialize: Initialize) -> Option<MemoryTool> {
        let functions = functions_of(initialize)?;
        Some(MemoryTool { functions, _library: libloading::os::unix::Library::this().into() })
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri cannot load libraries")]
    fn a_tool_is_told_of_segments_and_blocks() {
        let tool = tool(initialize).expect("listens");
        let heap = tool.register_heap(0x1000, 0x400, c"segment").expect("accepted");
        tool.register_region(heap, 0x1100, 0x80);
        tool.name_region(0x1100, c"block");
        tool.unregister_region(0x1100);
        tool.unregister_heap(heap);
        let expected = [
            "heap 0x1000 0x400 segment",
            "region 0x1100 0x80 of 0x77",
            "region 0x1100 is block",
            "region 0x1100 ends",
            "heap 0x77 ends",
        ];
        assert_eq!(told(), expected);
        for refused in [0, usize::MAX] {
            HEAP.set(refused);
            assert_eq!(tool.register_heap(0x1000, 0x400, c"segment"), None);
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri cannot load libraries")]
    fn a_tool_that_does_not_listen_or_lacks_a_function_is_not_told() {
        let lacking: [Initialize; 6] = [
            refuse,
            initialize_without::<HEAP_REGISTER, 0>,
            initialize_without::<HEAP_UNREGISTER, { usize::MAX }>,
            initialize_without::<REGIONS_REGISTER, 0>,
            initialize_without::<REGIONS_UNREGISTER, 0>,
            initialize_without::<REGIONS_UNREGISTER, { usize::MAX }>,
        ];
        assert!(lacking.into_iter().all(|initialize| tool(initialize).is_none()));
        // Names are an extra.
        for nameless in
            [initialize_without::<REGIONS_NAME, 0> as Initialize, initialize_without::<REGIONS_NAME, { usize::MAX }>]
        {
            tool(nameless).expect("listens").name_region(0x1100, c"block");
        }
        assert_eq!(told(), Vec::<String>::new());
        assert!(MemoryTool::load("/nonexistent/tool.so".as_ref()).is_none());
    }

    #[test]
    fn the_places_of_functions_are_those_of_nvidias_header() {
        let Some(folder) = std::env::var_os("CACHALOT_CUDA_H_DIR") else {
            let _ = writeln!(std::io::stderr(), "skipped: NVTX against its header (CACHALOT_CUDA_H_DIR is not set)");
            return;
        };
        let header =
            std::fs::read_to_string(Path::new(&folder).join("nvtx3/nvToolsExtMem.h")).expect("the header of NVTX");
        let defined = |name: &str| {
            let line = header.lines().find_map(|line| line.strip_prefix("#define ")?.trim_start().strip_prefix(name));
            let value = line.unwrap_or_else(|| panic!("{name} is not defined")).trim();
            let hexadecimal = value.strip_prefix("0x").and_then(|digits| usize::from_str_radix(digits, 16).ok());
            hexadecimal.or_else(|| value.parse().ok()).unwrap_or_else(|| panic!("{name} is {value}"))
        };
        let expected = [
            ("NVTX3EXT_CBID_nvtxMemHeapRegister ", HEAP_REGISTER),
            ("NVTX3EXT_CBID_nvtxMemHeapUnregister ", HEAP_UNREGISTER),
            ("NVTX3EXT_CBID_nvtxMemRegionsRegister ", REGIONS_REGISTER),
            ("NVTX3EXT_CBID_nvtxMemRegionsUnregister ", REGIONS_UNREGISTER),
            ("NVTX3EXT_CBID_nvtxMemRegionsName ", REGIONS_NAME),
            ("NVTX_EXT_MODULEID_MEM ", usize::from(MODULE)),
            ("NVTX_EXT_COMPATID_MEM ", usize::from(COMPATIBLE)),
        ];
        for (name, value) in expected {
            assert_eq!(defined(name), value, "{name}");
        }
    }
}
