//! Memory and addresses after the end of their context.

use crate::sheet::{PAGE, Sheet, host, host_pages, yes};
use cachalot_emulated_driver::api::PoolProperties;

/// Bytes of each kind of memory.
const BYTES: usize = 128 << 20;
/// Steps in which lost memory is counted, because a context takes some memory as well.
const STEP: i64 = 64 << 20;
/// `CU_MEMPOOL_ATTR_USED_MEM_CURRENT`.
const USED: i32 = 7;

/// The way in which a context ends.
#[derive(Clone, Copy)]
pub(crate) enum End {
    /// `cuCtxDestroy` of a created context.
    Destroy,
    /// `cuCtxDetach` of a created context.
    Detach,
    /// `cuDevicePrimaryCtxReset`.
    Reset,
    /// The last `cuDevicePrimaryCtxRelease`.
    Release,
}

impl End {
    /// Returns the context that stays, which is current. The other context is of the kind that
    /// ends.
    pub(crate) fn survivor(self, sheet: &Sheet) -> u64 {
        assert_eq!(sheet.cuInit(0), 0, "cuInit");
        match self {
            Self::Destroy | Self::Detach => sheet.enter(0).expect("a context"),
            Self::Reset | Self::Release => {
                let mut context = 0;
                assert_eq!(sheet.cuCtxCreate_v2(&mut context, 0, 0), 0, "cuCtxCreate");
                context
            }
        }
    }

    /// Makes the context that will end current.
    pub(crate) fn begin(self, sheet: &Sheet) -> u64 {
        match self {
            Self::Destroy | Self::Detach => {
                let mut context = 0;
                assert_eq!(sheet.cuCtxCreate_v2(&mut context, 0, 0), 0, "cuCtxCreate");
                context
            }
            Self::Reset | Self::Release => sheet.enter(0).expect("a context"),
        }
    }

    /// Ends the current context, and makes the other one current.
    pub(crate) fn end(self, sheet: &Sheet, context: u64, survivor: u64) -> u32 {
        let answer = match self {
            Self::Destroy => sheet.cuCtxDestroy_v2(context),
            Self::Detach => sheet.cuCtxDetach(context),
            Self::Reset => {
                let answer = sheet.cuDevicePrimaryCtxReset_v2(0);
                sheet.cuDevicePrimaryCtxRelease_v2(0);
                answer
            }
            Self::Release => sheet.cuDevicePrimaryCtxRelease_v2(0),
        };
        assert_eq!(sheet.cuCtxSetCurrent(survivor), 0, "cuCtxSetCurrent");
        answer
    }
}

/// A kind of memory: the name, how it is made, and the calls after the end with their codes.
type Kind = (&'static str, fn(&Sheet) -> Vec<u64>, fn(&Sheet, &[u64]) -> String);

/// Makes mapped memory: the address and the handle.
fn mapped(sheet: &Sheet) -> Vec<u64> {
    let (base, handle) = (sheet.reserve(BYTES).expect("addresses"), sheet.create(BYTES).expect("memory"));
    assert_eq!((sheet.cuMemMap(base, BYTES, 0, handle, 0), sheet.allow(base, BYTES)), (0, 0));
    vec![base, handle]
}

/// Returns whether the host can read a page of its own memory.
fn readable(address: u64) -> &'static str {
    let mut there = 0_u8;
    // SAFETY: asks about one page and writes one byte.
    yes(unsafe { libc::mincore(host(address & !0xfff), 1, &raw mut there) } == 0)
}

/// All kinds.
const KINDS: &[Kind] = &[
    ("nothing", |_| Vec::new(), |_, _| String::new()),
    (
        "physical memory",
        |sheet| vec![sheet.create(BYTES).expect("memory")],
        |sheet, of| format!("cuMemRelease {}", sheet.cuMemRelease(of[0])),
    ),
    ("mapped memory", mapped, |sheet, of| {
        let (unmapped, released) = (sheet.cuMemUnmap(of[0], BYTES), sheet.cuMemRelease(of[1]));
        format!(
            "cuMemUnmap {unmapped} cuMemRelease {released} cuMemAddressFree {}",
            sheet.cuMemAddressFree(of[0], BYTES)
        )
    }),
    (
        "mapped memory without its handle",
        |sheet| {
            let of = mapped(sheet);
            sheet.cuMemRelease(of[1]);
            of
        },
        |sheet, of| {
            let unmapped = sheet.cuMemUnmap(of[0], BYTES);
            format!("cuMemUnmap {unmapped} cuMemAddressFree {}", sheet.cuMemAddressFree(of[0], BYTES))
        },
    ),
    (
        "reserved addresses",
        |sheet| vec![sheet.reserve(BYTES).expect("addresses")],
        |sheet, of| format!("cuMemAddressFree {}", sheet.cuMemAddressFree(of[0], BYTES)),
    ),
    (
        "memory of cuMemAlloc",
        |sheet| vec![sheet.alloc(BYTES).expect("memory")],
        |sheet, of| format!("cuMemFree_v2 {}", sheet.cuMemFree_v2(of[0])),
    ),
    (
        "memory of the default pool",
        |sheet| {
            let stream = sheet.stream(1).expect("a stream");
            let address = sheet.alloc_async(BYTES, stream).expect("memory");
            sheet.cuStreamSynchronize(stream);
            vec![address, sheet.default_pool(0).expect("a pool")]
        },
        |sheet, of| {
            let used =
                sheet.pool_attribute(of[1], USED).map_or_else(|code| format!("code {code}"), |it| it.to_string());
            let (freed, synchronized) = (sheet.cuMemFreeAsync(of[0], 0), sheet.cuCtxSynchronize());
            format!("used {used} cuMemFreeAsync {freed} {synchronized} trim {}", sheet.cuMemPoolTrimTo(of[1], 0))
        },
    ),
    (
        "memory of a made pool",
        |sheet| {
            let (mut pool, mut address) = (0, 0);
            assert_eq!(sheet.cuMemPoolCreate(&mut pool, &PoolProperties::of_device(0)), 0);
            assert_eq!(sheet.cuMemAllocFromPoolAsync(&mut address, BYTES, pool, 0), 0);
            sheet.cuCtxSynchronize();
            vec![address, pool]
        },
        |sheet, of| {
            let (freed, synchronized) = (sheet.cuMemFreeAsync(of[0], 0), sheet.cuCtxSynchronize());
            format!("cuMemFreeAsync {freed} {synchronized} cuMemPoolDestroy {}", sheet.cuMemPoolDestroy(of[1]))
        },
    ),
    (
        "managed memory",
        |sheet| {
            let mut address = 0;
            assert_eq!(sheet.cuMemAllocManaged(&mut address, BYTES, 1), 0);
            assert_eq!((sheet.cuMemsetD8_v2(address, 1, BYTES), sheet.cuCtxSynchronize()), (0, 0));
            vec![address]
        },
        |sheet, of| format!("cuMemFree_v2 {}", sheet.cuMemFree_v2(of[0])),
    ),
    (
        "registered memory",
        |sheet| {
            let pages = host_pages(PAGE);
            assert_eq!(sheet.cuMemHostRegister_v2(pages, PAGE, 0), 0);
            vec![pages as u64]
        },
        |sheet, of| {
            let (gone, again) =
                (sheet.cuMemHostUnregister(host(of[0])), sheet.cuMemHostRegister_v2(host(of[0]), PAGE, 0));
            format!("cuMemHostUnregister {gone} again {again} {}", sheet.cuMemHostUnregister(host(of[0])))
        },
    ),
    (
        "pinned memory",
        |sheet| {
            let mut pinned = std::ptr::null_mut();
            assert_eq!(sheet.cuMemAllocHost_v2(&mut pinned, PAGE), 0);
            vec![pinned as u64]
        },
        |sheet, of| format!("there {} cuMemFreeHost {}", readable(of[0]), sheet.cuMemFreeHost(host(of[0]))),
    ),
];

/// Makes every kind of memory in a context, ends the context, and asks what stays.
fn questions(sheet: &Sheet, end: End) {
    let survivor = end.survivor(sheet);
    let free = || sheet.info().map_or(0, |(free, _)| free as i64);
    for round in 0..2 {
        // The first contexts of a process leave something with the driver.
        let context = end.begin(sheet);
        let answer = end.end(sheet, context, survivor);
        sheet.remark(format!("round {round}: the end answers {answer}, {} bytes are free", free()));
    }
    for (name, make, after) in KINDS {
        let before = free();
        let kept = || (before - free() + STEP / 2).div_euclid(STEP) * (STEP >> 20);
        let context = end.begin(sheet);
        let of = make(sheet);
        let answer = end.end(sheet, context, survivor);
        let then = kept();
        let calls = after(sheet, &of);
        sheet.line(name, format!("{answer} kept {then} MiB, {calls}, kept {} MiB", kept()));
    }
    sheet.line("cuMemAlloc_v2 in the other context", sheet.alloc(PAGE).err().unwrap_or(0));
    sheet.line("cuCtxSynchronize of the other context", sheet.cuCtxSynchronize());
}

/// Asks what stays after `cuCtxDestroy`.
pub(crate) fn destroy(sheet: &Sheet) {
    questions(sheet, End::Destroy);
}

/// Asks what stays after `cuCtxDetach`.
pub(crate) fn detach(sheet: &Sheet) {
    questions(sheet, End::Detach);
}

/// Asks what stays after `cuDevicePrimaryCtxReset`.
pub(crate) fn reset(sheet: &Sheet) {
    questions(sheet, End::Reset);
}

/// Asks what stays after the last `cuDevicePrimaryCtxRelease`.
pub(crate) fn release(sheet: &Sheet) {
    questions(sheet, End::Release);
}
