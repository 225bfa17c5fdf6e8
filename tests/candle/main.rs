//! Runs two of candle's operations on a CUDA device. A sort of rows is compared with candle's sort on the CPU. A
//! product of quantized experts has its batch on grid.y, and is compared with the product of two half batches.

use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Result, Tensor};

fn main() -> Result<()> {
    let device = Device::new_cuda(0)?;
    for columns in [1024, 32_000] {
        report(&format!("argsort of {columns} columns"), argsort(columns, &device));
    }
    for batch in [60_000, 70_000] {
        report(&format!("product of experts, batch {batch}"), experts(batch, &device));
    }
    Ok(())
}

fn report(what: &str, right: Result<bool>) {
    match right {
        Ok(true) => println!("{what}: right"),
        Ok(false) => println!("{what}: WRONG"),
        Err(error) => println!("{what}: {error}"),
    }
}

fn argsort(columns: usize, device: &Device) -> Result<bool> {
    let rows = Tensor::rand(0_f32, 1_f32, (4, columns), &Device::Cpu)?;
    let order = rows.to_device(device)?.arg_sort_last_dim(true)?.to_device(&Device::Cpu)?;
    Ok(sorted(&rows, &order)? == sorted(&rows, &rows.arg_sort_last_dim(true)?)?)
}

/// The rows in the given order: equal values may be in either.
fn sorted(rows: &Tensor, order: &Tensor) -> Result<Vec<Vec<f32>>> {
    rows.gather(order, 1)?.to_vec2()
}

/// Each item of the batch is multiplied by two of four 32 x 256 matrices.
fn experts(batch: usize, device: &Device) -> Result<bool> {
    let weights = Tensor::randn(0_f32, 1_f32, (4, 32, 256), &Device::Cpu)?.to_device(device)?;
    let weights = QTensor::quantize(&weights, GgmlDType::Q4K)?;
    let input = Tensor::randn(0_f32, 1_f32, (batch, 1, 256), &Device::Cpu)?.to_device(device)?;
    let chosen: Vec<u32> = (0..4).cycle().take(2 * batch).collect();
    let chosen = Tensor::from_vec(chosen, (batch, 2), device)?;
    let product = |first: usize, items: usize| {
        let input = input.narrow(0, first, items)?.force_contiguous()?;
        let chosen = chosen.narrow(0, first, items)?.force_contiguous()?;
        // The operation reads from the beginning of its tensors.
        weights.indexed_moe_forward(&input, &chosen)?.flatten_all()?.to_vec1::<f32>()
    };
    let half = batch / 2;
    let halves = [product(0, half)?, product(half, batch - half)?].concat();
    let whole = product(0, batch)?;
    Ok(whole == halves && whole.iter().any(|value| *value != 0.0))
}
