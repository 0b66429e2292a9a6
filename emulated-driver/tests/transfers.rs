//! Copies of lines and rows, fills of every width, and the variants for programs whose stream 0 is
//! the thread's own.

use crate::common::Emulated;
use cachalot_emulated_driver::api::{Copy2D, Copy3D, End2D, End3D, Location};

/// Bytes of the memory of a test.
const BYTES: usize = 4096;

/// Allocates memory with the bytes 0, 1, 2 and so on.
fn counted(driver: &Emulated) -> u64 {
    let address = driver.alloc(BYTES).expect("memory");
    assert_eq!(driver.write(address, &(0..BYTES).map(|at| at as u8).collect::<Vec<_>>()), 0);
    address
}

/// Allocates cleared memory.
fn cleared(driver: &Emulated) -> u64 {
    let address = driver.alloc(BYTES).expect("memory");
    assert_eq!(driver.write(address, &[0; BYTES]), 0);
    address
}

/// Returns an end of a matrix in device memory.
fn matrix(device: u64, pitch: usize) -> End2D {
    End2D { kind: 2, device, pitch, ..End2D::default() }
}

#[test]
fn lines_are_copied_between_every_two_ends() {
    let driver = Emulated::new();
    let (from, to) = (counted(&driver), cleared(&driver));
    let mut seen = [0_u8; 4];
    assert_eq!((driver.cuMemcpyDtoD_v2(to, from + 8, 4), driver.read(to, 4)), (0, Ok(vec![8, 9, 10, 11])));
    assert_eq!((driver.cuMemcpyDtoD_v2_ptds(to, from + 4, 4), driver.cuStreamSynchronize(2)), (0, 0));
    assert_eq!(driver.read(to, 4), Ok(vec![4, 5, 6, 7]));
    assert_eq!(
        (driver.cuMemcpy(to + 4, [1_u8, 2].as_ptr() as u64, 2), driver.read(to, 6)),
        (0, Ok(vec![4, 5, 6, 7, 1, 2]))
    );
    assert_eq!((driver.cuMemcpy_ptds(seen.as_mut_ptr() as u64, to + 2, 4), seen), (0, [6, 7, 1, 2]));
    let context = driver.enter(0).expect("a context");
    assert_eq!((driver.cuMemcpyPeer(to, context, from + 1, context, 1), driver.read(to, 1)), (0, Ok(vec![1])));
    assert_eq!(driver.cuMemcpyPeer(to, 12_345, from, context, 1), 709);
    assert_eq!((driver.cuMemcpyDtoD_v2(to, from, BYTES + 1), driver.cuMemcpyDtoD_v2(to, from, 0)), (1, 0));
}

#[test]
fn a_copy_between_devices_needs_no_access() {
    let driver = Emulated::new();
    let (here, from) = (driver.enter(0).expect("a context"), counted(&driver));
    let there = driver.enter(1).expect("a context");
    let to = cleared(&driver);
    let stream = driver.stream(1).expect("a stream");
    assert_eq!(driver.cuMemcpyPeerAsync(to, there, from + 16, here, 2, stream), 0);
    assert_eq!((driver.cuStreamSynchronize(stream), driver.read(to, 2)), (0, Ok(vec![16, 17])));
    let end = |device, context| End3D { kind: 2, device, context, pitch: 64, height: 4, ..End3D::default() };
    let copy = Copy3D { from: end(from, here), to: end(to, there), width: 1, height: 2, depth: 2 };
    assert_eq!((driver.cuMemcpy3DPeer(&copy), driver.cuMemcpy3DPeerAsync(&copy, stream)), (0, 0));
    assert_eq!(driver.cuStreamSynchronize(stream), 0);
    let rows = [0_u64, 64, 256, 320].map(|at| driver.read(to + at, 1).expect("memory")[0]);
    assert_eq!(rows, [0, 64, 0, 64]);
    assert_eq!(driver.cuMemcpy3DPeer(&Copy3D { to: end(to, 12_345), ..copy }), 709);
}

#[test]
fn rows_are_copied_and_what_lies_between_them_stays() {
    let driver = Emulated::new();
    let (from, to) = (counted(&driver), cleared(&driver));
    let source = End2D { x: 3, y: 1, ..matrix(from, 32) };
    let copy = Copy2D { from: source, to: matrix(to, 8), width: 2, height: 3 };
    assert_eq!(driver.cuMemcpy2D_v2(&copy), 0);
    let rows = [35, 36, 0, 0, 0, 0, 0, 0, 67, 68, 0, 0, 0, 0, 0, 0, 99, 100, 0];
    assert_eq!(driver.read(to, rows.len()), Ok(rows.to_vec()));
    let mut seen = [0_u8; 9];
    let host = End2D { kind: 1, host: seen.as_mut_ptr() as u64, pitch: 3, ..End2D::default() };
    assert_eq!(driver.cuMemcpy2DUnaligned_v2(&Copy2D { to: host, ..copy }), 0);
    assert_eq!(seen, [35, 36, 0, 67, 68, 0, 99, 100, 0]);
    // Any address, on both ends, and the stream of the thread.
    let (up, down) = (End2D { kind: 4, device: host.host, ..host }, End2D { kind: 4, ..matrix(to + 64, 16) });
    assert_eq!(driver.cuMemcpy2DAsync_v2_ptsz(&Copy2D { from: up, to: down, width: 2, height: 2 }, 0), 0);
    assert_eq!(
        (driver.cuStreamSynchronize(2), driver.read(to + 64, 18)),
        (0, {
            let mut rows = vec![0; 18];
            (rows[0], rows[1], rows[16], rows[17]) = (35, 36, 67, 68);
            Ok(rows)
        })
    );
}

#[test]
fn slices_are_copied_by_their_pitch_and_height() {
    let driver = Emulated::new();
    let (from, to) = (counted(&driver), cleared(&driver));
    let source = End3D { x: 1, y: 1, z: 1, kind: 2, device: from, pitch: 16, height: 3, ..End3D::default() };
    let mut seen = [0_u8; 8];
    let target = End3D { kind: 1, host: seen.as_mut_ptr() as u64, pitch: 2, height: 2, ..End3D::default() };
    let copy = Copy3D { from: source, to: target, width: 2, height: 2, depth: 2 };
    assert_eq!((driver.cuMemcpy3D_v2(&copy), seen), (0, [65, 66, 81, 82, 113, 114, 129, 130]));
    let stream = driver.stream(1).expect("a stream");
    let target = End3D { kind: 2, device: to, pitch: 2, height: 2, ..End3D::default() };
    assert_eq!(
        (driver.cuMemcpy3DAsync_v2(&Copy3D { to: target, ..copy }, stream), driver.cuStreamSynchronize(stream)),
        (0, 0)
    );
    assert_eq!(driver.read(to, 8), Ok(seen.to_vec()));
    // One slice needs no height, and one row no pitch.
    let flat = End3D { x: 5, pitch: 0, height: 0, y: 0, z: 0, ..source };
    let copy = Copy3D { from: flat, to: End3D { pitch: 0, height: 0, ..target }, width: 2, height: 1, depth: 1 };
    assert_eq!((driver.cuMemcpy3D_v2(&copy), driver.read(to, 2)), (0, Ok(vec![5, 6])));
}

#[test]
fn ends_that_have_no_room_are_refused() {
    let driver = Emulated::new();
    let (from, to) = (counted(&driver), cleared(&driver));
    let copy = Copy2D { from: matrix(from, 64), to: matrix(to, 64), width: 8, height: 4 };
    let code = |change: &dyn Fn(&mut Copy2D)| {
        let mut copy = copy;
        change(&mut copy);
        driver.cuMemcpy2D_v2(&copy)
    };
    assert_eq!(code(&|_| ()), 0);
    assert_eq!((code(&|copy| copy.to.pitch = 7), code(&|copy| copy.from.x = 60)), (1, 1));
    assert_eq!((code(&|copy| copy.from.y = 1 << 40), code(&|copy| copy.to.x = usize::MAX)), (1, 1));
    assert_eq!((code(&|copy| copy.from.kind = 3), code(&|copy| copy.from.kind = 0)), (801, 1));
    assert_eq!((code(&|copy| copy.to.device = 0), code(&|copy| copy.height = 0)), (1, 0));
    let end = |device| End3D { kind: 2, device, pitch: 16, height: 4, ..End3D::default() };
    let copy = Copy3D { from: end(from), to: end(to), width: 4, height: 4, depth: 2 };
    let low = End3D { height: 3, ..end(to) };
    assert_eq!((driver.cuMemcpy3D_v2(&Copy3D { to: low, ..copy }), driver.cuMemcpy3D_v2(&copy)), (1, 0));
    assert_eq!(driver.cuMemcpy3D_v2(&Copy3D { to: End3D { level: 1, ..end(to) }, ..copy }), 1);
}

#[test]
fn a_number_of_every_width_fills_lines_and_rows() {
    let driver = Emulated::new();
    let to = cleared(&driver);
    let stream = driver.stream(1).expect("a stream");
    assert_eq!((driver.cuMemsetD8_v2(to, 7, 3), driver.read(to, 4)), (0, Ok(vec![7, 7, 7, 0])));
    assert_eq!((driver.cuMemsetD16_v2(to, 0x0201, 3), driver.read(to, 7)), (0, Ok(vec![1, 2, 1, 2, 1, 2, 0])));
    assert_eq!((driver.cuMemsetD32_v2_ptds(to, 0x0403_0201, 2), driver.cuStreamSynchronize(2)), (0, 0));
    assert_eq!(driver.read(to, 9), Ok(vec![1, 2, 3, 4, 1, 2, 3, 4, 0]));
    assert_eq!(driver.cuMemsetD16Async(to, 0x0908, 1, stream), 0);
    assert_eq!(driver.cuMemsetD32Async(to + 4, u32::MAX, 1, stream), 0);
    assert_eq!((driver.cuStreamSynchronize(stream), driver.read(to, 8)), (0, Ok(vec![8, 9, 3, 4, 255, 255, 255, 255])));
    let rows = to + 512;
    assert_eq!(driver.cuMemsetD2D8_v2(rows, 4, 1, 2, 2), 0);
    assert_eq!(driver.cuMemsetD2D16_v2(rows + 8, 4, 0x0302, 1, 2), 0);
    assert_eq!(driver.read(rows, 16), Ok(vec![1, 1, 0, 0, 1, 1, 0, 0, 2, 3, 0, 0, 2, 3, 0, 0]));
    assert_eq!(driver.cuMemsetD2D32Async(rows, 8, 5, 1, 2, stream), 0);
    assert_eq!(driver.cuMemsetD2D8Async(rows + 4, 8, 6, 1, 2, stream), 0);
    assert_eq!(driver.cuStreamSynchronize(stream), 0);
    assert_eq!(driver.read(rows, 16), Ok(vec![5, 0, 0, 0, 6, 1, 0, 0, 5, 0, 0, 0, 6, 3, 0, 0]));
    // Numbers are at multiples of their width, and rows do not overlap.
    assert_eq!((driver.cuMemsetD16_v2(to + 1, 0, 1), driver.cuMemsetD32_v2(to + 2, 0, 1)), (1, 1));
    assert_eq!((driver.cuMemsetD2D32_v2(to, 6, 0, 1, 2), driver.cuMemsetD2D8_v2(to, 1, 0, 2, 2)), (1, 1));
    assert_eq!((driver.cuMemsetD8_v2(to, 0, BYTES + 1), driver.cuMemsetD8_v2(0, 0, 0)), (1, 0));
}

#[test]
fn a_captured_copy_of_rows_is_one_node_and_runs_at_each_launch() {
    let driver = Emulated::new();
    let (from, to) = (counted(&driver), cleared(&driver));
    let stream = driver.stream(1).expect("a stream");
    assert_eq!(driver.cuStreamBeginCapture_v2(stream, 0), 0);
    let copy = Copy2D { from: matrix(from + 1, 64), to: matrix(to, 2), width: 1, height: 2 };
    assert_eq!(driver.cuMemcpy2DAsync_v2(&copy, stream), 0);
    let (mut graph, mut executable) = (0, 0);
    assert_eq!(driver.cuStreamEndCapture(stream, &mut graph), 0);
    assert_eq!(driver.cuGraphInstantiateWithFlags(&mut executable, graph, 0), 0);
    assert_eq!((driver.read(to, 4), driver.cuGraphUpload(executable, stream)), (Ok(vec![0; 4]), 0));
    assert_eq!((driver.cuGraphLaunch(executable, stream), driver.cuStreamSynchronize(stream)), (0, 0));
    assert_eq!(driver.read(to, 4), Ok(vec![1, 0, 65, 0]));
    assert_eq!((driver.cuGraphUpload(7, stream), driver.cuGraphLaunch_ptsz(executable, 0)), (1, 0));
}

#[test]
fn managed_memory_alone_moves_ahead_of_its_use() {
    let driver = Emulated::new();
    let (mut managed, plain) = (0, cleared(&driver));
    let stream = driver.stream(1).expect("a stream");
    assert_eq!(driver.cuMemAllocManaged(&mut managed, BYTES, 1), 0);
    assert_eq!([-1, 0, 1, 2].map(|device| driver.cuMemPrefetchAsync(managed, BYTES, device, stream)), [0, 0, 0, 101]);
    assert_eq!(
        (driver.cuMemPrefetchAsync(plain, 8, 0, stream), driver.cuMemPrefetchAsync(managed, 0, 0, stream)),
        (1, 1)
    );
    let to = |kind, id| driver.cuMemPrefetchAsync_v2(managed, 8, Location { kind, id }, 0, stream);
    assert_eq!([to(1, 0), to(2, 0), to(1, 2), to(9, 0)], [0, 0, 101, 1]);
    // The host waits for a fill of managed memory.
    assert_eq!(driver.cuMemsetD8_v2(managed, 3, 1), 0);
    // SAFETY: managed memory is the host's, too, and no work uses the memory.
    assert_eq!(unsafe { (managed as *const u8).read_volatile() }, 3);
}
