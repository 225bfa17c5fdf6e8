//! The operators on a device beside the host, and launches through the guard on candle's memory.

#![allow(clippy::expect_used, clippy::panic, reason = "tests")]
#![allow(unsafe_code, reason = "the kernel of the test is its own")]

mod support;

use std::sync::Arc;

use candle_core::{CudaDevice, CudaStorage, DType, Device, Error, Result, Storage, Tensor};
use fastrand::Rng;
use gridguard::cuda::{Args, InOrder, Kernel, LaunchError};
use gridguard::{Axis, BatchAxis, Dim3, LaunchRequest, Parameter};
use gridguard_candle::{Attention, GuardedDevice, argsort, rms_norm, softmax};

use support::{DTYPES, deviation, random, random_layout, tolerance};

fn gpu() -> Device {
    Device::new_cuda(0).expect("a CUDA GPU")
}

/// Checks an operator on a device beside the host, over the same tensors in the same layout.
fn check(
    what: &str,
    tensors: &[&Tensor],
    operator: impl Fn(&[Tensor]) -> Result<Tensor>,
) -> Result<()> {
    let on_device: Vec<Tensor> =
        tensors.iter().map(|it| Ok((*it).clone())).collect::<Result<_>>()?;
    let on_host =
        tensors.iter().map(|it| it.to_device(&Device::Cpu)).collect::<Result<Vec<_>>>()?;
    let (ours, host) = (operator(&on_device)?, operator(&on_host)?);
    assert!(ours.device().is_cuda() && ours.dims() == host.dims() && ours.dtype() == host.dtype());
    let allowed = tolerance(ours.dtype());
    let found = deviation(&ours, &host)?;
    assert!(found <= allowed, "{what} of {:?} {:?}: {found:e}", tensors[0].layout(), ours.dtype());
    Ok(())
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn rows_are_those_of_the_host() -> Result<()> {
    let (mut rng, device) = (Rng::with_seed(11), gpu());
    for _ in 0..24 {
        let dtype = DTYPES[rng.usize(0..3)];
        let columns = if rng.bool() { rng.usize(1..700) } else { 8 * rng.usize(1..200) };
        let dims = [rng.usize(1..4), rng.usize(1..50), columns];
        let x = random_layout(&mut rng, &dims, dtype, &device)?;
        let weight = random_layout(&mut rng, &dims[2..], dtype, &device)?;
        check("softmax", &[&x], |it| softmax(&it[0]))?;
        check("rms_norm", &[&x, &weight], |it| rms_norm(&it[0], &it[1], 1e-5))?;
        // An order is right or wrong.
        let ascending = rng.bool();
        let order = |x: &Tensor| argsort(x, ascending)?.flatten_all()?.to_vec1::<u32>();
        assert_eq!(order(&x)?, order(&x.to_device(&Device::Cpu)?)?, "{:?}", x.layout());
    }
    Ok(())
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn attention_on_the_device_matches_the_host() -> Result<()> {
    let (mut rng, device) = (Rng::with_seed(12), gpu());
    for round in 0..40 {
        let dtype = DTYPES[rng.usize(0..3)];
        let head_dim = if rng.bool() { rng.usize(1..=128) } else { 8 * rng.usize(1..=16) };
        let frames = rng.usize(1..66);
        let keys = if rng.bool() { frames } else { rng.usize(1..130) };
        let batch = [rng.usize(1..5), rng.usize(1..5), rng.usize(1..4)];
        let tensor = |rng: &mut _, rows: usize| {
            let dims = [&batch[..round % 4], &[rows, head_dim]].concat();
            random_layout(rng, &dims, dtype, &device)
        };
        let q = tensor(&mut rng, frames)?;
        let (k, v) = (tensor(&mut rng, keys)?, tensor(&mut rng, keys)?);
        let bias = random_layout(&mut rng, &[frames, keys], dtype, &device)?;
        let (scale, causal, biased) = (rng.f32(), rng.bool(), rng.bool());
        check("attention", &[&q, &k, &v, &bias], |it| {
            let mut attention = Attention::new(scale);
            if causal {
                attention = attention.causal();
            }
            if biased {
                attention = attention.with_bias(&it[3])?;
            }
            attention.forward(&it[0], &it[1], &it[2])
        })?;
    }
    Ok(())
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn views_of_one_projection_are_not_copied() -> Result<()> {
    let (mut rng, device) = (Rng::with_seed(13), gpu());
    // [items, frames, 3, heads, head_dim], 400 MB: copies of q, k and v would be seen.
    let qkv =
        random(&mut rng, &[64, 16, 3, 5, 64], DType::F16, &device)?.repeat((210, 1, 1, 1, 1))?;
    let part = |at: usize| qkv.narrow(2, at, 1)?.squeeze(2)?.transpose(1, 2);
    let (q, k, v) = (part(0)?, part(1)?, part(2)?);
    let attend = || Attention::new(0.125).forward(&q, &k, &v);
    let out = attend()?;
    let (first, last) = (out.narrow(0, 0, 64)?, out.narrow(0, 209 * 64, 64)?);
    assert_eq!(deviation(&first, &last)?, 0.0);
    let host = |tensor: &Tensor| tensor.narrow(0, 0, 64)?.to_device(&Device::Cpu);
    let expected = Attention::new(0.125).forward(&host(&q)?, &host(&k)?, &host(&v)?)?;
    assert!(deviation(&first, &expected)? <= tolerance(DType::F16));

    device.synchronize()?;
    let guard = device.guard()?;
    let (before, _) = guard.free_memory().map_err(Error::wrap)?;
    let second = attend()?;
    let (after, _) = guard.free_memory().map_err(Error::wrap)?;
    let bytes = u64::try_from(second.elem_count() * 2).unwrap_or(u64::MAX);
    // The pool takes memory in blocks of 32 MiB.
    assert!(before.saturating_sub(after) <= bytes + (64 << 20), "{before} {after} {bytes}");
    Ok(())
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn batches_beyond_65_535_blocks_are_correct() -> Result<()> {
    let (mut rng, device) = (Rng::with_seed(14), gpu());
    // Tiles of a few items, so that each part can be compared with the first.
    let tile = random(&mut rng, &[1000, 1, 16, 64], DType::F16, &device)?;
    let q = tile.repeat((400, 1, 1, 1))?;
    let out = Attention::new(0.125).forward(&q, &q, &q)?;
    let small = tile.to_device(&Device::Cpu)?;
    let expected = Attention::new(0.125).forward(&small, &small, &small)?;
    for at in [0, 65, 131, 399] {
        let part = out.narrow(0, at * 1000, 1000)?;
        assert!(deviation(&part, &expected)? <= tolerance(DType::F16), "items from {at}000");
    }
    let tile = random(&mut rng, &[1000, 1030], DType::F32, &device)?;
    let x = tile.repeat((200, 1))?;
    let weight = random(&mut rng, &[1030], DType::F32, &device)?;
    let outs =
        [softmax(&x)?, rms_norm(&x, &weight, 1e-5)?, argsort(&x, true)?.to_dtype(DType::F32)?];
    let (tile, weight) = (tile.to_device(&Device::Cpu)?, weight.to_device(&Device::Cpu)?);
    let order = argsort(&tile, true)?.to_dtype(DType::F32)?;
    let expected = [softmax(&tile)?, rms_norm(&tile, &weight, 1e-5)?, order];
    for (out, expected) in outs.iter().zip(expected) {
        for at in [0, 65, 66, 199] {
            let part = out.narrow(0, at * 1000, 1000)?;
            assert!(deviation(&part, &expected)? <= tolerance(DType::F32), "rows from {at}000");
        }
    }
    Ok(())
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn rows_beyond_48_kib_of_shared_memory_are_sorted() -> Result<()> {
    let (mut rng, device) = (Rng::with_seed(15), gpu());
    let most = device.guard()?.limits().max_shared_bytes_per_block_opt_in;
    for (columns, dtype, bytes) in [(16_384, DType::F16, 66 << 10), (32_000, DType::F32, 200 << 10)]
    {
        let x = random(&mut rng, &[5, columns], dtype, &device)?;
        match argsort(&x, false) {
            Ok(order) => {
                let expected = argsort(&x.to_device(&Device::Cpu)?, false)?;
                assert_eq!(order.to_vec2::<u32>()?, expected.to_vec2::<u32>()?);
                assert!(bytes <= most);
            }
            Err(error) => assert!(bytes > most, "{error}"),
        }
    }
    Ok(())
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn devices_of_one_gpu_share_the_guard_and_threads_the_launches() -> Result<()> {
    let device = gpu();
    let other = Device::new_cuda_with_stream(0)?;
    assert!(Arc::ptr_eq(&device.guard()?, &other.guard()?));
    assert!(Device::Cpu.guard().is_err());
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|seed| {
                scope.spawn(move || {
                    let mut rng = Rng::with_seed(seed);
                    // A device of its own, whose stream is this thread's.
                    let device =
                        if seed % 2 == 0 { gpu() } else { Device::new_cuda_with_stream(0)? };
                    for _ in 0..20 {
                        let x = random(&mut rng, &[300, 16, 64], DType::F16, &device)?;
                        check("attention", &[&x], |it| {
                            Attention::new(0.125).forward(&it[0], &it[0], &it[0])
                        })?;
                        check("softmax", &[&x], |it| softmax(&it[0]))?;
                    }
                    Ok::<(), Error>(())
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn tensors_on_other_devices_are_errors() -> Result<()> {
    let (device, host) = (gpu(), Device::Cpu);
    let x = Tensor::zeros((4, 16, 64), DType::F16, &device)?;
    let y = x.to_device(&host)?;
    let weight = Tensor::zeros(64, DType::F16, &host)?;
    let bias = Tensor::zeros((16, 16), DType::F16, &host)?;
    let attention = Attention::new(1.0);
    for result in [
        attention.forward(&x, &y, &x),
        attention.forward(&y, &y, &x),
        attention.with_bias(&bias)?.forward(&x, &x, &x),
        rms_norm(&x, &weight, 1e-5),
    ] {
        let error = result.expect_err("another device").to_string();
        assert!(error.starts_with("device mismatch in gridguard-"), "{error}");
    }
    Ok(())
}

/// Doubles rows of as many elements as a block has threads, one block for each row on y: nvcc's PTX of
/// `if (row < rows) out[row * blockDim.x + threadIdx.x] = 2.0f * x[...]`.
const DOUBLE_ROWS: &str = "\
.version 7.0
.target sm_75
.address_size 64
.visible .entry double_rows(
	.param .u64 double_rows_param_0,
	.param .u64 double_rows_param_1,
	.param .u64 double_rows_param_2
)
{
	.reg .pred 	%p<2>;
	.reg .f32 	%f<3>;
	.reg .b32 	%r<4>;
	.reg .b64 	%rd<14>;
	ld.param.u64 	%rd2, [double_rows_param_0];
	ld.param.u64 	%rd3, [double_rows_param_1];
	ld.param.u64 	%rd4, [double_rows_param_2];
	mov.u32 	%r1, %ctaid.y;
	cvt.u64.u32 	%rd1, %r1;
	setp.ge.u64 	%p1, %rd1, %rd4;
	@%p1 bra 	$L__BB0_2;
	cvta.to.global.u64 	%rd5, %rd2;
	mov.u32 	%r2, %ntid.x;
	cvt.u64.u32 	%rd6, %r2;
	mul.lo.s64 	%rd7, %rd1, %rd6;
	mov.u32 	%r3, %tid.x;
	cvt.u64.u32 	%rd8, %r3;
	add.s64 	%rd9, %rd7, %rd8;
	shl.b64 	%rd10, %rd9, 2;
	add.s64 	%rd11, %rd5, %rd10;
	ld.global.f32 	%f1, [%rd11];
	add.f32 	%f2, %f1, %f1;
	cvta.to.global.u64 	%rd12, %rd3;
	add.s64 	%rd13, %rd12, %rd10;
	st.global.f32 	[%rd13], %f2;
$L__BB0_2:
	ret;
}
";

/// The rows of `x` doubled by a kernel of our own, and the number of launches.
fn doubled(
    device: &CudaDevice,
    kernel: &Kernel,
    x: &Tensor,
    batch: bool,
) -> Result<(CudaStorage, u64)> {
    let (rows, columns) = x.dims2()?;
    let [rows, columns] = [rows, columns].map(|size| u64::try_from(size).expect("a size"));
    let (storage, _) = x.storage_and_layout();
    let Storage::Cuda(storage) = &*storage else { candle_core::bail!("not on a device") };
    let mut out = device.alloc_zeros::<f32>(x.elem_count())?;
    let stream = device.cuda_stream();
    let request = LaunchRequest::new(Dim3::new(1, rows, 1), Dim3::new(columns, 1, 1));
    let batch = batch.then(|| BatchAxis::new(Axis::Y, rows));
    // SAFETY: this thread alone uses both, on the device's stream.
    let (from, mut to) = unsafe {
        (InOrder::new(storage.as_cuda_slice::<f32>()?.as_view()), InOrder::new(out.as_view_mut()))
    };
    let mut args = Args::new(&stream);
    args.read_items(&from, columns).write_items(&mut to, columns).length();
    let launches = device.launch_guarded(kernel, &request, batch.as_ref(), args)?;
    Ok((CudaStorage::wrap_cuda_slice(out, device.clone()), launches))
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn a_users_kernel_runs_on_candles_memory_in_chunks() -> Result<()> {
    let device = gpu();
    let cuda = device.as_cuda_device()?;
    let function = cuda.get_or_load_custom_func("double_rows", "double_rows", DOUBLE_ROWS)?;
    let parameters = [Parameter::Memory, Parameter::Memory, Parameter::of::<u64>()];
    // SAFETY: it takes two pointers and the number of rows behind them, of as many elements as threads.
    let kernel = unsafe { device.guarded_kernel(&function, &parameters) }?;
    let x = random(&mut Rng::with_seed(16), &[150_000, 64], DType::F32, &device)?;
    let (out, launches) = doubled(cuda, &kernel, &x, true)?;
    assert_eq!(launches, 3);
    let out = Tensor::from_storage(
        Storage::Cuda(out),
        x.shape(),
        candle_core::op::BackpropOp::none(),
        false,
    );
    assert_eq!(deviation(&out, &(&x * 2.0)?)?, 0.0);

    // Without a batch, and with parameters that the function has not.
    let refused = doubled(cuda, &kernel, &x, false).expect_err("refused");
    let Error::Cuda(refused) = inner(refused) else { panic!("another error") };
    let violations = refused.downcast_ref().and_then(LaunchError::violations);
    assert!(violations.is_some(), "{refused}");
    // SAFETY: never launched.
    let wrong = unsafe { device.guarded_kernel(&function, &parameters[..1]) };
    assert!(matches!(inner(wrong.expect_err("another signature")), Error::Cuda(_)));
    Ok(())
}

/// The error without its backtrace.
fn inner(error: Error) -> Error {
    match error {
        Error::WithBacktrace { inner, .. } => *inner,
        other => other,
    }
}
