//! The table of CUDA results that make a context unusable.

/// State of a CUDA context after a call in it has returned a given result.
///
/// The source is the comment on each `CUresult` in `cuda.h` of CUDA 13, or else the source named in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ContextState {
    /// The call failed or returned a status, without other effects.
    Usable,
    /// Work submitted earlier failed on the device. Every later call in the context returns an
    /// error, until the process is restarted.
    Lost,
    /// The context no longer exists. Calls in a new context succeed.
    Destroyed,
    /// NVIDIA does not document whether the context survives.
    Unknown,
}

impl ContextState {
    /// The state after the `CUresult`, or the `cudaError_t` of CUDA 10.1 or later, `code`.
    ///
    /// ```
    /// use gridguard::ContextState;
    ///
    /// assert_eq!(ContextState::after(700), ContextState::Lost); // CUDA_ERROR_ILLEGAL_ADDRESS
    /// assert_eq!(ContextState::after(2), ContextState::Usable); // CUDA_ERROR_OUT_OF_MEMORY
    /// ```
    pub const fn after(code: i32) -> Self {
        match code {
            // cuda.h: "leaves the process in an inconsistent state and any further CUDA work will
            // return the same error".
            226 // CUDA_ERROR_CONTAINED: contained to this process, which is lost
            | 700 // CUDA_ERROR_ILLEGAL_ADDRESS
            | 702 // CUDA_ERROR_LAUNCH_TIMEOUT
            | 714 // CUDA_ERROR_HARDWARE_STACK_ERROR
            | 715 // CUDA_ERROR_ILLEGAL_INSTRUCTION
            | 716 // CUDA_ERROR_MISALIGNED_ADDRESS
            | 717 // CUDA_ERROR_INVALID_ADDRESS_SPACE
            | 718 // CUDA_ERROR_INVALID_PC
            | 719 // CUDA_ERROR_LAUNCH_FAILED
            | 721 // CUDA_ERROR_TENSOR_MEMORY_LEAK
            | 911 // CUDA_ERROR_EXTERNAL_DEVICE
            => Self::Lost,
            // cuda.h: the device "cannot be used again", and the process must be relaunched.
            710 // CUDA_ERROR_ASSERT
            => Self::Lost,
            // cuda.h: "the process must be terminated and relaunched".
            810 // CUDA_ERROR_MPS_CLIENT_TERMINATED
            => Self::Lost,
            // cuda.h only says "detected during execution". NVIDIA's Xid catalog: the driver stops
            // the affected processes (Xids 48, 74, 94 and 95, followed by 45).
            214 // CUDA_ERROR_ECC_UNCORRECTABLE
            | 220 // CUDA_ERROR_NVLINK_UNCORRECTABLE
            => Self::Lost,
            // cuda.h: destroyed with cuCtxDestroy, or a primary context not yet initialized.
            709 // CUDA_ERROR_CONTEXT_IS_DESTROYED
            => Self::Destroyed,
            // cuda.h: "an unknown internal error". It follows a lost device as well as a missing
            // kernel module.
            999 // CUDA_ERROR_UNKNOWN
            => Self::Unknown,
            // Including 701 and 720 (a launch is rejected before it runs), 909 (a wait ends early) and
            // 910 (a graph is not updated).
            _ => Self::Usable,
        }
    }

    /// Whether work may continue in the context. `false` if unknown.
    pub const fn is_usable(self) -> bool {
        matches!(self, Self::Usable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_has_the_documented_state() {
        let of = |wanted| (0..2000).filter(|code| ContextState::after(*code) == wanted).collect();
        let lost: Vec<i32> = of(ContextState::Lost);
        assert_eq!(
            lost,
            [214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911]
        );
        let destroyed: Vec<i32> = of(ContextState::Destroyed);
        let unknown: Vec<i32> = of(ContextState::Unknown);
        assert_eq!((destroyed, unknown), (vec![709], vec![999]));
    }

    #[test]
    fn only_a_usable_context_is_usable() {
        use ContextState::{Destroyed, Lost, Unknown, Usable};
        assert!(Usable.is_usable());
        assert!(![Lost, Destroyed, Unknown].into_iter().any(ContextState::is_usable));
    }
}
