//! The mapped objects, and which of them only pass wishes on.

use std::ffi::{CStr, c_int, c_void};
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

/// Objects that only pass requests on: the runtime, the driver and the driver's parts, the library
/// in front, the C library and the loader. The starts of file names, since wheels rename libraries.
const TRANSPARENT: [&str; 15] = [
    "libcudart",
    "libcuda.so",
    "libcachalot",
    "libnvidia-",
    "libc.so",
    "libc-2",
    "libdl.so",
    "libdl-2",
    "libpthread",
    "librt.so",
    "libgcc_s",
    "ld-linux",
    "ld-musl",
    "ld-2",
    "linux-vdso",
];

/// A mapped object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Object {
    /// The path, as known to the loader. For the program, the path of the program's file.
    pub(super) name: String,
    /// The start of the object's addresses.
    pub(super) base: usize,
    /// Whether the object only passes wishes on.
    pub(super) is_transparent: bool,
}

/// All mapped objects at some time.
#[derive(Default)]
struct Mapped {
    objects: Vec<Arc<Object>>,
    /// Ranges of code, in the order of addresses: start, end, and the number of the object.
    code: Vec<(usize, usize, usize)>,
    /// The numbers of objects that were ever mapped, and ever unmapped.
    changes: Changes,
}

type Changes = (u64, u64);

/// The objects of the process, read again when the loader has changed them.
#[derive(Default)]
pub(super) struct Objects {
    known: RwLock<Arc<Mapped>>,
}

impl Objects {
    /// Returns a look-up, which stays constant while the loader goes on.
    pub(super) fn now(&self) -> Lookup {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner).clone();
        if known.changes == changes() {
            return Lookup(known);
        }
        // No lock is held while the loader's lock is: a constructor of a library may allocate.
        let read = Arc::new(read());
        *self.known.write().unwrap_or_else(PoisonError::into_inner) = read.clone();
        Lookup(read)
    }
}

/// Objects by address.
pub(super) struct Lookup(Arc<Mapped>);

impl Lookup {
    /// Returns the object around an address of code.
    pub(super) fn object(&self, address: usize) -> Option<&Arc<Object>> {
        let Mapped { code, objects, .. } = &*self.0;
        let at = code.partition_point(|&(begin, _, _)| begin <= address).checked_sub(1)?;
        let (_, end, object) = code[at];
        (address < end).then(|| &objects[object])
    }
}

/// Returns how many objects the loader has mapped and unmapped since the start.
fn changes() -> Changes {
    unsafe extern "C" fn first(info: *mut libc::dl_phdr_info, _: libc::size_t, out: *mut c_void) -> c_int {
        // SAFETY: the loader passes a valid record.
        let info = unsafe { &*info };
        // SAFETY: the caller passes its own variable.
        unsafe { *out.cast::<Changes>() = (info.dlpi_adds, info.dlpi_subs) };
        // Not 0 ends the walk.
        1
    }
    let mut changes: Changes = (0, 0);
    // SAFETY: the function is called before this call returns, and writes to `changes` only.
    unsafe { libc::dl_iterate_phdr(Some(first), (&raw mut changes).cast()) };
    changes
}

/// Reads all objects.
fn read() -> Mapped {
    unsafe extern "C" fn each(info: *mut libc::dl_phdr_info, _: libc::size_t, out: *mut c_void) -> c_int {
        // SAFETY: the loader passes a valid record.
        let info = unsafe { &*info };
        // SAFETY: the caller passes its own variable, which nothing else uses meanwhile.
        let mapped = unsafe { &mut *out.cast::<Mapped>() };
        mapped.changes = (info.dlpi_adds, info.dlpi_subs);
        let name = if info.dlpi_name.is_null() {
            String::new()
        } else {
            // SAFETY: the loader's name ends with NUL, and lives as long as the call.
            unsafe { CStr::from_ptr(info.dlpi_name) }.to_string_lossy().into_owned()
        };
        let base = info.dlpi_addr as usize;
        let number = mapped.objects.len();
        for at in 0..usize::from(info.dlpi_phnum) {
            // SAFETY: the loader's table has `dlpi_phnum` headers.
            let header = unsafe { info.dlpi_phdr.add(at) };
            // SAFETY: as above.
            let header = unsafe { &*header };
            if header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_X != 0 {
                let begin = base.wrapping_add(header.p_vaddr as usize);
                mapped.code.push((begin, begin.wrapping_add(header.p_memsz as usize), number));
            }
        }
        let object = Object { name, base, is_transparent: false };
        mapped.objects.push(Arc::new(object));
        0
    }
    let mut mapped = Mapped::default();
    // SAFETY: the function is called before this call returns, and writes to `mapped` only.
    unsafe { libc::dl_iterate_phdr(Some(each), (&raw mut mapped).cast()) };
    mapped.code.sort_unstable();
    let own = Lookup(Arc::new(Mapped { objects: mapped.objects.clone(), code: mapped.code.clone(), ..mapped }));
    let own_base = own.object(read as *const () as usize).map(|object| object.base);
    let program = std::env::current_exe().map(|path| path.to_string_lossy().into_owned()).unwrap_or_default();
    for (at, object) in mapped.objects.iter_mut().enumerate() {
        let mut named = Object::clone(object);
        // The loader lists the program first, without a name.
        if at == 0 && named.name.is_empty() {
            named.name.clone_from(&program);
        }
        named.is_transparent = Some(named.base) == own_base || speaks_for_others(&named.name);
        *object = Arc::new(named);
    }
    mapped
}

/// Returns whether the object of a path only passes wishes on.
fn speaks_for_others(path: &str) -> bool {
    let file = Path::new(path).file_name().map_or(path.into(), |name| name.to_string_lossy());
    TRANSPARENT.iter().any(|start| file.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::{Objects, speaks_for_others};
    use std::sync::Arc;

    #[test]
    fn runtimes_drivers_and_the_c_library_speak_for_others() {
        for path in [
            "/usr/local/cuda/lib64/libcudart.so.13",
            "/a/libcudart-8774224f.so.12.4.127",
            "/usr/lib/x86_64-linux-gnu/libcuda.so.580.159.04",
            "/tmp/x/libcachalot-driver.so.1",
            "/lib/x86_64-linux-gnu/libc.so.6",
            "/lib64/ld-linux-x86-64.so.2",
            "linux-vdso.so.1",
            "/usr/lib/libnvidia-ptxjitcompiler.so.1",
        ] {
            assert!(speaks_for_others(path), "{path}");
        }
        for path in ["/a/libc10_cuda.so", "/a/libcublas.so.12", "/a/libcudnn.so.9", "/a/libcurand.so.10", "/bin/app"] {
            assert!(!speaks_for_others(path), "{path}");
        }
    }

    #[test]
    fn an_address_of_code_has_the_object_of_the_loader() {
        let objects = Objects::default();
        let now = objects.now();
        let own = now.object(speaks_for_others as *const () as usize).unwrap();
        assert!(own.is_transparent && own.name.contains("cachalot_run"), "{}", own.name);
        let libc = now.object(libc::getpid as *const () as usize).unwrap();
        assert!(libc.is_transparent && libc.name != own.name, "{}", libc.name);
        let data = Box::new(0_u8);
        assert!(now.object(std::ptr::from_ref(&*data) as usize).is_none());
        assert!(Arc::ptr_eq(&objects.now().0, &now.0), "nothing was loaded meanwhile");
    }
}
