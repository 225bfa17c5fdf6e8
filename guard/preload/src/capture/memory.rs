//! Takes the arguments of a launch, and returns the memory that it can reach.

use std::collections::BTreeMap;
use std::io::{self, BufReader, Read};

use gridguard_report::{Bytes, CapturedMemory, MemoryKind};

use crate::driver::Driver;
use crate::driver::abi::SUCCESS;
use crate::watch::known::Reason;
use crate::watch::memory::live::{self, Allocation};

/// Whole allocations that the launch reaches.
pub(super) struct Reached<'a> {
    driver: &'a Driver,
    /// The most bytes.
    limit: u64,
    bytes: u64,
    /// Sizes by address.
    ranges: BTreeMap<u64, u64>,
    /// Those whose words were not read yet.
    unread: Vec<(u64, u64)>,
    /// The allocations that this library knows, by address.
    known: Vec<(u64, Allocation)>,
    /// Words of the memory that are addresses in an allocation.
    pub(super) pointers: u64,
}

impl<'a> Reached<'a> {
    pub(super) fn new(driver: &'a Driver, limit: u64) -> Self {
        let (ranges, unread, known) = (BTreeMap::new(), Vec::new(), live::by_address());
        Self { driver, limit, bytes: 0, ranges, unread, known, pointers: 0 }
    }

    /// Adds the allocations that the words of an argument are addresses of.
    pub(super) fn follow(&mut self, argument: &[u8]) -> Result<(), Reason> {
        words(argument).try_for_each(|word| self.add(word))
    }

    /// Counts the memory of a variable, which may have addresses too.
    pub(super) fn add_variable(&mut self, address: u64, bytes: u64) -> Result<(), Reason> {
        self.unread.push((address, bytes));
        self.count(bytes)
    }

    /// Adds the allocations that the memory has addresses of, and those that they have addresses of. Reads everything
    /// once.
    pub(super) fn follow_memory(&mut self) -> Result<(), Reason> {
        let mut part = vec![0; PART_BYTES];
        while let Some((address, bytes)) = self.unread.pop() {
            let mut contents = contents(self.driver, address, bytes);
            let mut left = bytes;
            while left > 0 {
                let size = usize::try_from(left).unwrap_or(usize::MAX).min(PART_BYTES);
                let failed = |error: io::Error| Reason::from(error.to_string());
                contents.read_exact(&mut part[..size]).map_err(failed)?;
                for word in words(&part[..size]) {
                    // Asking the driver for each word would take long.
                    if self.is_known(word) {
                        self.pointers += 1;
                        self.add(word)?;
                    }
                }
                left -= u64::try_from(size).unwrap_or(left);
            }
        }
        Ok(())
    }

    /// The allocations, by address.
    pub(super) fn memory(&self) -> Vec<CapturedMemory> {
        let of = |(address, bytes): (&u64, &u64)| {
            let known = self.known.binary_search_by_key(address, |(known, _)| *known);
            let known = known.ok().and_then(|place| self.known.get(place));
            let kind = known.map_or(MemoryKind::Device, |(_, allocation)| allocation.kind);
            CapturedMemory { address: *address, bytes: *bytes, kind, variable: None }
        };
        self.ranges.iter().map(of).collect()
    }

    fn add(&mut self, address: u64) -> Result<(), Reason> {
        if address < LEAST_ADDRESS || self.holds(address) {
            return Ok(());
        }
        let Some((start, bytes)) = self.driver.allocation_of(address) else { return Ok(()) };
        if self.ranges.insert(start, bytes).is_none() {
            self.unread.push((start, bytes));
            self.count(bytes)?;
        }
        Ok(())
    }

    fn count(&mut self, bytes: u64) -> Result<(), Reason> {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes <= self.limit {
            return Ok(());
        }
        Err(format!(
            "it reaches at least {} of memory, the limit is {}: set --capture-limit",
            Bytes(self.bytes),
            Bytes(self.limit)
        )
        .into())
    }

    fn holds(&self, address: u64) -> bool {
        let below = self.ranges.range(..=address).next_back();
        below.is_some_and(|(start, bytes)| address - start < *bytes)
    }

    fn is_known(&self, address: u64) -> bool {
        let after = self.known.partition_point(|(start, _)| *start <= address);
        let below = after.checked_sub(1).and_then(|place| self.known.get(place));
        below.is_some_and(|(start, allocation)| address - start < allocation.bytes)
    }
}

/// The 8-byte words of memory that begins at one.
fn words(memory: &[u8]) -> impl Iterator<Item = u64> {
    memory.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word))
}

/// Reads device memory.
pub(super) fn contents(driver: &Driver, address: u64, bytes: u64) -> BufReader<Device<'_>> {
    BufReader::with_capacity(PART_BYTES, Device { driver, address, left: bytes })
}

#[derive(Debug)]
pub(super) struct Device<'a> {
    driver: &'a Driver,
    address: u64,
    left: u64,
}

impl Read for Device<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let size = into.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        if size == 0 {
            return Ok(0);
        }
        let copy = self.driver.copy_out.ok_or(io::ErrorKind::Unsupported)?;
        // SAFETY: room for so many bytes. The driver checks the device's address.
        let status = unsafe { copy(into.as_mut_ptr().cast(), self.address, size) };
        if status != SUCCESS {
            let error = self.driver.error(status);
            return Err(io::Error::other(format!("cuMemcpyDtoH returned {error}")));
        }
        let done = u64::try_from(size).unwrap_or(self.left);
        (self.address, self.left) = (self.address + done, self.left - done);
        Ok(size)
    }
}

impl Driver {
    /// Start and size of the allocation that contains the address.
    fn allocation_of(&self, address: u64) -> Option<(u64, u64)> {
        let (mut start, mut bytes) = (0, 0);
        // SAFETY: the pointers are to live numbers. Any other address is an error.
        let status = unsafe { self.allocation_range?(&raw mut start, &raw mut bytes, address) };
        let bytes = u64::try_from(bytes).ok().filter(|bytes| *bytes > 0)?;
        (status == SUCCESS).then_some((start, bytes))
    }
}

/// Bytes of memory that are read at once: whole words.
const PART_BYTES: usize = 4 << 20;
/// No allocation is below.
const LEAST_ADDRESS: u64 = 1 << 16;
