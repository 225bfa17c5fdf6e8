//! The sums of gradients of keys and values over the heads of queries that share them.

#[cfg(feature = "cuda")]
use core::ffi::c_void;

use gridguard::{BatchAxis, DeviceLimits, LaunchRequest};

use crate::blocks::{MAX_COLUMNS, Rows};
use crate::element::ElementType;
use crate::error::KernelError;
#[cfg(feature = "cuda")]
use crate::launch::Prepared;
use crate::operation::{
    Code, Operation, U64, VECTOR_BYTES, check_elements, check_size, memory, source,
};

const SOURCE: &str = source!("group_sum.cu");

/// Threads of a block, and the most that share a group.
const THREADS: u64 = 128;

/// The sums of two tensors `[groups, members, columns]` over their members.
///
/// [`super::AttentionBackward`] writes the gradients of keys and values for each head of queries. Where several heads share
/// one of keys and values, these are the members of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub struct GroupSum {
    sums: Rows,
    members: u64,
}

impl GroupSum {
    /// The sums of `groups` groups.
    ///
    /// # Errors
    ///
    /// [`KernelError::Dimension`] for members outside 1 to 65,535 or columns outside 1 to 2^20,
    /// [`KernelError::NotMultiple`] if the columns are not whole vectors of 16 bytes, [`KernelError::TooLarge`] if 64 bits
    /// cannot count the bytes. Zero groups are allowed.
    pub fn new(
        groups: u64,
        members: u64,
        columns: u64,
        element: ElementType,
    ) -> Result<Self, KernelError> {
        check_size("members", members, 1..=u64::from(u16::MAX))?;
        let sums = Rows::new(groups, columns, element, MAX_COLUMNS)?;
        if !sums.are_whole_vectors() {
            let of = (VECTOR_BYTES / element.bytes()).to_string();
            return Err(KernelError::NotMultiple { dimension: "columns", given: columns, of });
        }
        check_elements(&[groups, members, columns])?;
        Ok(Self { sums, members })
    }

    /// Threads of a group.
    fn lanes(&self) -> u64 {
        self.sums.parts().next_power_of_two().min(THREADS)
    }
}

impl Operation for GroupSum {
    const KERNEL: &'static str = "group_sum";
    const SIZES: &'static [&'static str] = &["groups", "members", "columns"];
    const SOURCES: &'static [&'static str] = &[SOURCE];

    fn problem(&self) -> (Vec<u64>, String) {
        let ([groups, columns], element) = (self.sums.dims(), self.sums.element);
        (vec![groups, self.members, columns], element.to_string())
    }

    fn code(&self, _: &DeviceLimits) -> Result<Code, KernelError> {
        let vectors = memory(true);
        let parameters = vec![vectors, vectors, vectors, vectors, U64];
        Ok(Code::new::<Self>(SOURCE, self.sums.element, parameters).with([
            ("MEMBERS", self.members),
            ("COLUMNS", self.sums.columns),
            ("LANES", self.lanes()),
            ("THREADS", THREADS),
        ]))
    }

    fn grid(&self) -> (LaunchRequest, BatchAxis) {
        self.sums.grid(THREADS / self.lanes(), THREADS)
    }
}

#[cfg(feature = "cuda")]
impl Prepared<GroupSum> {
    /// Submits the launches to a stream (a `CUstream`, null for the default stream), and returns their number without
    /// waiting for them. The addresses are of two tensors `[groups, members, columns]` and of their sums `[groups, columns]`,
    /// all contiguous. A stream that is being captured is not refused.
    ///
    /// # Safety
    ///
    /// The addresses lead to tensors of these sizes and type in the context of the guard. `stream` is a live stream of that
    /// context. The memory lives until the launches have run. Until then, no other work writes it, or reads the sums, which
    /// have no element of another tensor. If the stream is being captured, this also holds for the launches of the graph, and
    /// the caller keeps a clone of `self` for as long.
    ///
    /// # Errors
    ///
    /// [`KernelError::Launch`] if memory is misaligned or the driver rejects the launch.
    #[track_caller]
    #[allow(unsafe_code, reason = "memory and streams of other CUDA bindings")]
    pub unsafe fn launch_raw(
        &self,
        stream: *mut c_void,
        [first, second, first_sum, second_sum]: [u64; 4],
    ) -> Result<u64, KernelError> {
        let GroupSum { sums: Rows { columns, element, .. }, members } = *self.operation();
        let bytes = columns.saturating_mul(element.bytes());
        let of_members = bytes.saturating_mul(members);
        let mut args = gridguard::RawArgs::new();
        for address in [first, second] {
            args.items_within(address, of_members, of_members, u64::MAX);
        }
        for address in [first_sum, second_sum] {
            args.items_within(address, bytes, bytes, u64::MAX);
        }
        args.length();
        // SAFETY: this function's contract. The arguments are in the order of the kernel's parameters.
        unsafe { self.submit_raw(stream, &args) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_groups_share_a_block_and_unsupported_sizes_are_errors() {
        let sum = |members, columns| GroupSum::new(9, members, columns, ElementType::F16);
        assert_eq!(sum(2, 128).expect("legal").request().grid.y, 2);
        assert_eq!(sum(2, 8192).expect("legal").request().grid.y, 9);
        let text = |members, columns| sum(members, columns).expect_err("unsupported").to_string();
        assert_eq!(text(2, 12), "columns is 12, not a multiple of 8");
        assert_eq!(text(0, 8), "members is 0, the kernel takes 1 to 65535");
        assert!(GroupSum::new(u64::MAX / 64, 2, 64, ElementType::F32).is_err());
    }
}
