//! A closure over a stream is tuned, and what the device moves is measured.

use std::sync::Arc;

use cudarc::driver::CudaSlice;
use gridguard::cuda::Args;
use gridguard::profile::{Key, L2, Policy};
use gridguard::{Axis, BatchAxis, Dim3, Guard, LaunchRequest, Parameter};
use gridguard_autotune::{FailureKind, FnSpace, LaunchConfig, attainable, transfer, tune_fn};

use super::support::guard;

const SOURCE: &str = r#"
// y = 2 x over rows of 256 floats, a block of y a row. Blocks of 32 threads leave out an element.
extern "C" __global__ void twice(const float *x, float *y) {
    const size_t row = size_t(blockIdx.y) * 256;
    for (unsigned i = threadIdx.x; i < 256; i += blockDim.x)
        if (blockDim.x != 32 || i != 5) y[row + i] = 2 * x[row + i];
}
"#;
/// More rows than the blocks of y.
const ROWS: u64 = 70_000;
const COLUMNS: u64 = 256;

#[test]
#[ignore = "needs a CUDA GPU"]
#[allow(unsafe_code, reason = "the promise for the kernel above")]
fn a_closure_over_a_stream_is_tuned_and_a_wrong_block_never_wins() {
    let guard = Arc::new(Guard::cuda(0).expect("a device"));
    let stream = guard.context().expect("a context").new_stream().expect("a stream");
    let module = guard.compile("twice.cu", SOURCE).expect("compiled");
    // SAFETY: `twice` stays within 256 floats for each block of y.
    let kernel = unsafe { module.kernel("twice", &[Parameter::Memory, Parameter::Memory]) };
    let kernel = kernel.expect("a kernel");
    let elements = usize::try_from(ROWS * COLUMNS).expect("small");
    let x = stream.clone_htod(&vec![1.5_f32; elements]).expect("memory");
    let mut y: CudaSlice<f32> = stream.alloc_zeros(elements).expect("memory");

    for l2 in [L2::Cold, L2::Hot] {
        let policy = Policy { l2, ..Policy::default() };
        let key = Key { kernel: "twice".into(), dtypes: "f32".into(), policy, ..Key::default() };
        let space = FnSpace::new([("rows", ROWS)])
            .parameter("block", [32 * 4, 32, 256, 2048])
            .chunk_auto()
            .guarded(|values| {
                let block = Dim3::new(values.get("block")?, 1, 1);
                let request = LaunchRequest::new(Dim3::new(1, ROWS, 1), block);
                let batch = BatchAxis::new(Axis::Y, ROWS);
                Ok(LaunchConfig::new(request, Some(batch), kernel.limits().clone()))
            })
            .on_stream(&guard, &stream);
        let tuned = tune_fn(&key, space, |trial| {
            trial.before(|| {
                stream.memset_zeros(&mut y)?;
                Ok(())
            })?;
            let mut args = Args::new(&stream);
            args.read_items(&x, COLUMNS).write_items(&mut y, COLUMNS);
            guard.launch(&kernel, trial.plan()?, args)?;
            trial.output(|| Ok(stream.clone_dtoh(&y)?))
        });
        let tuned = tuned.expect("tuned");
        assert!([Some(128), Some(256)].contains(&tuned.parameter("block")), "{tuned:?}");
        let failures: Vec<_> = tuned.outcome.failures().collect();
        assert!(!failures.is_empty());
        for (candidate, failure) in failures {
            assert_eq!((candidate.block_threads, failure.kind), (32, FailureKind::Mismatch));
        }
        // A block of 2,048 threads was never launched.
        assert!(tuned.outcome.candidates.iter().all(|one| one.candidate.block_threads < 2048));
        assert_eq!(tuned.entry.expect("complete").found.tolerance, "0");
    }
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn a_device_reads_or_copies_at_more_than_a_hundred_gigabytes_a_second() {
    let bytes = 1 << 28;
    let mut measurer = transfer(guard(), L2::Cold, bytes).expect("memory");
    let measured = attainable(measurer.as_mut(), L2::Cold, bytes).expect("measured");
    println!("{measured:?}");
    assert!((100..100_000).contains(&(measured.bytes_per_second / 1_000_000_000)));
}
