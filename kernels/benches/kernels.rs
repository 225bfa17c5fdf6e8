//! The other kernels on a CUDA device beside what moving their bytes costs; without a device, their
//! host references.
//!
//! One function a kernel, which says what the dimensions of its shape are: programs that measure
//! others read them from the name.

mod support;

use std::hint::black_box;

use cudarc::driver::CudaSlice;
use gridguard::Choice;
use gridguard_kernels::argsort::{self, Argsort, Order};
use gridguard_kernels::batched_gemm::{self, BatchedGemm};
use gridguard_kernels::get_rows::{self, GetRows, IndexReport};
use gridguard_kernels::reflection_pad1d::{self, ReflectionPad1d};
use gridguard_kernels::rms_norm::{self, RmsNorm};
use gridguard_kernels::softmax::{self, Softmax};
use gridguard_kernels::upsample_nearest2d::{self, UpsampleNearest2d};
use gridguard_kernels::{Element, IndexType, Tensor, TensorMut};
use half::f16;

use support::{Bench, Case, Device, Failure, Reads, Repeated, Tensorial, made_up};

fn main() {
    let mut bench = Bench::new();
    match Device::new() {
        Ok(device) => on_device(&mut bench, &device),
        Err(reason) => {
            eprintln!("no CUDA device ({reason}): host references are measured");
            on_host(&mut bench);
        }
    }
    bench.finish();
}

fn on_device(bench: &mut Bench, device: &Device) {
    rms_norm::<f16>(bench, device, 32_768, 4096);
    rms_norm::<f16>(bench, device, 131_072, 1024);
    rms_norm::<f32>(bench, device, 32_768, 4096);
    upsample_nearest2d::<f16>(bench, device, 8192, [64; 2], [128; 2]);
    upsample_nearest2d::<f16>(bench, device, 131_072, [32; 2], [64; 2]);
    reflection_pad1d::<f16>(bench, device, [16, 512, 20_000], [3, 3]);
    reflection_pad1d::<f32>(bench, device, [131_072, 1, 1000], [24, 24]);
    get_rows::<f16>(bench, device, 65_536, 4096, 128_256);
    get_rows::<f16>(bench, device, 1_048_576, 128, 1_000_000);
    softmax::<f16>(bench, device, 1_228_800, 128);
    softmax::<f16>(bench, device, 262_144, 1024);
    softmax::<f32>(bench, device, 32_768, 4096);
    argsort::<f16>(bench, device, 262_144, 256);
    argsort::<f32>(bench, device, 65_536, 1024);
    argsort::<f32>(bench, device, 4096, 32_768);
    batched_gemm::<f16>(bench, device, 1_000_000, [16, 16, 8]);
    batched_gemm::<f32>(bench, device, 1_000_000, [16, 16, 8]);
    batched_gemm::<f32>(bench, device, 1_000_000, [8, 8, 8]);
    batched_gemm::<f16>(bench, device, 262_144, [32, 32, 32]);
    batched_gemm::<f32>(bench, device, 65_536, [64, 64, 64]);
}

fn on_host(bench: &mut Bench) {
    rms_norm_reference::<f16>(bench, 64, 4096);
    rms_norm_reference::<f32>(bench, 64, 4096);
}

/// Ours, beside the limit of as many bytes.
fn beside_limit<'a, T: Tensorial>(
    bench: &mut Bench,
    device: &Device,
    operation: &'static str,
    dims: &[u64],
    bytes: u128,
    prepare: impl FnOnce() -> Result<Repeated<'a>, Failure>,
) {
    let case = case::<T>(operation, "ours", dims, bytes);
    bench.measure(&case, prepare);
    device.measure_limit::<T>(bench, case, Reads::One);
}

fn case<T: Element>(
    operation: &'static str,
    name: &'static str,
    dims: &[u64],
    bytes: u128,
) -> Case {
    let dims: Vec<String> = dims.iter().map(u64::to_string).collect();
    Case { operation, shape: dims.join("x"), element: T::TYPE, name, bytes }
}

/// Bytes of a tensor.
fn bytes_of<T: Element>(dims: &[u64]) -> u128 {
    dims.iter().map(|dim| u128::from(*dim)).product::<u128>() * u128::from(T::TYPE.bytes())
}

/// Elements of a tensor.
fn len_of(dims: &[u64]) -> Result<usize, Failure> {
    Ok(usize::try_from(dims.iter().product::<u64>())?)
}

const EPSILON: f32 = 1e-6;

/// Rows, columns.
fn rms_norm<T: Tensorial>(bench: &mut Bench, device: &Device, rows: u64, columns: u64) {
    let dims = [rows, columns];
    beside_limit::<T>(bench, device, "rms_norm", &dims, 2 * bytes_of::<T>(&dims), || {
        let operation = RmsNorm::new(rows, columns, T::TYPE)?;
        let prepared = device.kernels().prepare(operation, Choice::AUTOMATIC)?;
        let x = device.filled::<T>(len_of(&dims)?, 1)?;
        let weight = device.filled::<T>(len_of(&[columns])?, 2)?;
        let out = device.zeros::<T>(x.len())?;
        let weights = device.fetch(&weight, 0..weight.len())?;
        let expected = device.ends(&x, weights.len())?;
        let expected = expected.map(|x| rms_norm::reference(&x, &weights, EPSILON));
        device.checked(out, &expected, rms_norm::tolerance(T::TYPE), move |out| {
            let (x, weight) = (Tensor::new(&x, dims), Tensor::new(&weight, [columns]));
            prepared.launch(device.stream(), x, weight, EPSILON, TensorMut::new(out, dims))
        })
    });
}

/// Planes, height and width, height and width of the output.
fn upsample_nearest2d<T: Tensorial>(
    bench: &mut Bench,
    device: &Device,
    planes: u64,
    input: [u64; 2],
    output: [u64; 2],
) {
    let ([height, width], [out_height, out_width]) = (input, output);
    let dims = [planes, height, width, out_height, out_width];
    let (from, to) = ([planes, height, width], [planes, out_height, out_width]);
    let bytes = bytes_of::<T>(&from) + bytes_of::<T>(&to);
    beside_limit::<T>(bench, device, "upsample_nearest2d", &dims, bytes, || {
        let operation = UpsampleNearest2d::new(planes, input, output, T::TYPE)?;
        let prepared = device.kernels().prepare(operation, Choice::AUTOMATIC)?;
        let x = device.filled::<T>(len_of(&from)?, 1)?;
        let out = device.zeros::<T>(len_of(&to)?)?;
        let expected = device.ends(&x, len_of(&input)?)?;
        let expected = expected.map(|x| upsample_nearest2d::reference(&x, input, output));
        device.checked(out, &expected, upsample_nearest2d::tolerance(T::TYPE), move |out| {
            prepared.launch(device.stream(), Tensor::new(&x, from), TensorMut::new(out, to))
        })
    });
}

/// Batch, channels, width, elements before and behind.
fn reflection_pad1d<T: Tensorial>(
    bench: &mut Bench,
    device: &Device,
    from: [u64; 3],
    pads: [u64; 2],
) {
    let ([batch, channels, width], [left, right]) = (from, pads);
    let dims = [batch, channels, width, left, right];
    let to = [batch, channels, left + width + right];
    let bytes = bytes_of::<T>(&from) + bytes_of::<T>(&to);
    beside_limit::<T>(bench, device, "reflection_pad1d", &dims, bytes, || {
        let operation = ReflectionPad1d::new(from, pads, T::TYPE)?;
        let prepared = device.kernels().prepare(operation, Choice::AUTOMATIC)?;
        let x = device.filled::<T>(len_of(&from)?, 1)?;
        let out = device.zeros::<T>(len_of(&to)?)?;
        let (left, right) = (usize::try_from(left)?, usize::try_from(right)?);
        let expected = device.ends(&x, len_of(&[width])?)?;
        let expected = expected.map(|x| reflection_pad1d::reference(&x, left, right));
        device.checked(out, &expected, reflection_pad1d::tolerance(T::TYPE), move |out| {
            prepared.launch(device.stream(), Tensor::new(&x, from), TensorMut::new(out, to))
        })
    });
}

/// Rows, columns, rows of the table; indices of 64 bits.
fn get_rows<T: Tensorial>(
    bench: &mut Bench,
    device: &Device,
    rows: u64,
    columns: u64,
    table_rows: u64,
) {
    let (dims, table_dims) = ([rows, columns], [table_rows, columns]);
    let bytes = 2 * bytes_of::<T>(&dims) + u128::from(rows * IndexType::I64.bytes());
    let shape = [rows, columns, table_rows];
    beside_limit::<T>(bench, device, "get_rows", &shape, bytes, || {
        let operation = GetRows::new(rows, columns, table_rows, T::TYPE, IndexType::I64)?;
        let prepared = device.kernels().prepare(operation, Choice::AUTOMATIC)?;
        let table = device.filled::<T>(len_of(&table_dims)?, 1)?;
        let out = device.zeros::<T>(len_of(&dims)?)?;
        let indices =
            (0..rows).map(|row| scattered(row, table_rows)).collect::<Result<Vec<_>, _>>()?;
        let index = device.stream().clone_htod(&indices)?;
        let row = usize::try_from(columns)?;
        let looked_up = |place: Option<&i64>| -> Result<Vec<f64>, Failure> {
            let start = usize::try_from(*place.ok_or("no rows")?)? * row;
            Ok(get_rows::reference(&device.fetch(&table, start..start + row)?, row, &[0_i64])?)
        };
        let expected = [looked_up(indices.first())?, looked_up(indices.last())?];
        let mut report = IndexReport::new(device.stream())?;
        device.checked(out, &expected, get_rows::tolerance(T::TYPE), move |out| {
            let (table, index) = (Tensor::new(&table, table_dims), Tensor::new(&index, [rows]));
            let out = TensorMut::new(out, dims);
            prepared.launch(device.stream(), table, index, out, &mut report)
        })
    });
}

/// A place below `end`, far from those of its neighbours.
fn scattered(place: u64, end: u64) -> Result<i64, Failure> {
    const PRIME: u64 = 2_654_435_761;
    Ok(i64::try_from(place.wrapping_mul(PRIME) % end)?)
}

/// Rows, columns.
fn softmax<T: Tensorial>(bench: &mut Bench, device: &Device, rows: u64, columns: u64) {
    let dims = [rows, columns];
    beside_limit::<T>(bench, device, "softmax", &dims, 2 * bytes_of::<T>(&dims), || {
        let prepared =
            device.kernels().prepare(Softmax::new(rows, columns, T::TYPE)?, Choice::AUTOMATIC)?;
        let x = device.filled::<T>(len_of(&dims)?, 1)?;
        let out = device.zeros::<T>(x.len())?;
        let expected = device.ends(&x, len_of(&[columns])?)?.map(|x| softmax::reference(&x));
        device.checked(out, &expected, softmax::tolerance(T::TYPE, columns), move |out| {
            prepared.launch(device.stream(), Tensor::new(&x, dims), TensorMut::new(out, dims))
        })
    });
}

/// Rows, columns; ascending, to indices of 32 bits.
fn argsort<T: Tensorial>(bench: &mut Bench, device: &Device, rows: u64, columns: u64) {
    let (dims, order) = ([rows, columns], Order::Ascending);
    let bytes = bytes_of::<T>(&dims) + bytes_of::<f32>(&dims);
    beside_limit::<T>(bench, device, "argsort", &dims, bytes, || {
        let operation = Argsort::new(rows, columns, T::TYPE, order)?;
        let prepared = device.kernels().prepare(operation, Choice::AUTOMATIC)?;
        let x = device.filled::<T>(len_of(&dims)?, 1)?;
        let mut out = device.zeros::<u32>(x.len())?;
        let row = len_of(&[columns])?;
        let expected = device.ends(&x, row)?.map(|x| argsort::reference(&x, order));
        let launch = move |out: &mut CudaSlice<u32>| {
            prepared.launch(device.stream(), Tensor::new(&x, dims), TensorMut::new(out, dims))
        };
        launch(&mut out)?;
        if device.ends(&out, row)? != expected {
            return Err("the order is another".into());
        }
        Ok(device.repeated(move || Ok(launch(&mut out).map(drop)?)).with_error(0.0))
    });
}

/// Products, m, n, k.
fn batched_gemm<T: Tensorial>(bench: &mut Bench, device: &Device, batch: u64, sizes: [u64; 3]) {
    let [m, n, k] = sizes;
    let (of_a, of_b, of_c) = ([batch, m, k], [batch, k, n], [batch, m, n]);
    let bytes = bytes_of::<T>(&of_a) + bytes_of::<T>(&of_b) + bytes_of::<T>(&of_c);
    beside_limit::<T>(bench, device, "batched_gemm", &[batch, m, n, k], bytes, || {
        let operation = BatchedGemm::new(batch, m, n, k, T::TYPE)?;
        let prepared = device.kernels().prepare(operation, Choice::AUTOMATIC)?;
        let a = device.filled::<T>(len_of(&of_a)?, 1)?;
        let b = device.filled::<T>(len_of(&of_b)?, 2)?;
        let out = device.zeros::<T>(len_of(&of_c)?)?;
        let (columns, depth) = (len_of(&[n])?, len_of(&[k])?);
        let ([a0, a1], [b0, b1]) =
            (device.ends(&a, len_of(&[m, k])?)?, device.ends(&b, len_of(&[k, n])?)?);
        let product = |a: &[T], b: &[T]| batched_gemm::reference(a, b, columns, depth);
        let expected = [product(&a0, &b0), product(&a1, &b1)];
        device.checked(out, &expected, batched_gemm::tolerance(T::TYPE), move |out| {
            let (a, b) = (Tensor::new(&a, of_a), Tensor::new(&b, of_b));
            prepared.launch(device.stream(), a, b, TensorMut::new(out, of_c))
        })
    });
}

fn rms_norm_reference<T: Element>(bench: &mut Bench, rows: u64, columns: u64) {
    let dims = [rows, columns];
    let case = case::<T>("rms_norm", "reference", &dims, 2 * bytes_of::<T>(&dims));
    bench.measure(&case, || {
        let columns = usize::try_from(columns)?;
        let x = made_up::<T>(len_of(&dims)?, 1);
        let weight = made_up::<T>(columns, 2);
        Ok(Repeated::on_host(move || {
            for row in x.chunks(columns) {
                black_box(rms_norm::reference(row, &weight, EPSILON));
            }
        }))
    });
}
