//! Shared by the examples: random tensors, tensors from files, the comparison with a reference, and exit codes.

mod tensor_file;
mod verify;

use std::error::Error;
use std::process::ExitCode;

use gridguard_kernels::Element;
use rayon::prelude::*;

pub use tensor_file::{Qkv, TensorFileError, Tensors, read_qkv, write_out};
pub use verify::{Parts, verify};

/// The exit code of a program: 0 if its result is correct, 1 if it is not, 2 with a message for an error.
pub fn exit_code(is_correct: Result<bool, Box<dyn Error>>) -> ExitCode {
    match is_correct {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

/// `len` elements, uniformly distributed with mean 0 and variance 1; the same for the same `seed`
/// on every machine.
pub fn uniform<T: Element>(len: usize, seed: u64) -> Vec<T> {
    let mut elements = vec![T::narrow(0.0); len];
    elements.par_chunks_mut(PART).enumerate().for_each(|(index, part)| {
        let index = u64::try_from(index).unwrap_or(u64::MAX);
        let mut rng = fastrand::Rng::with_seed(seed ^ (index << 32));
        part.fill_with(|| T::narrow((rng.f32() * 2.0 - 1.0) * 3.0_f32.sqrt()));
    });
    elements
}

/// Elements that one generator makes, so that all cores make some.
const PART: usize = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_repeat_for_a_seed_and_have_mean_0_and_variance_1() {
        let one: Vec<f32> = uniform(200_000, 1);
        assert_eq!(one, uniform::<f32>(200_000, 1));
        assert_ne!(one, uniform::<f32>(200_000, 2));
        let count = 200_000.0;
        let mean = one.iter().map(|x| f64::from(*x)).sum::<f64>() / count;
        let variance = one.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / count;
        assert!(mean.abs() < 0.01 && (variance - 1.0).abs() < 0.01, "{mean} {variance}");
    }
}
