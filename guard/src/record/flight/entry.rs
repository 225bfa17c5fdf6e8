//! A launch on record, and as the words that fit a cache line.

use core::panic::Location;

use super::ring::Record;

/// Words of an entry on its stream's own ring, without its call site.
pub(super) const WORDS: usize = 6;

/// A launch that the driver accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The stream's handle.
    pub(crate) stream: usize,
    /// The number under which the kernel's name is known, below [`KERNELS`].
    pub(crate) kernel: u32,
    pub(crate) grid: [u32; 3],
    /// Below 4096 along x and y, 256 along z: several times what devices take.
    pub(crate) block: [u32; 3],
    /// First item and items of the chunk.
    pub(crate) items: [u64; 2],
    /// The chunk's place, and the launches of its plan: `u32::MAX` stands for all more.
    pub(crate) place: [u32; 2],
    /// Nanoseconds of the recorder's clock, as of its last tick of 2^20, for 36 years.
    pub(crate) at_ns: u64,
    pub(crate) call_site: *const Location<'static>,
}

/// Kernels that have numbers.
pub(crate) const KERNELS: usize = 1 << KERNEL_BITS;

/// Nanoseconds of a tick, as a power of two.
const TICK: u32 = 20;
/// Bits of a kernel's number, beside those of the ticks.
const KERNEL_BITS: u32 = 24;
/// Bits of a block's sizes.
const BLOCK_BITS: [u32; 3] = [12, 12, 8];

impl Entry {
    /// All but the stream.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "what it packs is in registers")]
    pub(super) fn record(&self) -> Record<WORDS> {
        let ([gx, gy, gz], [bx, by, bz]) = (self.grid, self.block);
        let ([start, items], [index, launches]) = (self.items, self.place);
        let [x_bits, y_bits, z_bits] = BLOCK_BITS;
        let fits = |size: u32, bits: u32| size.min((1 << bits) - 1);
        let block =
            fits(bx, x_bits) | fits(by, y_bits) << x_bits | fits(bz, z_bits) << (x_bits + y_bits);
        let moment = u64::from(self.kernel) | self.at_ns >> TICK << KERNEL_BITS;
        let words = [pair(gx, gy), pair(gz, block), pair(index, launches), start, items, moment];
        Record { words, call_site: self.call_site }
    }

    /// The entry of `record`, made on `stream`.
    pub(super) fn of(stream: usize, record: Record<WORDS>) -> Self {
        let [g, gb, place, start, items, moment] = record.words;
        let ([gx, gy], [gz, block]) = (halves(g), halves(gb));
        let [x_bits, y_bits, z_bits] = BLOCK_BITS;
        let bits = |from: u32, count: u32| block >> from & ((1 << count) - 1);
        let kernel = low_half(moment & ((1 << KERNEL_BITS) - 1));
        Self {
            stream,
            kernel,
            grid: [gx, gy, gz],
            block: [bits(0, x_bits), bits(x_bits, y_bits), bits(x_bits + y_bits, z_bits)],
            items: [start, items],
            place: halves(place),
            at_ns: moment >> KERNEL_BITS << TICK,
            call_site: record.call_site,
        }
    }
}

#[inline]
fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

fn halves(pair: u64) -> [u32; 2] {
    [low_half(pair), low_half(pair >> 32)]
}

fn low_half(bits: u64) -> u32 {
    u32::try_from(bits & u64::from(u32::MAX)).unwrap_or(u32::MAX)
}
