//! Made-up tensors: the same on every machine.

use gridguard_kernels::Element;
use rayon::prelude::*;

/// Elements that one generator makes.
const RUN: usize = 1 << 16;

/// `len` elements of mean 0 and variance 1, uniformly distributed, the same for the same `seed`.
#[must_use]
pub fn uniform<T: Element>(len: usize, seed: u64) -> Vec<T> {
    let mut elements = vec![T::narrow(0.0); len];
    elements.par_chunks_mut(RUN).enumerate().for_each(|(run, part)| {
        let run = u64::try_from(run).unwrap_or(u64::MAX);
        let mut state = SplitMix(seed ^ run.wrapping_mul(0xd6e8_feb8_6659_fd93));
        for element in part {
            *element = T::narrow((state.unit() * 2.0 - 1.0) * 3.0_f32.sqrt());
        }
    });
    elements
}

/// `SplitMix64`.
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// From 0 to below 1.
    fn unit(&mut self) -> f32 {
        // 16 bits, which f32 holds exactly.
        let high = u16::try_from(self.next() >> 48).unwrap_or(0);
        f32::from(high) / 65_536.0
    }
}

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
