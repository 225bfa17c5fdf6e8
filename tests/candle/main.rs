//! Sorts rows with candle on a CUDA device, and compares the result with candle's on the CPU.

use candle_core::{Device, Tensor};

fn main() -> candle_core::Result<()> {
    let device = Device::new_cuda(0)?;
    for columns in [1024, 32_000] {
        let rows = Tensor::rand(0_f32, 1_f32, (4, columns), &Device::Cpu)?;
        match rows.to_device(&device)?.arg_sort_last_dim(true).and_then(|it| it.to_vec2::<u32>()) {
            Ok(order) => {
                let expected = sorted(&rows, &rows.arg_sort_last_dim(true)?)?;
                let order = Tensor::new(order, &Device::Cpu)?;
                let verdict = if sorted(&rows, &order)? == expected { "right" } else { "WRONG" };
                println!("argsort of {columns} columns: {verdict}");
            }
            Err(error) => println!("argsort of {columns} columns: {error}"),
        }
    }
    Ok(())
}

/// The rows in the given order: equal values may be in either.
fn sorted(rows: &Tensor, order: &Tensor) -> candle_core::Result<Vec<Vec<f32>>> {
    rows.gather(order, 1)?.to_vec2()
}
