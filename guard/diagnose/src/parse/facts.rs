//! Reads sizes, versions and architectures from messages.

use core::str::FromStr;

use super::work;
use crate::capability::Capability;
use crate::evidence::{CudaVersion, Evidence};

/// An amount of memory: the fact, the words before its number, and the words after it.
type Amount =
    (fn(&mut Evidence) -> &mut Option<u64>, &'static [&'static str], &'static [&'static str]);

const AMOUNTS: [Amount; 5] = [
    (
        |it| &mut it.requested_bytes,
        &["to allocate ", "allocating ", "failed to alloc ", "allocate request for "],
        &[],
    ),
    (|it| &mut it.free_bytes, &[], &[" is free", " free"]),
    (
        |it| &mut it.total_bytes,
        &["total capacity of ", "total capacty of "],
        &[" total capacity", " total."],
    ),
    (|it| &mut it.process_bytes, &["this process has "], &[]),
    (|it| &mut it.cached_bytes, &[], &[" is reserved by pytorch but unallocated"]),
];
const ORDINALS: [&str; 5] = ["gpu ", "device ", "cuda:", "device=", "device: "];

/// Adds the facts in `line` to `evidence`, without replacing known facts.
pub(super) fn read(line: &str, evidence: &mut Evidence) {
    work::scanned(line);
    let lower = line.to_ascii_lowercase();
    for (fact, before, after) in AMOUNTS {
        let found = before.iter().find_map(|words| bytes_after(&lower, words));
        let found = found.or_else(|| after.iter().find_map(|words| bytes_before(&lower, words)));
        fill(fact(evidence), found);
    }
    // Older messages state how much is reserved, and how much of that is allocated.
    let older =
        bytes_before(&lower, " reserved in total").zip(bytes_before(&lower, " already alloc"));
    fill(&mut evidence.cached_bytes, older.map(|(all, used)| all.saturating_sub(used)));
    let ordinal = ORDINALS.iter().find_map(|before| number_after(&lower, before));
    fill(&mut evidence.ordinal, ordinal);
    // 11040 is a CUDA version; 515.65 would be a driver version.
    let version = number_after(&lower, "found version ");
    let version = version.filter(|version| (1000..100_000).contains(version));
    fill(&mut evidence.driver_cuda, version.map(CudaVersion));
    read_architectures(&lower, evidence);
}

fn fill<T>(place: &mut Option<T>, value: Option<T>) {
    *place = place.take().or(value);
}

/// PyTorch states the device's architecture in one sentence and its own architectures in the next.
fn read_architectures(lower: &str, evidence: &mut Evidence) {
    let device =
        lower.split_once("cuda capability sm_").and_then(|(_, rest)| Capability::from_sm(rest));
    let device = device.or_else(|| {
        let (_, mut rest) = lower.split_once(CAPABILITY)?;
        let major = number(&mut rest)?;
        let minor = number(&mut rest.strip_prefix('.')?)?;
        Some(Capability(major, minor))
    });
    fill(&mut evidence.capability, device);
    if let Some((_, list)) = lower.split_once("supports cuda capabilities ")
        && evidence.architectures.is_empty()
    {
        let names = list.split([' ', ',', '.']).map_while(|word| word.strip_prefix("sm_"));
        evidence.architectures =
            names.filter_map(Capability::from_sm).take(ARCHITECTURES).collect();
    }
}

/// How ggml states the architecture of a device.
pub(super) const CAPABILITY: &str = ", compute capability ";
/// More architectures than any build has.
const ARCHITECTURES: usize = 64;

/// The number that `rest` begins with, and removes it.
pub(super) fn number<T: FromStr>(rest: &mut &str) -> Option<T> {
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let (digits, after) = rest.split_at(end);
    let number = digits.parse().ok()?;
    *rest = after;
    Some(number)
}

pub(super) fn number_after<T: FromStr>(text: &str, before: &str) -> Option<T> {
    text.match_indices(before)
        .find_map(|(start, found)| number(&mut text.get(start + found.len()..)?))
}

pub(super) fn bytes_after(text: &str, before: &str) -> Option<u64> {
    let (_, rest) = text.split_once(before)?;
    let mut words = rest.split([' ', ';', ')', '(']);
    // CuPy groups digits: `25,600,000 bytes`.
    let number = words.next()?.trim_end_matches(',').replace(',', "");
    amount(&number, words.next()?)
}

fn bytes_before(text: &str, after: &str) -> Option<u64> {
    text.match_indices(after).find_map(|(end, _)| {
        let mut words = text.get(..end)?.rsplit([' ', ',', ';', ')', '(']);
        let unit = words.next()?;
        amount(words.next()?, unit)
    })
}

/// The bytes of `20.00` and `gib`, without floating point.
fn amount(number: &str, unit: &str) -> Option<u64> {
    let shift = match unit.trim_end_matches(['.', ':', ',']) {
        "byte" | "bytes" => 0,
        "kib" | "kb" => 10,
        "mib" | "mb" => 20,
        "gib" | "gb" => 30,
        "tib" | "tb" => 40,
        _ => return None,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let whole: u64 = whole.parse().ok()?;
    // Messages have at most six digits. More could overflow.
    let fraction = fraction.get(..fraction.len().min(6))?;
    let power = u32::try_from(fraction.len()).ok()?;
    let fraction: u128 = if fraction.is_empty() { 0 } else { fraction.parse::<u64>().ok()?.into() };
    let bytes = (u128::from(whole) << shift) + (fraction << shift) / 10_u128.pow(power);
    Some(u64::try_from(bytes).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evidence(line: &str) -> Evidence {
        let mut evidence = Evidence::default();
        read(line, &mut evidence);
        evidence
    }

    const GIB: u64 = 1 << 30;

    #[test]
    fn pytorch_states_requested_free_total_own_and_cached_memory() {
        let found = evidence(
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 1 has a \
             total capacity of 80.50 GiB of which 9.25 GiB is free. Including non-PyTorch memory, \
             this process has 70.00 GiB memory in use. Of the allocated memory 40.00 GiB is \
             allocated by PyTorch, and 24.00 GiB is reserved by PyTorch but unallocated.",
        );
        assert_eq!(found.requested_bytes, Some(20 * GIB));
        assert_eq!(found.total_bytes, Some(80 * GIB + GIB / 2));
        assert_eq!(found.free_bytes, Some(9 * GIB + GIB / 4));
        assert_eq!(found.process_bytes, Some(70 * GIB));
        assert_eq!(found.cached_bytes, Some(24 * GIB));
        assert_eq!(found.ordinal, Some(1));
    }

    #[test]
    fn an_older_message_of_pytorch_is_read_as_well() {
        let found = evidence(
            "RuntimeError: CUDA out of memory. Tried to allocate 2.25 GiB (GPU 0; 6.00 GiB total \
             capacity; 768.00 MiB already allocated; 3.00 GiB free; 1.25 GiB reserved in total by \
             PyTorch)",
        );
        assert_eq!(found.requested_bytes, Some(2 * GIB + GIB / 4));
        assert_eq!(found.free_bytes, Some(3 * GIB));
        assert_eq!(found.total_bytes, Some(6 * GIB));
        assert_eq!(found.cached_bytes, Some(GIB / 2));
    }

    #[test]
    fn other_programs_state_memory_in_their_own_format() {
        let requested = |line| evidence(line).requested_bytes;
        let allocates =
            "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1073741824 bytes.";
        assert_eq!(requested(allocates), Some(GIB));
        assert_eq!(requested("cudaMalloc: allocating 8192.00 MiB on device 0"), Some(8 * GIB));
        assert_eq!(requested("failed to alloc 2147483648 bytes on host"), Some(2 * GIB));
        assert_eq!(
            requested("Out of memory allocating 1,073,741,824 bytes (allocated)"),
            Some(GIB)
        );
        let below = evidence("Memory usage: 1073741824 bytes free, 2147483648 bytes total.");
        assert_eq!((below.free_bytes, below.total_bytes), (Some(GIB), Some(2 * GIB)));
    }

    #[test]
    fn versions_and_architectures_are_read() {
        let found = evidence("The NVIDIA driver on your system is too old (found version 11040).");
        assert_eq!(found.driver_cuda, Some(CudaVersion(11_040)));
        let found = evidence("RTX 5090 with CUDA capability sm_120 is not compatible");
        assert_eq!(found.capability, Some(Capability(12, 0)));
        let found = evidence("PyTorch install supports CUDA capabilities sm_50 sm_86 sm_90a.");
        let newest = found.architectures.last().copied();
        assert_eq!((found.architectures.len(), newest), (3, Some(Capability(9, 0))));
    }

    #[test]
    fn absurd_amounts_do_not_overflow_and_malformed_ones_are_ignored() {
        let found = evidence("tried to allocate 18446744073709551615.99999999999 TiB");
        assert_eq!(found.requested_bytes, Some(u64::MAX));
        assert_eq!(evidence("tried to allocate some GiB").requested_bytes, None);
        assert_eq!(evidence("tried to allocate 1.x GiB").requested_bytes, None);
    }
}
