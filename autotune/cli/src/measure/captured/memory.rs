//! Device memory for a captured launch: at the addresses that it had in the program, where that is possible.

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{
    CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationProp, CUmemAllocationType,
    CUmemGenericAllocationHandle, CUmemLocation, CUmemLocationType, cuMemAddressFree,
    cuMemAddressReserve, cuMemCreate, cuMemMap, cuMemRelease, cuMemSetAccess, cuMemUnmap,
};
use gridguard_report::CapturedMemory;

/// The memory of a launch.
#[derive(Debug)]
pub(super) struct Placed {
    /// The address of each allocation; 0 for a variable.
    pub(super) addresses: Vec<CUdeviceptr>,
    /// Whether some allocation has another address than in the program.
    pub(super) is_moved: bool,
    _mapped: Vec<Mapped>,
    _allocated: Vec<Allocated>,
}

impl Placed {
    /// Memory for these allocations on a device, whose context is current. Their contents are undefined.
    pub(super) fn new(memory: &[CapturedMemory], device: i32) -> Result<Self, DriverError> {
        let allocations = || memory.iter().filter(|one| one.variable.is_none());
        let mut spans: Vec<(u64, u64)> = Vec::new();
        for CapturedMemory { address, bytes, .. } in allocations() {
            let start = address / GRANULARITY * GRANULARITY;
            let end =
                address.saturating_add(*bytes).div_ceil(GRANULARITY).saturating_mul(GRANULARITY);
            match spans.last_mut() {
                Some((_, last)) if *last >= start => *last = end.max(*last),
                _ => spans.push((start, end)),
            }
        }
        let mut placed = Self {
            addresses: Vec::new(),
            is_moved: false,
            _mapped: Vec::new(),
            _allocated: Vec::new(),
        };
        for (start, end) in spans {
            placed._mapped.extend(Mapped::new(start, end.saturating_sub(start), device)?);
        }
        for CapturedMemory { address, bytes, variable, .. } in memory {
            // In the order of the addresses.
            let below = placed._mapped.partition_point(|span| span.at <= *address);
            let below = below.checked_sub(1).and_then(|place| placed._mapped.get(place));
            let at = if variable.is_some() {
                0
            } else if below.is_some_and(|span| *address - span.at < span.bytes) {
                *address
            } else {
                let allocated = Allocated::new(*bytes)?;
                let at = allocated.0;
                placed._allocated.push(allocated);
                placed.is_moved = true;
                at
            };
            placed.addresses.push(at);
        }
        Ok(placed)
    }
}

/// Memory that the driver allocates anywhere.
#[derive(Debug)]
pub(super) struct Allocated(pub(super) CUdeviceptr);

#[allow(unsafe_code, reason = "calls of the driver with numbers")]
impl Allocated {
    pub(super) fn new(bytes: u64) -> Result<Self, DriverError> {
        // SAFETY: a context is current. The memory is written before it is read.
        unsafe { result::malloc_sync(size(bytes)) }.map(Self)
    }
}

#[allow(unsafe_code, reason = "as above")]
impl Drop for Allocated {
    fn drop(&mut self) {
        // SAFETY: allocated above, freed once, and waits for the work that uses it.
        let _ = unsafe { result::free_sync(self.0) };
    }
}

/// Physical memory that is mapped at wanted addresses.
#[derive(Debug)]
struct Mapped {
    at: u64,
    bytes: u64,
    /// None until it is mapped.
    handle: Option<CUmemGenericAllocationHandle>,
}

#[allow(unsafe_code, reason = "calls of the driver with numbers and live structures")]
impl Mapped {
    /// Memory at `at`, both multiples of [`GRANULARITY`]; `None` if this process uses the addresses.
    fn new(at: u64, bytes: u64, device: i32) -> Result<Option<Self>, DriverError> {
        let location =
            CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device };
        let length = size(bytes);
        let mut found = 0;
        // SAFETY: the pointer is to a live number.
        let reserved =
            unsafe { cuMemAddressReserve(&raw mut found, length, size(GRANULARITY), at, 0) };
        if reserved.result().is_err() {
            return Ok(None);
        }
        let mut mapped = Self { at: found, bytes, handle: None };
        if found != at {
            return Ok(None);
        }
        // SAFETY: numbers, pointers that may be null, and enums that have 0.
        let mut properties: CUmemAllocationProp = unsafe { core::mem::zeroed() };
        properties.type_ = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location = location;
        let flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        let access = CUmemAccessDesc { location, flags };
        let mut handle = 0;
        // SAFETY: the pointers are to live values; the range was reserved above.
        unsafe {
            cuMemCreate(&raw mut handle, length, &raw const properties, 0).result()?;
            let status = cuMemMap(found, length, 0, handle, 0).result();
            if status.is_err() {
                cuMemRelease(handle).result()?;
            }
            status?;
            mapped.handle = Some(handle);
            cuMemSetAccess(found, length, &raw const access, 1).result()?;
        }
        Ok(Some(mapped))
    }
}

#[allow(unsafe_code, reason = "as above")]
impl Drop for Mapped {
    fn drop(&mut self) {
        let length = size(self.bytes);
        // SAFETY: reserved and, with a handle, mapped above; the launches that use it have ended.
        unsafe {
            if let Some(handle) = self.handle {
                let _ = cuMemUnmap(self.at, length);
                let _ = cuMemRelease(handle);
            }
            let _ = cuMemAddressFree(self.at, length);
        }
    }
}

/// A size for the driver, which refuses one that is too large.
fn size(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// What the driver maps at least, on all devices.
const GRANULARITY: u64 = 2 << 20;
