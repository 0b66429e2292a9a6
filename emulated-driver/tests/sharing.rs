//! Physical memory shared with another process.

use crate::common::{Emulated, PAGE, in_child, is_child, text};
use cachalot_emulated_driver::api::{POSIX_FD, Properties};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// A page as an offset.
const STEP: u64 = PAGE as u64;

/// Reserves addresses, and maps a handle there.
fn mapped(driver: &Emulated, handle: u64, bytes: usize) -> u64 {
    let base = driver.reserve(bytes).expect("addresses");
    assert_eq!((driver.cuMemMap(base, bytes, 0, handle, 0), driver.allow(base, bytes)), (0, 0));
    base
}

/// Unmaps memory and releases the handle.
fn let_go(driver: &Emulated, base: u64, handle: u64, bytes: usize) {
    assert_eq!((driver.cuMemUnmap(base, bytes), driver.cuMemRelease(handle)), (0, 0));
}

/// The variable with the number of the descriptor that a child process inherits.
const INHERITED: &str = "CACHALOT_EMU_TEST_INHERITED";

#[test]
fn another_process_reads_and_writes_the_same_bytes() {
    const NAME: &str = "another_process_reads_and_writes_the_same_bytes";
    let driver = Emulated::new();
    if is_child(NAME) {
        let inherited = std::env::var(INHERITED).expect("the parent passes it").parse().expect("a number");
        let handle = driver.import(inherited).expect("imported");
        let base = mapped(&driver, handle, 2 * PAGE);
        assert_eq!(driver.read(base + 2 * STEP - 4, 4), Ok(vec![1, 2, 3, 4]));
        assert_eq!(driver.control.peek(base + 2 * STEP - 4, 4).expect("memory"), [1, 2, 3, 4]);
        assert_eq!(driver.write(base, &[5, 6]), 0);
        return let_go(&driver, base, handle, 2 * PAGE);
    }
    // Memory in two pieces of the device's file.
    let apart: Vec<u64> = (0..3).map(|_| driver.create(PAGE).expect("memory")).collect();
    assert_eq!(driver.cuMemRelease(apart[1]), 0);
    let handle = driver.create_shared(2 * PAGE).expect("memory");
    let base = mapped(&driver, handle, 2 * PAGE);
    assert_eq!(driver.write(base + 2 * STEP - 4, &[1, 2, 3, 4]), 0);
    let descriptor = driver.export(handle).expect("exported");
    // SAFETY: the call touches no memory. A child inherits the copy.
    let number = unsafe { libc::dup(descriptor.as_raw_fd()) };
    assert!(number >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the descriptor was just made, and has no other owner.
    let inherited = unsafe { OwnedFd::from_raw_fd(number) };
    let child = in_child(NAME, &[(INHERITED, &number.to_string())]);
    assert!(child.status.success(), "{}", text(&child));
    drop(inherited);
    assert_eq!(driver.read(base, 2), Ok(vec![5, 6]));
    let_go(&driver, base, handle, 2 * PAGE);
}

#[test]
fn shared_memory_is_used_until_the_last_descriptor_and_import_are_gone() {
    let (exporter, importer) = (Emulated::new(), Emulated::new());
    let free = exporter.info().expect("info").0;
    let handle = exporter.create_shared(PAGE).expect("memory");
    let descriptor = exporter.export(handle).expect("exported");
    assert_eq!(exporter.cuMemRelease(handle), 0);
    assert_eq!(exporter.info().expect("info").0, free - PAGE, "the descriptor keeps the memory");
    // Several imports of one descriptor.
    let imports = [(); 2].map(|()| importer.import(descriptor.as_raw_fd()).expect("imported"));
    let other = exporter.export(handle);
    assert_eq!(other.map(drop), Err(1), "the handle is gone");
    drop(descriptor);
    let bases = imports.map(|import| mapped(&importer, import, PAGE));
    assert_eq!((importer.write(bases[0] + 9, &[7]), importer.read(bases[1] + 9, 1)), (0, Ok(vec![7])));
    let_go(&importer, bases[0], imports[0], PAGE);
    assert_eq!(exporter.info().expect("info").0, free - PAGE, "the other import keeps the memory");
    assert_eq!(exporter.count("physical"), 1);
    let_go(&importer, bases[1], imports[1], PAGE);
    // A process that another test starts has a copy of each descriptor until it runs its program.
    for _ in 0..1000 {
        if exporter.count("physical") == 0 {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!((exporter.info().expect("info").0, exporter.count("physical")), (free, 0));
    assert_eq!((importer.count("physical"), importer.count("mappings")), (0, 0));
}

#[test]
fn an_import_outlives_the_exporter_and_is_not_exported_again() {
    let (exporter, first, second) = (Emulated::new(), Emulated::new(), Emulated::new());
    let handle = exporter.create_shared(PAGE).expect("memory");
    let base = mapped(&exporter, handle, PAGE);
    assert_eq!(exporter.write(base, &[3]), 0);
    let descriptor = exporter.export(handle).expect("exported");
    let import = first.import(descriptor.as_raw_fd()).expect("imported");
    let_go(&exporter, base, handle, PAGE);
    assert_eq!(first.export(import).map(drop), Err(1), "as an H100 with driver 580.159.04");
    assert_eq!(first.cuMemRelease(import), 0);
    let import = second.import(descriptor.as_raw_fd()).expect("imported");
    drop(descriptor);
    assert_eq!(second.read(mapped(&second, import, PAGE), 1), Ok(vec![3]));
    assert_eq!(exporter.count("physical"), 1);
}

#[test]
fn what_is_not_shared_is_refused() {
    let driver = Emulated::new();
    let create = |handle_types| {
        let properties = Properties { handle_types, ..Properties::of_device(0) };
        let mut granularity = 0;
        let asked = driver.cuMemGetAllocationGranularity(&mut granularity, &properties, 0);
        (asked, driver.cuMemCreate(&mut 0, PAGE, &properties, 0))
    };
    // Handles of Windows, and of NVLink fabrics.
    assert_eq!([2, 4, 8].map(create), [(801, 801); 3]);
    let plain = driver.create(PAGE).expect("memory");
    assert_eq!(driver.export(plain).map(drop), Err(1));
    let shared = driver.create_shared(PAGE).expect("memory");
    let mut to = 0_i32;
    let mut export = |kind, flags| driver.cuMemExportToShareableHandle((&raw mut to).cast(), shared, kind, flags);
    assert_eq!([export(0, 0), export(2, 0), export(POSIX_FD, 1)], [1, 1, 1]);
    let file = std::fs::File::open("/dev/null").expect("a file");
    let (socket, _other) = std::os::unix::net::UnixStream::pair().expect("sockets");
    for descriptor in [-1, 9999, file.as_raw_fd(), socket.as_raw_fd()] {
        assert_eq!(driver.import(descriptor), Err(999), "{descriptor}");
    }
    let exported = driver.export(shared).expect("exported");
    let address = std::ptr::without_provenance_mut(exported.as_raw_fd() as usize);
    assert_eq!(driver.cuMemImportFromShareableHandle(&mut 0, address, 2), 1);
}

#[test]
fn a_device_without_the_attribute_shares_nothing() {
    const NAME: &str = "a_device_without_the_attribute_shares_nothing";
    if is_child(NAME) {
        let driver = Emulated::new();
        let mut value = 1;
        assert_eq!((driver.cuDeviceGetAttribute(&mut value, 103, 0), value), (0, 0));
        assert_eq!(driver.create_shared(PAGE), Err(801));
        assert!(driver.create(PAGE).is_ok());
        return;
    }
    let child = in_child(NAME, &[("CACHALOT_EMU_ATTRIBUTES", r#"{"103": 0}"#)]);
    assert!(child.status.success(), "{}", text(&child));
}

#[test]
fn memory_of_a_locality_domain_is_imported_through_a_fabric() {
    const NAME: &str = "memory_of_a_locality_domain_is_imported_through_a_fabric";
    if !is_child(NAME) {
        let child = in_child(NAME, &[("CACHALOT_EMU_ATTRIBUTES", r#"{"128":1,"149":2}"#)]);
        assert!(child.status.success(), "{}", text(&child));
        return;
    }
    let (exporter, importer) = (Emulated::new(), Emulated::new());
    let localized = |domain: u8, handle_types| Properties {
        location_kind: 6,
        location: i32::from_ne_bytes([0, domain, 0, 0]),
        handle_types,
        ..Properties::of_device(0)
    };
    let mut handle = 0;
    assert_eq!(exporter.cuMemCreate(&mut handle, PAGE, &localized(2, 0), 0), 1, "there are two domains");
    assert_eq!(exporter.cuMemCreate(&mut handle, PAGE, &localized(1, POSIX_FD | 8), 0), 0);
    let base = mapped(&exporter, handle, PAGE);
    assert_eq!(exporter.write(base, &[7, 8]), 0);
    let mut name = [0_u8; 64];
    let mut export = |handle| exporter.cuMemExportToShareableHandle(name.as_mut_ptr().cast(), handle, 8, 0);
    assert_eq!(export(exporter.create_shared(PAGE).expect("memory")), 1, "created for descriptors alone");
    assert_eq!(export(handle), 0);
    let mut copy = 0;
    assert_eq!(importer.cuMemImportFromShareableHandle(&mut copy, name.as_mut_ptr().cast(), 8), 0);
    assert_eq!(importer.read(mapped(&importer, copy, PAGE), 2), Ok(vec![7, 8]));
    assert_eq!(exporter.export(handle).map(drop), Ok(()), "a descriptor, too");
    name[20] ^= 1;
    assert_eq!(importer.cuMemImportFromShareableHandle(&mut copy, name.as_mut_ptr().cast(), 8), 1);
}
