//! Numbers that messages tell beside the failure.

use crate::diagnose::evidence::{CudaVersion, Evidence};
use crate::limits::ComputeCapability;

/// Takes what `line` tells into `evidence`, where that does not know it yet.
pub(super) fn read(line: &str, evidence: &mut Evidence) {
    let lower = line.to_ascii_lowercase();
    read_memory(&lower, evidence);
    let ordinal = ["gpu ", "device ", "cuda:", "device=", "device: "]
        .iter()
        .find_map(|before| integer_after(&lower, before));
    fill(&mut evidence.ordinal, ordinal);
    let version = integer_after(&lower, "found version ").and_then(|it| i32::try_from(it).ok());
    // 11040 is a version of CUDA; 515.65 would be one of the driver.
    let version = version.filter(|version| (1000..100_000).contains(version));
    fill(&mut evidence.driver_cuda, version.map(CudaVersion));
    read_architectures(&lower, evidence);
}

fn fill<T>(place: &mut Option<T>, value: Option<T>) {
    if place.is_none() {
        *place = value;
    }
}

fn read_memory(lower: &str, evidence: &mut Evidence) {
    let requested = ["to allocate ", "allocating ", "failed to alloc ", "allocate request for "]
        .iter()
        .find_map(|before| bytes_after(lower, before));
    fill(&mut evidence.requested_bytes, requested);
    let free = bytes_before(lower, " is free").or_else(|| bytes_before(lower, " free"));
    fill(&mut evidence.free_bytes, free);
    let total = ["total capacity of ", "total capacty of "]
        .iter()
        .find_map(|before| bytes_after(lower, before))
        .or_else(|| bytes_before(lower, " total capacity"))
        .or_else(|| bytes_before(lower, " total."));
    fill(&mut evidence.total_bytes, total);
    fill(&mut evidence.process_bytes, bytes_after(lower, "this process has "));
    fill(
        &mut evidence.cached_bytes,
        bytes_before(lower, " is reserved by pytorch but unallocated"),
    );
    // Older messages tell what is reserved and what of it is allocated.
    let older =
        bytes_before(lower, " reserved in total").zip(bytes_before(lower, " already alloc"));
    fill(&mut evidence.cached_bytes, older.map(|(all, used)| all.saturating_sub(used)));
}

/// PyTorch tells the device's architecture in one sentence and its own in the next.
fn read_architectures(lower: &str, evidence: &mut Evidence) {
    let device = lower.split_once("cuda capability sm_").and_then(|(_, rest)| architecture(rest));
    fill(&mut evidence.capability, device);
    if let Some((_, list)) = lower.split_once("supports cuda capabilities ")
        && evidence.architectures.is_empty()
    {
        let names = list.split([' ', ',', '.']).map_while(|word| word.strip_prefix("sm_"));
        evidence.architectures = names.filter_map(architecture).collect();
    }
}

/// `90` or `120`, and what follows: the last digit is the minor number.
pub(crate) fn architecture(digits: &str) -> Option<ComputeCapability> {
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    let number: u32 = digits.get(..end)?.parse().ok()?;
    (number >= 10).then(|| ComputeCapability::new(number / 10, number % 10))
}

fn integer_after(text: &str, before: &str) -> Option<usize> {
    text.match_indices(before).find_map(|(start, found)| {
        let rest = text.get(start + found.len()..)?;
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        rest.get(..end)?.parse().ok()
    })
}

fn bytes_after(text: &str, before: &str) -> Option<u64> {
    let (_, rest) = text.split_once(before)?;
    let mut words = rest.split([' ', ',', ';', ')', '(']);
    amount(words.next()?, words.next()?)
}

fn bytes_before(text: &str, after: &str) -> Option<u64> {
    text.match_indices(after).find_map(|(end, _)| {
        let mut words = text.get(..end)?.rsplit([' ', ',', ';', ')', '(']);
        let unit = words.next()?;
        amount(words.next()?, unit)
    })
}

/// `20.00` and `gib` as bytes, without floating point.
fn amount(number: &str, unit: &str) -> Option<u64> {
    let shift = match unit.trim_end_matches(['.', ':']) {
        "byte" | "bytes" => 0,
        "kib" | "kb" => 10,
        "mib" | "mb" => 20,
        "gib" | "gb" => 30,
        "tib" | "tb" => 40,
        _ => return None,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let whole: u64 = whole.parse().ok()?;
    // Six digits are finer than any message; more of them could overflow.
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
    fn pytorchs_message_tells_what_was_asked_for_free_total_own_and_cached() {
        let told = evidence(
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 1 has a \
             total capacity of 80.50 GiB of which 9.25 GiB is free. Including non-PyTorch memory, \
             this process has 70.00 GiB memory in use. Of the allocated memory 40.00 GiB is \
             allocated by PyTorch, and 24.00 GiB is reserved by PyTorch but unallocated.",
        );
        assert_eq!(told.requested_bytes, Some(20 * GIB));
        assert_eq!(told.total_bytes, Some(80 * GIB + GIB / 2));
        assert_eq!(told.free_bytes, Some(9 * GIB + GIB / 4));
        assert_eq!(told.process_bytes, Some(70 * GIB));
        assert_eq!(told.cached_bytes, Some(24 * GIB));
        assert_eq!(told.ordinal, Some(1));
    }

    #[test]
    fn the_older_message_tells_the_same_in_other_words() {
        let told = evidence(
            "RuntimeError: CUDA out of memory. Tried to allocate 2.25 GiB (GPU 0; 6.00 GiB total \
             capacity; 768.00 MiB already allocated; 3.00 GiB free; 1.25 GiB reserved in total by \
             PyTorch)",
        );
        assert_eq!(told.requested_bytes, Some(2 * GIB + GIB / 4));
        assert_eq!(told.free_bytes, Some(3 * GIB));
        assert_eq!(told.total_bytes, Some(6 * GIB));
        assert_eq!(told.cached_bytes, Some(GIB / 2));
    }

    #[test]
    fn other_programs_tell_of_memory_in_words_of_their_own() {
        let requested = |line| evidence(line).requested_bytes;
        let allocates =
            "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1073741824 bytes.";
        assert_eq!(requested(allocates), Some(GIB));
        assert_eq!(requested("cudaMalloc: allocating 8192.00 MiB on device 0"), Some(8 * GIB));
        assert_eq!(requested("failed to alloc 2147483648 bytes on host"), Some(2 * GIB));
        let below = evidence("Memory usage: 1073741824 bytes free, 2147483648 bytes total.");
        assert_eq!((below.free_bytes, below.total_bytes), (Some(GIB), Some(2 * GIB)));
    }

    #[test]
    fn versions_and_architectures_are_read() {
        let told = evidence("The NVIDIA driver on your system is too old (found version 11040).");
        assert_eq!(told.driver_cuda, Some(CudaVersion(11_040)));
        let told = evidence("RTX 5090 with CUDA capability sm_120 is not compatible");
        assert_eq!(told.capability, Some(ComputeCapability::new(12, 0)));
        let told = evidence("PyTorch install supports CUDA capabilities sm_50 sm_86 sm_90a.");
        let newest = told.architectures.last().copied();
        assert_eq!((told.architectures.len(), newest), (3, Some(ComputeCapability::new(9, 0))));
    }

    #[test]
    fn absurd_amounts_neither_overflow_nor_count_where_they_are_none() {
        let told = evidence("tried to allocate 18446744073709551615.99999999999 TiB");
        assert_eq!(told.requested_bytes, Some(u64::MAX));
        assert_eq!(evidence("tried to allocate some GiB").requested_bytes, None);
        assert_eq!(evidence("tried to allocate 1.x GiB").requested_bytes, None);
    }
}
