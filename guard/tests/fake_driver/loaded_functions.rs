//! Functions that cudarc loaded: as kernels of a guard, and as builders keep them.
#![allow(unsafe_code, reason = "cudarc's launches are unsafe")]

use std::sync::Arc;

use cudarc::driver::CudaContext;
use gridguard::cuda::MAX_KEPT_FUNCTIONS;
use gridguard_test_support::fake_driver::with_fake;

use crate::kernels::{function, guard_of};

#[test]
fn a_program_that_loads_functions_without_end_does_not_keep_them_all() {
    with_fake(&[], || {
        let context = CudaContext::new(0).expect("a device");
        let guard = guard_of(&context);
        let stream = context.default_stream();
        let before = Arc::strong_count(&context);
        let mut most = 0;
        for _ in 0..MAX_KEPT_FUNCTIONS + 8 {
            let function = function(&context, "wide");
            guard.builder(&stream, &function).kernel().expect("known");
            most = most.max(Arc::strong_count(&context));
        }
        assert!(most <= before + 2 * (MAX_KEPT_FUNCTIONS + 1), "{most}");
        assert!(Arc::strong_count(&context) <= before + 2 * 8, "forgotten when full");
    });
}
