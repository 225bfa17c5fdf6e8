//! A temporal transformer block in candle, with candle's own operators and with ours: their results are compared and
//! their times shown, on a GPU where there is one, else on the host.
//!
//! ```sh
//! cargo run --release -p gridguard-candle --example temporal_transformer --features cuda
//! ```

use std::time::Instant;

use candle_core::{D, DType, Device, Result, Tensor};
use gridguard_candle::Attention;

/// The sizes of a block: every position of a feature map is a sequence of frames.
struct Sizes {
    positions: usize,
    frames: usize,
    heads: usize,
    head_dim: usize,
}

/// The weights of a block, `[out, in]`, as in a motion module: norm and attention, norm and feed-forward.
struct Weights {
    norms: [Tensor; 2],
    /// Queries, keys and values as one.
    projection: Tensor,
    output: Tensor,
    up: Tensor,
    down: Tensor,
}

/// The operators that differ between the two blocks.
trait Operators {
    fn rms_norm(&self, x: &Tensor, weight: &Tensor) -> Result<Tensor>;
    fn attention(&self, q: &Tensor, k: &Tensor, v: &Tensor, scale: f32) -> Result<Tensor>;
}

struct Candle;

impl Operators for Candle {
    fn rms_norm(&self, x: &Tensor, weight: &Tensor) -> Result<Tensor> {
        candle_nn::ops::rms_norm(x, weight, EPSILON)
    }

    fn attention(&self, q: &Tensor, k: &Tensor, v: &Tensor, scale: f32) -> Result<Tensor> {
        let (q, k, v) = (q.contiguous()?, k.contiguous()?, v.contiguous()?);
        let scores = (q.matmul(&k.transpose(D::Minus2, D::Minus1)?)? * f64::from(scale))?;
        candle_nn::ops::softmax_last_dim(&scores)?.matmul(&v)
    }
}

struct Ours;

impl Operators for Ours {
    fn rms_norm(&self, x: &Tensor, weight: &Tensor) -> Result<Tensor> {
        gridguard_candle::rms_norm(x, weight, EPSILON)
    }

    fn attention(&self, q: &Tensor, k: &Tensor, v: &Tensor, scale: f32) -> Result<Tensor> {
        // q, k and v are views of one tensor: nothing is copied.
        Attention::new(scale).forward(q, k, v)
    }
}

const EPSILON: f32 = 1e-6;
/// The width of the feed-forward, in widths of the block.
const FEED_FORWARD: usize = 4;

impl Weights {
    fn random(width: usize, dtype: DType, device: &Device) -> Result<Self> {
        let matrix = |rows: usize, columns: usize| {
            let deviation = 1.0 / f32::from(u16::try_from(columns).unwrap_or(u16::MAX)).sqrt();
            Tensor::randn(0_f32, deviation, (rows, columns), device)?.to_dtype(dtype)
        };
        let norm = || Tensor::rand(0.5_f32, 1.5, width, device)?.to_dtype(dtype);
        Ok(Self {
            norms: [norm()?, norm()?],
            projection: matrix(3 * width, width)?,
            output: matrix(width, width)?,
            up: matrix(FEED_FORWARD * width, width)?,
            down: matrix(width, FEED_FORWARD * width)?,
        })
    }
}

/// The block over `[positions * frames, width]`.
fn block(
    x: &Tensor,
    weights: &Weights,
    sizes: &Sizes,
    operators: &dyn Operators,
) -> Result<Tensor> {
    let Sizes { positions, frames, heads, head_dim } = *sizes;
    let linear = |x: &Tensor, weight: &Tensor| x.matmul(&weight.t()?);
    let [before_attention, before_feed_forward] = &weights.norms;

    let normed = operators.rms_norm(x, before_attention)?;
    let qkv = linear(&normed, &weights.projection)?;
    let qkv = qkv.reshape((positions, frames, 3, heads, head_dim))?;
    let part = |at: usize| qkv.narrow(2, at, 1)?.squeeze(2)?.transpose(1, 2);
    let scale = 1.0 / f32::from(u16::try_from(head_dim).unwrap_or(u16::MAX)).sqrt();
    let attended = operators.attention(&part(0)?, &part(1)?, &part(2)?, scale)?;
    let attended = attended.transpose(1, 2)?.reshape(x.shape())?;
    let x = (x + linear(&attended, &weights.output)?)?;

    let normed = operators.rms_norm(&x, before_feed_forward)?;
    &x + linear(&linear(&normed, &weights.up)?.gelu()?, &weights.down)?
}

/// A GPU where the program was built for one and the machine has one.
fn device() -> Result<Device> {
    #[cfg(feature = "cuda")]
    if gridguard::cuda::device_count().is_ok_and(|count| count > 0) {
        return Device::new_cuda(0);
    }
    Ok(Device::Cpu)
}

/// Waits, and measures the block.
fn milliseconds(device: &Device, run: &dyn Fn() -> Result<Tensor>) -> Result<f64> {
    const RUNS: u32 = 3;
    let begun = Instant::now();
    for _ in 0..RUNS {
        run()?;
    }
    device.synchronize()?;
    Ok(begun.elapsed().as_secs_f64() * 1e3 / f64::from(RUNS))
}

fn main() -> Result<()> {
    let device = device()?;
    let (place, maps, dtypes): (_, &[usize], &[DType]) = if device.is_cuda() {
        // 40 x 64 positions, batches of 1 and of 6: 76,800 problems of attention.
        ("GPU", &[2560, 15_360], &[DType::F16, DType::F32])
    } else {
        ("host", &[1, 4], &[DType::F32])
    };
    println!("a temporal transformer block of 16 frames, 5 heads of 64, on the {place}\n");
    println!(
        "{:>9}  {:>4}  {:>9}  {:>9}  {:>7}  {:>10}",
        "positions", "type", "candle ms", "ours ms", "speedup", "difference"
    );
    for dtype in dtypes {
        for positions in maps {
            let sizes = Sizes { positions: *positions, frames: 16, heads: 5, head_dim: 64 };
            let width = sizes.heads * sizes.head_dim;
            let weights = Weights::random(width, *dtype, &device)?;
            let x = Tensor::randn(0_f32, 1.0, (positions * sizes.frames, width), &device)?;
            let x = x.to_dtype(*dtype)?;
            let run = |operators: &dyn Operators| block(&x, &weights, &sizes, operators);
            // The first call of a shape compiles its kernels.
            let difference = relative_difference(&run(&Ours)?, &run(&Candle)?)?;
            let [candle, ours] =
                [milliseconds(&device, &|| run(&Candle))?, milliseconds(&device, &|| run(&Ours))?];
            println!(
                "{positions:>9}  {:>4}  {candle:>9.2}  {ours:>9.2}  {:>7.2}  {difference:>10.1e}",
                dtype.as_str(),
                candle / ours,
            );
            let tolerance = if *dtype == DType::F32 { 1e-4 } else { 1e-2 };
            if difference.is_nan() || difference > tolerance {
                candle_core::bail!("the blocks differ by {difference:e}, more than {tolerance:e}");
            }
        }
    }
    println!("\nboth blocks have the same weights; the difference is relative, over all elements");
    Ok(())
}

/// The Frobenius norm of the difference over that of the second.
fn relative_difference(one: &Tensor, other: &Tensor) -> Result<f64> {
    let (one, other) = (one.to_dtype(DType::F32)?, other.to_dtype(DType::F32)?);
    let norm = |x: &Tensor| x.sqr()?.sum_all()?.to_scalar::<f32>();
    Ok((f64::from(norm(&(&one - &other)?)?) / f64::from(norm(&other)?)).sqrt())
}
