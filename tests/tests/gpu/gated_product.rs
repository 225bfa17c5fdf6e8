//! The gated product against f64, and against rows that are computed alone.

use gridguard::{Choice, ComputeCapability};
use gridguard_examples::uniform;
use gridguard_kernels::gated_product::{GatedProduct, reference};
use gridguard_kernels::{Deviation, Operation, Tensor, TensorMut};
use half::{bf16, f16};

use super::support::{Tensorial, guard, kernels, poisoned, stream};

/// Whether the device has the instructions; says so if not.
fn has_instructions() -> bool {
    let capability = guard().limits().compute_capability;
    let has = capability == ComputeCapability::new(9, 0);
    if !has {
        println!("{capability} has no gated product");
    }
    has
}

fn matches_the_reference<T: Tensorial>([rows, inner, columns]: [u64; 3], rounds: u64) {
    let product = GatedProduct::new(rows, inner, columns, T::TYPE).expect("legal");
    let parameters = [("rounds".to_owned(), rounds)];
    let product = product.with_parameters(&parameters).expect("legal");
    let product = kernels().prepare(product, Choice::AUTOMATIC).expect("compiles");
    let len = |elements: u64| usize::try_from(elements).expect("elements");
    let x = uniform::<T>(len(rows * inner), 1);
    let weight = uniform::<T>(len(2 * columns * inner), 2);
    let bias = uniform::<T>(len(2 * columns), 3);
    let stream = stream();
    let copy = |tensor: &[T]| stream.clone_htod(tensor).expect("memory");
    let (on_x, on_weight, on_bias) = (copy(&x), copy(&weight), copy(&bias));
    let mut out = poisoned::<T>(&stream, len(rows * columns));
    let launched = product.launch(
        &stream,
        Tensor::new(&on_x, [rows, inner]),
        Tensor::new(&on_weight, [2 * columns, inner]),
        Tensor::new(&on_bias, [2 * columns]),
        TensorMut::new(&mut out, [rows, columns]),
    );
    launched.expect("launches");
    let out = stream.clone_dtoh(&out).expect("out");
    let mut deviation = Deviation::new();
    // Every row of few, else those around the borders of tiles and blocks.
    let block = 64 * rounds;
    let picked =
        |row: &u64| rows < 300 || row % block < 2 || row % block > block - 3 || rows - row < 3;
    for row in (0..rows).filter(picked) {
        let (from, to) = (len(row * inner), len(row * columns));
        let expected = reference(&x[from..from + len(inner)], &weight, &bias);
        deviation.add(&out[to..to + len(columns)], &expected);
    }
    let relative = deviation.relative();
    assert!(
        deviation.within(T::TYPE.rounding_error()),
        "{rows} {inner} {columns} {rounds}: {relative:e}"
    );
    assert!(out.iter().all(|x| x.widen().is_finite()));
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn the_gated_product_matches_f64_at_the_borders_of_tiles_and_blocks() {
    if !has_instructions() {
        return;
    }
    for rows in [1, 63, 64, 65, 128, 129, 1023, 2500] {
        for (inner, columns) in [(64, 64), (128, 128), (320, 1280), (448, 192), (640, 256)] {
            for rounds in [1, 3, 16] {
                matches_the_reference::<f16>([rows, inner, columns], rounds);
                matches_the_reference::<bf16>([rows, inner, columns], rounds);
            }
        }
    }
}

/// Small enough for a sanitizer.
#[test]
#[ignore = "needs a CUDA GPU"]
fn small_problems_of_the_gated_product_match_f64() {
    if has_instructions() {
        matches_the_reference::<f16>([130, 64, 64], 2);
        matches_the_reference::<bf16>([65, 320, 128], 1);
        matches_the_reference::<f16>([200, 640, 64], 3);
    }
}
