//! Checks of `cachalot-cuda-abi` and of the codes against NVIDIA's own `cuda.h`: every signature,
//! constant, code and layout.
//!
//! Needs the header's folder in `CACHALOT_CUDA_H_DIR`, and libclang; `scripts/setup/cuda_header.sh`
//! fetches pinned versions of both.

use cachalot_cuda::driver::result::CuResult;
use cachalot_cuda_abi::FUNCTIONS;
use cachalot_cuda_abi::types::{
    CONSTANTS, CuGraphEdgeData, CuIpcMemHandle, CuMemAccessDesc, CuMemAllocationFlags, CuMemAllocationProp,
    CuMemLocation, CuUuid,
};
use quote::ToTokens;
use std::collections::BTreeMap;
use std::io::Write;
use std::mem::{align_of, offset_of, size_of};
use std::path::Path;
use std::process::Command;

/// Returns the folder of `cuda.h`, or prints a line about the skipped test.
fn header_folder() -> Option<String> {
    let folder = std::env::var("CACHALOT_CUDA_H_DIR").ok();
    if folder.is_none() {
        // Written to stderr directly: the test harness would swallow the line of a test that
        // passes.
        let mut stderr = std::io::stderr();
        let _ = writeln!(stderr, "skipped: bindings against cuda.h (CACHALOT_CUDA_H_DIR is not set)");
    }
    folder
}

/// Contents of the header, as parsed by bindgen.
struct Header {
    /// Functions: parameter types and return type, in canonical form.
    functions: BTreeMap<String, (Vec<String>, String)>,
    /// Constants and their values.
    constants: BTreeMap<String, u64>,
    /// Type aliases.
    aliases: BTreeMap<String, syn::Type>,
    /// The whole output without white space, for the layouts.
    text: String,
}

impl Header {
    /// Parses the header. `internal`: include the older versions of functions, which the library
    /// still exports.
    fn read(folder: &str, internal: bool) -> Self {
        let mut builder = bindgen::builder()
            .header(Path::new(folder).join("cuda.h").display().to_string())
            .default_enum_style(bindgen::EnumVariation::Consts)
            .prepend_enum_name(false)
            .formatter(bindgen::Formatter::None)
            .allowlist_item("(cu|CU).*");
        // The packaged libclang does not have its own headers; the C compiler's headers replace
        // them.
        let include = Command::new("cc").arg("-print-file-name=include").output();
        if let Ok(output) = include {
            builder = builder.clang_arg(format!("-I{}", String::from_utf8_lossy(&output.stdout).trim()));
        }
        if internal {
            builder = builder.clang_arg("-D__CUDA_API_VERSION_INTERNAL");
        }
        let text = builder.generate().expect("libclang reads cuda.h").to_string();
        let file = syn::parse_file(&text).expect("bindgen writes Rust");
        let mut header = Self {
            functions: BTreeMap::new(),
            constants: BTreeMap::new(),
            aliases: BTreeMap::new(),
            text: text.split_whitespace().collect(),
        };
        file.items.iter().for_each(|item| header.learn_name(item));
        file.items.iter().for_each(|item| header.learn_function(item));
        header
    }

    /// Stores a constant or a type alias.
    fn learn_name(&mut self, item: &syn::Item) {
        match item {
            syn::Item::Const(constant) => {
                if let syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Int(number), .. }) = &*constant.expr
                    && let Ok(value) = number.base10_parse()
                {
                    self.constants.insert(constant.ident.to_string(), value);
                }
            }
            syn::Item::Type(alias) => {
                self.aliases.insert(alias.ident.to_string(), (*alias.ty).clone());
            }
            syn::Item::Use(import) => {
                if let syn::UseTree::Path(path) = &import.tree
                    && let syn::UseTree::Rename(rename) = &*path.tree
                {
                    let original = rename.ident.to_string();
                    let as_type = syn::parse_str(&original).expect("a name is a type");
                    self.aliases.insert(rename.rename.to_string(), as_type);
                }
            }
            _ => {}
        }
    }

    /// Stores the functions of an `extern` block.
    fn learn_function(&mut self, item: &syn::Item) {
        let syn::Item::ForeignMod(block) = item else { return };
        for item in &block.items {
            let syn::ForeignItem::Fn(function) = item else { continue };
            let parameters = function.sig.inputs.iter().map(|argument| match argument {
                syn::FnArg::Typed(typed) => self.canonical(&typed.ty),
                syn::FnArg::Receiver(_) => panic!("C has no receivers"),
            });
            let parameters = parameters.collect();
            let answer = match &function.sig.output {
                syn::ReturnType::Default => "()".to_owned(),
                syn::ReturnType::Type(_, answer) => self.canonical(answer),
            };
            self.functions.insert(function.sig.ident.to_string(), (parameters, answer));
        }
    }

    /// Returns a type with every alias resolved, down to numbers, pointers and structures.
    fn canonical(&self, ty: &syn::Type) -> String {
        match ty {
            syn::Type::Ptr(pointer) => {
                let access = if pointer.mutability.to_token_stream().is_empty() { "const" } else { "mut" };
                format!("*{access} {}", self.canonical(&pointer.elem))
            }
            syn::Type::Path(path) => {
                let last = path.path.segments.last().expect("a path has a name");
                let name = last.ident.to_string();
                if let Some(number) = number(&name) {
                    return number.to_owned();
                }
                match self.aliases.get(&name) {
                    Some(original) => self.canonical(original),
                    None => last.to_token_stream().to_string().split_whitespace().collect(),
                }
            }
            other => other.to_token_stream().to_string().split_whitespace().collect(),
        }
    }

    /// Returns the number after `what` in bindgen's own layout checks.
    fn layout(&self, what: &str) -> usize {
        let key = format!("[\"{}\"]", what.split_whitespace().collect::<String>());
        let at = self.text.find(&key).unwrap_or_else(|| panic!("the header has no {what}"));
        let rest = &self.text[at + key.len()..];
        let end = rest.find("usize]").expect("a number");
        let start = rest[..end].rfind('-').expect("a difference") + 1;
        rest[start..end].parse().expect("a number")
    }
}

/// Returns the canonical name of a number type, for C's names and Rust's.
fn number(name: &str) -> Option<&'static str> {
    Some(match name {
        "c_int" | "i32" => "i32",
        "c_uint" | "u32" => "u32",
        "c_char" => "char",
        "c_uchar" | "u8" => "u8",
        "c_ushort" | "u16" => "u16",
        "f32" => "f32",
        "c_ulonglong" | "c_ulong" | "u64" | "usize" => "u64",
        "c_void" => "void",
        _ => return None,
    })
}

/// Returns the header's name for the type behind a binding's type.
fn bound_type(name: &str, header: &Header) -> Option<String> {
    let handle = |tag: &str| Some(format!("*mut {tag}"));
    let structure = |tag: &str| Some(tag.to_owned());
    match name {
        "CuArray" => handle("CUarray_st"),
        "CuContext" => handle("CUctx_st"),
        "CuEvent" => handle("CUevent_st"),
        "CuFunction" => handle("CUfunc_st"),
        "CuGraph" => handle("CUgraph_st"),
        "CuGraphExec" => handle("CUgraphExec_st"),
        "CuGraphNode" => handle("CUgraphNode_st"),
        "CuGreenContext" => handle("CUgreenCtx_st"),
        "CuKernel" => handle("CUkern_st"),
        "CuLibrary" => handle("CUlib_st"),
        "CuMemoryPool" => handle("CUmemPoolHandle_st"),
        "CuMipmappedArray" => handle("CUmipmappedArray_st"),
        "CuModule" => handle("CUmod_st"),
        "CuStream" => handle("CUstream_st"),
        "CuTexRef" => handle("CUtexref_st"),
        "CuGraphEdgeData" => structure("CUgraphEdgeData_st"),
        "CuIpcMemHandle" => structure("CUipcMemHandle_st"),
        "CuLaunchConfig" => structure("CUlaunchConfig_st"),
        "CuMemAccessDesc" => structure("CUmemAccessDesc_st"),
        "CuMemAllocationProp" => structure("CUmemAllocationProp_st"),
        "CuMemLocation" => structure("CUmemLocation_st"),
        "CuMemPoolProps" => structure("CUmemPoolProps_st"),
        "CuStreamBatchMemOpParams" => structure("CUstreamBatchMemOpParams_union"),
        "CudaArrayDescriptor" => structure("CUDA_ARRAY_DESCRIPTOR_st"),
        "CudaArray3DDescriptor" => structure("CUDA_ARRAY3D_DESCRIPTOR_st"),
        "CudaGraphInstantiateParams" => structure("CUDA_GRAPH_INSTANTIATE_PARAMS_st"),
        "CudaMemcpy2D" => structure("CUDA_MEMCPY2D_st"),
        "CudaMemcpy3D" => structure("CUDA_MEMCPY3D_st"),
        "CudaMemcpy3DPeer" => structure("CUDA_MEMCPY3D_PEER_st"),
        "CuUuid" => structure("CUuuid_st"),
        // Functions take these flags as plain integers.
        "CuEventFlags" | "CuMemHostRegisterFlags" | "CuStreamFlags" => Some("u32".to_owned()),
        // The bindings use a newtype around an integer; the header's underlying type is looked up,
        // not assumed.
        _ => {
            let original = match name {
                "CuResult" => "CUresult",
                "CuDevice" => "CUdevice",
                "CuDevicePtr" => "CUdeviceptr",
                "CuMemHandle" => "CUmemGenericAllocationHandle",
                "CuMemHandleType" => "CUmemAllocationHandleType",
                "CuDeviceAttribute" => "CUdevice_attribute",
                "CuDriverProcAddressQueryResult" => "CUdriverProcAddressQueryResult",
                "CuGranularity" => "CUmemAllocationGranularity_flags",
                "CuCaptureStatus" => "CUstreamCaptureStatus",
                "CuCaptureMode" => "CUstreamCaptureMode",
                "CuMemPoolAttribute" => "CUmemPool_attribute",
                "CuPointerAttribute" => "CUpointer_attribute",
                "CuHostFn" => "CUhostFn",
                _ => return None,
            };
            Some(header.canonical(&syn::parse_str(original).expect("a name is a type")))
        }
    }
}

/// Returns the canonical form of a type as written in the table.
fn bound(ty: &syn::Type, header: &Header) -> String {
    match ty {
        syn::Type::Ptr(pointer) => {
            let access = if pointer.mutability.to_token_stream().is_empty() { "const" } else { "mut" };
            format!("*{access} {}", bound(&pointer.elem, header))
        }
        other => {
            let name = other.to_token_stream().to_string();
            number(&name)
                .map(str::to_owned)
                .or_else(|| bound_type(&name, header))
                .unwrap_or_else(|| panic!("the test does not know the type {name}"))
        }
    }
}

/// Returns whether a type of the table is the header's. `void` in the table is any structure that
/// is only passed on.
fn agrees(ours: &str, headers: &str) -> bool {
    let pointer = ours.strip_suffix("void");
    ours == headers || pointer.is_some_and(|pointer| headers.strip_prefix(pointer).is_some_and(|to| !to.contains('*')))
}

#[test]
fn a_type_that_is_only_passed_on_agrees_with_no_pointer_to_a_pointer() {
    assert!(agrees("*mut void", "*mut CUextra_st") && agrees("*mut *mut void", "*mut *mut CUextra_st"));
    assert!(!agrees("*mut void", "*const CUextra_st") && !agrees("*mut void", "*mut *mut CUextra_st"));
    assert!(!agrees("u32", "u64") && !agrees("*mut u32", "*mut void"));
}

#[test]
fn signatures_are_the_headers() {
    let Some(folder) = header_folder() else { return };
    let (plain, internal) = (Header::read(&folder, false), Header::read(&folder, true));
    for (symbol, arguments) in FUNCTIONS {
        // A variant for programs whose stream 0 is the thread's own is in a row with the function.
        let name = symbol.strip_suffix("_ptsz").or(symbol.strip_suffix("_ptds")).unwrap_or(symbol);
        let (header, (parameters, answer)) = plain
            .functions
            .get(name)
            .map(|found| (&plain, found))
            .or_else(|| internal.functions.get(name).map(|found| (&internal, found)))
            .unwrap_or_else(|| panic!("cuda.h does not declare {symbol}"));
        let ours: syn::ItemFn = syn::parse_str(&format!("fn f{arguments} {{}}")).expect("the table is Rust");
        let ours: Vec<String> = ours
            .sig
            .inputs
            .iter()
            .map(|argument| match argument {
                syn::FnArg::Typed(typed) => bound(&typed.ty, header),
                syn::FnArg::Receiver(_) => panic!("the table has no receivers"),
            })
            .collect();
        let agree = ours.len() == parameters.len() && ours.iter().zip(parameters).all(|(our, its)| agrees(our, its));
        assert!(agree, "{symbol}: {ours:?} and {parameters:?}");
        assert_eq!(answer, "u32", "{symbol} answers a CUresult");
    }
}

#[test]
fn constants_and_codes_are_the_headers() {
    let Some(folder) = header_folder() else { return };
    let header = Header::read(&folder, false);
    for (name, value) in CONSTANTS {
        assert_eq!(header.constants.get(*name), Some(value), "{name}");
    }
    for (name, code) in CuResult::KNOWN {
        let prefix = if *code == CuResult::SUCCESS { "CUDA_" } else { "CUDA_ERROR_" };
        let name = format!("{prefix}{name}");
        assert_eq!(header.constants.get(&name), Some(&u64::from(code.0)), "{name}");
    }
}

#[test]
fn layouts_are_the_headers() {
    let Some(folder) = header_folder() else { return };
    let header = Header::read(&folder, false);
    for (name, size, align) in [
        ("CUmemLocation_st", size_of::<CuMemLocation>(), align_of::<CuMemLocation>()),
        ("CUmemAccessDesc_st", size_of::<CuMemAccessDesc>(), align_of::<CuMemAccessDesc>()),
        ("CUmemAllocationProp_st", size_of::<CuMemAllocationProp>(), align_of::<CuMemAllocationProp>()),
        ("CUmemAllocationProp_st__bindgen_ty_1", size_of::<CuMemAllocationFlags>(), align_of::<CuMemAllocationFlags>()),
        ("CUuuid_st", size_of::<CuUuid>(), align_of::<CuUuid>()),
        ("CUgraphEdgeData_st", size_of::<CuGraphEdgeData>(), align_of::<CuGraphEdgeData>()),
        ("CUipcMemHandle_st", size_of::<CuIpcMemHandle>(), align_of::<CuIpcMemHandle>()),
    ] {
        assert_eq!(header.layout(&format!("Size of {name}")), size, "size of {name}");
        assert_eq!(header.layout(&format!("Alignment of {name}")), align, "alignment of {name}");
    }
    for (field, offset) in [
        ("CUmemLocation_st::type_", offset_of!(CuMemLocation, kind)),
        ("CUmemLocation_st::id", offset_of!(CuMemLocation, id)),
        ("CUmemAccessDesc_st::location", offset_of!(CuMemAccessDesc, location)),
        ("CUmemAccessDesc_st::flags", offset_of!(CuMemAccessDesc, flags)),
        ("CUmemAllocationProp_st::type_", offset_of!(CuMemAllocationProp, kind)),
        ("CUmemAllocationProp_st::requestedHandleTypes", offset_of!(CuMemAllocationProp, requested_handle_types)),
        ("CUmemAllocationProp_st::location", offset_of!(CuMemAllocationProp, location)),
        ("CUmemAllocationProp_st::win32HandleMetaData", offset_of!(CuMemAllocationProp, win32_handle_metadata)),
        ("CUmemAllocationProp_st::allocFlags", offset_of!(CuMemAllocationProp, flags)),
        ("CUmemAllocationProp_st__bindgen_ty_1::compressionType", offset_of!(CuMemAllocationFlags, compression_type)),
        (
            "CUmemAllocationProp_st__bindgen_ty_1::gpuDirectRDMACapable",
            offset_of!(CuMemAllocationFlags, gpu_direct_rdma_capable),
        ),
        ("CUmemAllocationProp_st__bindgen_ty_1::usage", offset_of!(CuMemAllocationFlags, usage)),
        ("CUmemAllocationProp_st__bindgen_ty_1::reserved", offset_of!(CuMemAllocationFlags, reserved)),
        ("CUuuid_st::bytes", offset_of!(CuUuid, bytes)),
    ] {
        assert_eq!(header.layout(&format!("Offset of field: {field}")), offset, "offset of {field}");
    }
}
