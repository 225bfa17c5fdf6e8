//! Reads memory of this process that another thread may change or unmap.

use core::ptr;
use std::process;

/// Copies the memory at `address`. Returns whether all of it is mapped.
fn read(address: usize, into: &mut [u8]) -> bool {
    let length = into.len();
    let to = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: length };
    let from = libc::iovec { iov_base: ptr::with_exposed_provenance_mut(address), iov_len: length };
    let own = process::id().cast_signed();
    // SAFETY: the kernel writes to the live slice only, and checks the address that it reads.
    let count = unsafe { libc::process_vm_readv(own, &raw const to, 1, &raw const from, 1, 0) };
    usize::try_from(count) == Ok(length)
}

/// The number at `offset` from `base`.
pub(super) fn word(base: usize, offset: usize) -> Option<usize> {
    bytes(base, offset).map(usize::from_ne_bytes)
}

/// The number of 32 bits at `offset` from `base`.
pub(super) fn int(base: usize, offset: usize) -> Option<i32> {
    bytes(base, offset).map(i32::from_ne_bytes)
}

pub(super) fn bytes<const N: usize>(base: usize, offset: usize) -> Option<[u8; N]> {
    let mut into = [0; N];
    read(base.wrapping_add(offset), &mut into).then_some(into)
}

/// A copy of `length` bytes at `address`, unless they are more than `most`.
pub(super) fn copy(address: usize, length: usize, most: usize) -> Option<Vec<u8>> {
    let mut into = vec![0; Some(length).filter(|length| *length <= most)?];
    read(address, &mut into).then_some(into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_not_mapped_is_no_fault() {
        let numbers = [7_usize, 8];
        assert_eq!(word((&raw const numbers).expose_provenance(), 8), Some(8));
        for address in [0, 8, usize::MAX - 4, 1 << 47] {
            assert_eq!(word(address, 0), None, "{address:#x}");
        }
        assert_eq!(copy((&raw const numbers).expose_provenance(), 17, 16), None);
    }
}
