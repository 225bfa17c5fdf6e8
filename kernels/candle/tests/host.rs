//! The operators on the host beside candle's own, over random shapes, types and layouts; and their errors.

#![allow(clippy::expect_used, clippy::panic, reason = "tests")]

mod support;

use candle_core::{D, DType, Device, Error, Result, Tensor, Var};
use gridguard_candle::{Attention, argsort, rms_norm, softmax};

use support::{DTYPES, attention_by_candle, deviation, random, random_layout, tolerance};

#[test]
fn softmax_is_candles() -> Result<()> {
    let mut rng = fastrand::Rng::with_seed(1);
    for _ in 0..60 {
        let dtype = DTYPES[rng.usize(0..3)];
        let dims = [rng.usize(1..4), rng.usize(1..20), rng.usize(1..300)];
        let x = random_layout(&mut rng, &dims, dtype, &Device::Cpu)?;
        let ours = softmax(&x)?;
        let theirs = candle_nn::ops::softmax(&x.to_dtype(DType::F32)?, D::Minus1)?;
        assert_eq!((ours.dims(), ours.dtype()), (x.dims(), dtype));
        assert!(deviation(&ours, &theirs)? <= tolerance(dtype), "{dims:?} {dtype:?}");
    }
    Ok(())
}

#[test]
fn rms_norm_is_candles() -> Result<()> {
    let mut rng = fastrand::Rng::with_seed(2);
    for _ in 0..60 {
        let dtype = DTYPES[rng.usize(0..3)];
        let dims = [rng.usize(1..4), rng.usize(1..20), rng.usize(1..300)];
        let x = random_layout(&mut rng, &dims, dtype, &Device::Cpu)?;
        let weight = random_layout(&mut rng, &dims[2..], dtype, &Device::Cpu)?;
        let ours = rms_norm(&x, &weight, 1e-5)?;
        let [wide, wide_weight] = [&x, &weight].map(|it| it.to_dtype(DType::F32)?.contiguous());
        let theirs = candle_nn::ops::rms_norm(&wide?, &wide_weight?, 1e-5)?;
        assert_eq!((ours.dims(), ours.dtype()), (x.dims(), dtype));
        assert!(deviation(&ours, &theirs)? <= tolerance(dtype), "{dims:?} {dtype:?}");
    }
    Ok(())
}

#[test]
fn argsort_matches_candles_and_is_stable() -> Result<()> {
    let mut rng = fastrand::Rng::with_seed(3);
    for _ in 0..40 {
        let dtype = DTYPES[rng.usize(0..3)];
        let dims = [rng.usize(1..5), rng.usize(1..400)];
        // Few distinct values, so that many are equal.
        let x = (random_layout(&mut rng, &dims, DType::F32, &Device::Cpu)? * 2.0)?
            .round()?
            .to_dtype(dtype)?;
        for ascending in [false, true] {
            let order = argsort(&x, ascending)?;
            let by_candle = x.contiguous()?.arg_sort_last_dim(ascending)?;
            let sorted = |order: &Tensor| {
                x.contiguous()?.gather(order, 1)?.to_dtype(DType::F32)?.to_vec2::<f32>()
            };
            assert_eq!(sorted(&order)?, sorted(&by_candle)?);
            for (order, values) in order.to_vec2::<u32>()?.iter().zip(sorted(&order)?) {
                let mut equal =
                    order.windows(2).zip(values.windows(2)).filter(|(_, it)| it[0] == it[1]);
                assert!(equal.all(|(columns, _)| columns[0] < columns[1]));
            }
        }
    }
    Ok(())
}

#[test]
fn rows_larger_than_default_shared_memory_are_sorted() -> Result<()> {
    let mut rng = fastrand::Rng::with_seed(4);
    let x = random(&mut rng, &[2, 32_000], DType::F32, &Device::Cpu)?;
    let order = argsort(&x, true)?;
    let values = x.gather(&order, 1)?.to_vec2::<f32>()?;
    assert!(values.iter().all(|row| row.is_sorted() && row.len() == 32_000));
    Ok(())
}

#[test]
fn attention_is_candles() -> Result<()> {
    let mut rng = fastrand::Rng::with_seed(5);
    for round in 0..80 {
        let dtype = DTYPES[rng.usize(0..3)];
        let (frames, head_dim) = (rng.usize(1..34), rng.usize(1..=128));
        let keys = if rng.bool() { frames } else { rng.usize(1..80) };
        let batch = [rng.usize(1..4), rng.usize(1..4), rng.usize(1..4)];
        let of_rows = |rows| [&batch[..round % 4], &[rows, head_dim]].concat();
        let (dims, of_keys) = (of_rows(frames), of_rows(keys));
        let tensor = |rng: &mut _, dims: &[usize]| random_layout(rng, dims, dtype, &Device::Cpu);
        let q = tensor(&mut rng, &dims)?;
        let (k, v) = (tensor(&mut rng, &of_keys)?, tensor(&mut rng, &of_keys)?);
        let scale = rng.f32();
        let mut attention = Attention::new(scale);
        let causal = rng.bool();
        if causal {
            attention = attention.causal();
        }
        let bias = random_layout(&mut rng, &[frames, keys], dtype, &Device::Cpu)?;
        let bias = rng.bool().then_some(bias);
        if let Some(bias) = &bias {
            attention = attention.with_bias(bias)?;
        }
        let ours = attention.forward(&q, &k, &v)?;
        let theirs = attention_by_candle([&q, &k, &v], scale, causal, bias.as_ref())?;
        assert_eq!((ours.dims(), ours.dtype()), (&*dims, dtype));
        assert!(ours.is_contiguous());
        assert!(deviation(&ours, &theirs)? <= tolerance(dtype), "{dims:?} {dtype:?} {attention:?}");
    }
    Ok(())
}

#[test]
fn a_query_whose_keys_are_all_hidden_gives_zeros() -> Result<()> {
    let hidden = Tensor::full(f32::NEG_INFINITY, (4, 4), &Device::Cpu)?;
    let x = Tensor::randn(0_f32, 1.0, (3, 4, 8), &Device::Cpu)?;
    let out = Attention::new(1.0).with_bias(&hidden)?.forward(&x, &x, &x)?;
    assert_eq!(out.flatten_all()?.to_vec1::<f32>()?, [0.0; 96]);
    let rows = softmax(&hidden)?;
    assert_eq!(rows.flatten_all()?.to_vec1::<f32>()?, [0.0; 16]);
    Ok(())
}

#[test]
fn an_empty_batch_is_empty() -> Result<()> {
    let x = Tensor::zeros((0, 5, 16, 64), DType::F16, &Device::Cpu)?;
    assert_eq!(Attention::new(1.0).forward(&x, &x, &x)?.dims(), x.dims());
    assert_eq!(softmax(&x)?.dims(), x.dims());
    let weight = Tensor::zeros(64, DType::F16, &Device::Cpu)?;
    assert_eq!(rms_norm(&x, &weight, 1e-5)?.dims(), x.dims());
    let order = argsort(&x, true)?;
    assert_eq!((order.dims(), order.dtype()), (x.dims(), DType::U32));
    Ok(())
}

/// The error of the result, without a backtrace and its context.
fn error<T>(result: Result<T>) -> Error {
    match result.err().expect("an error") {
        Error::WithBacktrace { inner, .. } => *inner,
        other => other,
    }
}

#[test]
fn unsupported_types_are_errors() -> Result<()> {
    let device = Device::Cpu;
    for dtype in [DType::F64, DType::U32, DType::U8, DType::I64] {
        let x = Tensor::zeros((2, 4, 8), dtype, &device)?;
        let weight = Tensor::zeros(8, dtype, &device)?;
        for result in [
            softmax(&x),
            argsort(&x, true),
            rms_norm(&x, &weight, 1.0),
            Attention::new(1.0).forward(&x, &x, &x),
        ] {
            assert!(
                matches!(error(result), Error::UnsupportedDTypeForOp(given, _) if given == dtype)
            );
        }
    }
    let x = Tensor::zeros((2, 4, 8), DType::F16, &device)?;
    let other = x.to_dtype(DType::F32)?;
    let weight = Tensor::zeros(8, DType::F32, &device)?;
    let attention = Attention::new(1.0);
    for result in [
        rms_norm(&x, &weight, 1.0),
        attention.forward(&x, &other, &x),
        attention.forward(&x, &x, &other),
        attention.with_bias(&Tensor::zeros((4, 4), DType::F32, &device)?)?.forward(&x, &x, &x),
    ] {
        assert!(matches!(
            error(result),
            Error::DTypeMismatchBinaryOp { lhs: DType::F16, rhs: DType::F32, .. }
        ));
    }
    Ok(())
}

#[test]
fn shapes_that_do_not_fit_are_errors() -> Result<()> {
    let zeros = |dims: &[usize]| Tensor::zeros(dims, DType::F32, &Device::Cpu);
    let x = zeros(&[2, 4, 8])?;
    let attention = Attention::new(1.0);
    for result in [
        rms_norm(&x, &zeros(&[4])?, 1.0),
        rms_norm(&x, &zeros(&[1, 8])?, 1.0),
        attention.forward(&x, &zeros(&[2, 5, 8])?, &x),
        attention.forward(&x, &zeros(&[2, 4, 9])?, &zeros(&[2, 4, 9])?),
        attention.forward(&x, &x, &zeros(&[2, 4, 9])?),
        attention.forward(&x, &zeros(&[1, 4, 8])?, &x),
        attention.forward(&x, &zeros(&[2, 1, 4, 8])?, &x),
        attention.clone().with_bias(&zeros(&[4, 5])?)?.forward(&x, &x, &x),
    ] {
        assert!(matches!(error(result), Error::ShapeMismatchBinaryOp { .. }));
    }
    let (scalar, row) = (zeros(&[])?, zeros(&[8])?);
    for result in [softmax(&scalar), argsort(&scalar, true), attention.forward(&row, &row, &row)] {
        assert!(matches!(error(result), Error::UnexpectedNumberOfDims { .. }));
    }
    Ok(())
}

#[test]
fn unsupported_sizes_give_the_errors_of_the_kernels() -> Result<()> {
    let zeros = |dims: &[usize]| Tensor::zeros(dims, DType::F16, &Device::Cpu);
    let attend = |scale: f32, dims: &[usize]| {
        let x = zeros(dims)?;
        Attention::new(scale).forward(&x, &x, &x)
    };
    for (result, text) in [
        (attend(1.0, &[2, 4, 513]), "head_dim is 513, the kernel takes 1 to 512"),
        (attend(1.0, &[2, 0, 8]), "frames is 0, the kernel takes 1 to 4294967295"),
        (
            attend(f32::NAN, &[2, 4, 8]),
            "scale is NaN, the kernel takes a finite number that is not negative",
        ),
        (
            attend(-1.0, &[2, 4, 8]),
            "scale is -1, the kernel takes a finite number that is not negative",
        ),
        (
            Attention::new(1.0).forward(&zeros(&[4, 8])?, &zeros(&[0, 8])?, &zeros(&[0, 8])?),
            "keys is 0, the kernel takes 1 to 4294967295",
        ),
        (softmax(&zeros(&[2, 0])?), "columns is 0, the kernel takes 1 to 1048576"),
        (
            softmax(&zeros(&[1, (1 << 20) + 1])?),
            "columns is 1048577, the kernel takes 1 to 1048576",
        ),
        (argsort(&zeros(&[1, 32_769])?, true), "columns is 32769, the kernel takes 1 to 32768"),
    ] {
        assert_eq!(error(result).to_string(), text);
    }
    Ok(())
}

#[test]
fn gradients_are_refused_and_never_wrong() -> Result<()> {
    let x = Var::randn(0_f32, 1.0, (2, 4, 8), &Device::Cpu)?;
    let out = Attention::new(1.0).forward(&x, &x, &x)?;
    let refused = error(out.sum_all()?.backward());
    assert!(matches!(refused, Error::BackwardNotSupported { op: "gridguard-attention" }));
    let refused = error(softmax(&x)?.sum_all()?.backward());
    assert!(matches!(refused, Error::BackwardNotSupported { op: "gridguard-softmax" }));
    let bias = Var::zeros((4, 4), DType::F32, &Device::Cpu)?;
    assert!(matches!(
        error(Attention::new(1.0).with_bias(&bias)),
        Error::BackwardNotSupported { .. }
    ));
    assert!(Attention::new(1.0).with_bias(&bias.detach()).is_ok());
    Ok(())
}
