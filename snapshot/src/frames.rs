//! Which frames of a stack a reader looks for.
//!
//! PyTorch records by default every C++ frame as well: 25 to 230 frames, of which the innermost are
//! those of the unwinder and of the allocator itself. A person wants the line of the program. This
//! is the one rule for reports, exports and pages:
//!
//! 1. the frames in Python outside of PyTorch, where there are any;
//! 2. without any Python, as in the threads of a backward pass, the C++ frames that say what was
//!    computed, first the node of the graph (`NllLossBackward0`);
//! 3. else the frames in Python of PyTorch;
//! 4. else all frames.
//!
//! The names of the plumbing are those of PyTorch 2.0 to 2.11 and `CPython` 3.8 to 3.14, as seen in
//! recordings.

use crate::stack::{Frame, Stack};
use std::borrow::Cow;

/// Where a frame comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// Python outside of PyTorch: the program, or a library that it uses.
    Program,
    /// Python of PyTorch, of the standard library, or made by a compiler.
    Library,
    /// A node of autograd's graph in its backward pass.
    Node,
    /// Other code in C or C++ that says what is computed.
    Native,
    /// The unwinder, the allocator, the dispatcher, the interpreter, and the start of threads.
    Plumbing,
}

/// Folders of installed packages. The path of a module starts after it.
const PACKAGES: [&str; 2] = ["site-packages", "dist-packages"];

/// What is between folders: a recording may be from Windows.
const SEPARATORS: [char; 2] = ['/', '\\'];

/// Parts of names in C++ that appear under every request, whatever is computed.
const PLUMBING: [&str; 22] = [
    "torch::unwind::",
    "CapturedTraceback::",
    "gather_with_cpp",
    "CachingAllocator",
    "c10::cuda::",
    "c10::Allocator",
    "c10::StorageImpl",
    "c10::impl::",
    "c10::Dispatcher",
    "at::detail::empty",
    "at::native::empty",
    "at::empty",
    "at::_ops::empty",
    "at::meta::",
    "create_out(",
    "set_output_",
    "wrapper_CUDA_",
    "::redispatch(",
    "torch::autograd::VariableType::",
    "torch::autograd::Engine::",
    "torch::autograd::Node::",
    "PythonEngine::",
];

/// The starts of names of the interpreter, of the C library and of threads.
const STARTS: [&str; 9] = ["_Py", "Py", "__libc_", "_start", "__clone", "clone", "start_thread", "pthread_", "std::"];

impl Frame {
    /// Returns where the frame comes from.
    pub fn origin(&self) -> Origin {
        let file = self.filename.as_str();
        if file.starts_with('<') || matches!(file.rsplit_once('.'), Some((_, "py" | "pyx"))) {
            return if is_of_library(file) { Origin::Library } else { Origin::Program };
        }
        let name = self.name.as_str();
        if self.node().is_some() {
            Origin::Node
        } else if name.is_empty()
            || STARTS.iter().any(|&start| name.starts_with(start) && (start != "Py" || is_of_interpreter(name)))
            || PLUMBING.iter().any(|part| name.contains(part))
            || name.contains("_apply_functional")
            || name.contains("THPVariable_")
            || name.contains("autograd::dispatch_")
        {
            Origin::Plumbing
        } else {
            Origin::Native
        }
    }

    /// Returns the class of the node of autograd's graph that the frame runs, as `MmBackward0`.
    fn node(&self) -> Option<&str> {
        let (class, _) = self.name.split_once("::apply(")?;
        let class = class.rsplit("::").next()?;
        class.contains("Backward").then_some(class)
    }

    /// Returns the function for people. Of a name in C++ the parameters, the arguments of templates
    /// and the name of a namespace without one are left out.
    pub fn short_name(&self) -> Cow<'_, str> {
        match self.origin() {
            Origin::Program | Origin::Library => Cow::Borrowed(&self.name),
            Origin::Node => Cow::Borrowed(self.node().unwrap_or(&self.name)),
            Origin::Native | Origin::Plumbing => shortened(&self.name),
        }
    }

    /// Returns the file for people: of an installed package the path inside it. `None` if the file
    /// is unknown.
    pub fn short_file(&self) -> Option<&str> {
        let file = self.filename.as_str();
        let inside = installed(file).unwrap_or(file);
        (!matches!(inside, "" | "??" | ":")).then_some(inside)
    }

    /// Returns the line in the file. `None` if it is unknown: C++ frames mostly have no line, and
    /// PyTorch writes a missing one of Python as -1, which older versions store without its sign.
    pub fn known_line(&self) -> Option<i64> {
        (self.line > 0).then_some(self.line)
    }

    /// Returns the frame for people, as `file:line function`, or the function alone.
    pub fn label(&self) -> String {
        let name = self.short_name();
        match (self.short_file(), self.known_line()) {
            (Some(file), Some(line)) => format!("{file}:{line} {name}"),
            (Some(file), None) => format!("{file} {name}"),
            (None, _) => name.into_owned(),
        }
    }
}

impl Stack {
    /// Returns the frames without the plumbing, the innermost first; all frames if nothing else is
    /// there. For tools that draw the whole way to a request.
    pub fn telling(&self) -> Vec<&Frame> {
        let all = self.frames().iter().map(|frame| &**frame);
        let telling: Vec<&Frame> = all.clone().filter(|frame| frame.origin() != Origin::Plumbing).collect();
        if telling.is_empty() { all.collect() } else { telling }
    }

    /// Returns the frames that a reader looks for, the most telling one first and the others from
    /// the innermost outwards. Empty only if the stack is.
    pub fn shown(&self) -> Vec<&Frame> {
        let origins: Vec<Origin> = self.frames().iter().map(|frame| frame.origin()).collect();
        let of = |wanted: &[Origin]| {
            let found = self.frames().iter().zip(&origins).filter(|(_, origin)| wanted.contains(origin));
            found.map(|(frame, _)| &**frame).collect::<Vec<&Frame>>()
        };
        let has = |wanted| origins.contains(&wanted);
        if has(Origin::Program) {
            of(&[Origin::Program])
        } else if has(Origin::Library) {
            of(&[Origin::Library])
        } else if has(Origin::Node) {
            [of(&[Origin::Node]), of(&[Origin::Native])].concat()
        } else if has(Origin::Native) {
            of(&[Origin::Native])
        } else {
            self.frames().iter().map(|frame| &**frame).collect()
        }
    }
}

/// Returns whether a file in Python is PyTorch's, the standard library's, or made by a compiler.
fn is_of_library(file: &str) -> bool {
    if file.starts_with("<frozen ") || file.starts_with("<eval_with_key>") || file.contains("torchinductor_") {
        return true;
    }
    // Inside the folder of packages: the folders above it may have any name, `torch` as well.
    if let Some(module) = installed(file) {
        return module.split(SEPARATORS).next() == Some("torch");
    }
    let of_version = |python: &str| python.starts_with(|letter: char| letter.is_ascii_digit());
    let is_standard = |folder: &str, inner: &str| match (folder, inner) {
        ("lib", python) => python.strip_prefix("python").is_some_and(of_version),
        (python, "Lib") => python.strip_prefix("Python").is_some_and(of_version),
        _ => false,
    };
    let mut pairs = file.split(SEPARATORS).zip(file.split(SEPARATORS).skip(1));
    pairs.any(|(folder, inner)| folder == "torch" || is_standard(folder, inner))
}

/// Returns the path of an installed package's file inside the folder of packages.
fn installed(file: &str) -> Option<&str> {
    PACKAGES.iter().find_map(|folder| file.rsplit_once(folder)?.1.strip_prefix(SEPARATORS))
}

/// Returns whether a name that starts with `Py` is one of `CPython`: `PyObject_Call`, `Py_RunMain`.
fn is_of_interpreter(name: &str) -> bool {
    name.starts_with("Py_") || name[2..].starts_with(|letter: char| letter.is_ascii_uppercase()) && name.contains('_')
}

/// Returns a name in C++ without parameters, arguments of templates, and namespaces without a name.
fn shortened(name: &str) -> Cow<'_, str> {
    let name = name.replace("(anonymous namespace)::", "").replace("operator()", "operator\u{1}");
    let mut short = String::with_capacity(name.len());
    let mut depth = 0_u32;
    let mut previous = ' ';
    for letter in name.chars() {
        match letter {
            // The sign of an operator opens nothing.
            '<' if short.ends_with("operator") || short.ends_with("operator<") => short.push(letter),
            '<' | '(' | '[' => depth += 1,
            '>' if previous == '-' && depth == 0 => short.push(letter),
            '>' | ')' | ']' => depth = depth.saturating_sub(1),
            _ if depth == 0 => short.push(letter),
            _ => {}
        }
        previous = letter;
    }
    let short = short.replace('\u{1}', "()");
    let short = short.trim().trim_end_matches(" const").trim_end();
    let short = short.strip_prefix("at::_ops::").map_or_else(
        || short.to_owned(),
        |operator| format!("at::{}", operator.strip_suffix("::call").unwrap_or(operator)),
    );
    Cow::Owned(if short.is_empty() { name.replace('\u{1}', "()") } else { short })
}

#[cfg(test)]
mod tests {
    use super::Origin;
    use crate::{Frame, Stack};

    fn frame(filename: &str, line: i64, name: &str) -> Frame {
        Frame { name: name.to_owned(), filename: filename.to_owned(), line, ..Frame::default() }
    }

    /// The innermost frames of every recording with the defaults of PyTorch 2.11.
    fn recorded(rest: &[Frame]) -> Stack {
        let mut frames = vec![
            frame("??", 0, "torch::unwind::unwind()"),
            frame("??", 0, "torch::CapturedTraceback::gather(bool, bool, bool)"),
            frame("memory_snapshot.cpp", 0, "torch::cuda::(anonymous namespace)::gather_with_cpp()"),
            frame(
                "CUDACachingAllocator.cpp",
                0,
                "c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator::malloc(unsigned long, CUstream_st*)",
            ),
            frame("", 0, "c10::cuda::CUDACachingAllocator::Native::NativeCachingAllocator::allocate(unsigned long)"),
            frame("??", 0, "at::detail::empty_generic(c10::ArrayRef<long>, c10::Allocator*, c10::DispatchKeySet)"),
            frame(
                "RegisterCUDA_0.cpp",
                0,
                "at::(anonymous namespace)::create_out(c10::ArrayRef<long>, c10::ArrayRef<long>)",
            ),
        ];
        frames.extend_from_slice(rest);
        Stack::from(frames)
    }

    fn labels(stack: &Stack) -> Vec<String> {
        stack.shown().into_iter().map(Frame::label).collect()
    }

    #[test]
    fn the_lines_of_the_program_hide_everything_else() {
        let stack = recorded(&[
            frame("??", 0, "_PyEval_EvalFrameDefault"),
            frame("/opt/torch/lib/python3.12/site-packages/torch/nn/modules/linear.py", 134, "forward"),
            frame("/opt/torch/lib/python3.12/site-packages/transformers/models/gpt2/modeling_gpt2.py", 77, "forward"),
            frame("??", 0, "PyObject_Vectorcall"),
            frame("/home/me/train.py", 12, "step"),
            frame("/usr/lib/python3.12/runpy.py", 88, "_run_code"),
            frame("<frozen runpy>", 198, "_run_module_as_main"),
            frame("??", 0, "__libc_start_main"),
        ]);
        assert_eq!(
            labels(&stack),
            ["transformers/models/gpt2/modeling_gpt2.py:77 forward", "/home/me/train.py:12 step"]
        );
    }

    #[test]
    fn folders_of_windows_are_folders() {
        let stack = Stack::from(vec![
            frame(r"D:\me\.venv\Lib\site-packages\torch\functional.py", 373, "einsum"),
            frame(r"D:\me\.venv\Lib\site-packages\einops\einops.py", 939, "einsum"),
            frame(r"D:\me\torch_lessons\train.py", 12, "step"),
            frame(r"C:\Users\me\Python312\Lib\runpy.py", 88, "_run_code"),
        ]);
        assert_eq!(labels(&stack), [r"einops\einops.py:939 einsum", r"D:\me\torch_lessons\train.py:12 step"]);
    }

    #[test]
    fn a_notebook_and_standard_input_are_the_program() {
        for file in ["/tmp/ipykernel_41/2904.py", "<stdin>", "<ipython-input-3-ab>", "<string>"] {
            assert_eq!(frame(file, 1, "<module>").origin(), Origin::Program, "{file}");
        }
    }

    #[test]
    fn a_backward_pass_is_known_by_its_node() {
        let stack = recorded(&[
            frame("??", 0, "at::_ops::nll_loss_backward::redispatch(c10::DispatchKeySet, at::Tensor const&)"),
            frame(
                "VariableType_3.cpp",
                0,
                "torch::autograd::VariableType::(anonymous namespace)::nll_loss_backward(c10::DispatchKeySet)",
            ),
            frame("??", 0, "at::_ops::nll_loss_backward::call(at::Tensor const&, std::optional<at::Tensor> const&)"),
            frame(
                "Functions.cpp",
                0,
                "torch::autograd::generated::NllLossBackward0_apply_functional(std::vector<at::Tensor>&&)",
            ),
            frame(
                "??",
                0,
                "torch::autograd::generated::NllLossBackward0::apply(std::vector<at::Tensor, std::allocator<at::Tensor> >&&)",
            ),
            frame("", 0, "torch::autograd::Node::operator()(std::vector<at::Tensor>&&)"),
            frame("??", 0, "torch::autograd::Engine::thread_main(std::shared_ptr<torch::autograd::GraphTask> const&)"),
            frame("??", 0, "pthread_condattr_setpshared"),
            frame("??", 0, "__clone"),
        ]);
        assert_eq!(labels(&stack), ["NllLossBackward0", "at::nll_loss_backward"]);
    }

    #[test]
    fn a_program_in_c_has_its_functions() {
        let stack = Stack::from(vec![
            frame("??", 0, "c10::cuda::anything"),
            frame("app.c", 41, "main"),
            frame("??", 0, "_start"),
        ]);
        assert_eq!(labels(&stack), ["app.c:41 main"]);
    }

    #[test]
    fn pytorch_alone_or_plumbing_alone_are_shown_rather_than_nothing() {
        let torch = frame("torch/autograd/graph.py", 825, "_engine_run_backward");
        assert_eq!(labels(&recorded(&[torch])), ["torch/autograd/graph.py:825 _engine_run_backward"]);
        assert_eq!(labels(&recorded(&[])).len(), 7);
        assert!(Stack::default().shown().is_empty());
    }

    #[test]
    fn names_lose_what_makes_them_long() {
        for (long, short) in [
            (
                "void at::native::(anonymous namespace)::gpu_kernel<at::F<float>, 4>(at::TensorIterator&, at::F<float> const&)",
                "void at::native::gpu_kernel",
            ),
            ("ns::Table::operator()(int) const", "ns::Table::operator()"),
            ("ns::operator<<(std::ostream&, ns::A const&)", "ns::operator<<"),
            ("at::_ops::mm::call(at::Tensor const&, at::Tensor const&)", "at::mm"),
            ("(weird)", "(weird)"),
        ] {
            assert_eq!(frame("??", 0, long).short_name(), short);
        }
    }

    #[test]
    fn a_missing_line_is_no_line() {
        assert_eq!(frame("a.py", -1, "f").label(), "a.py f");
        assert_eq!(frame("a.py", 0, "f").label(), "a.py f");
        assert_eq!(frame("", 3, "f").label(), "f");
    }
}
