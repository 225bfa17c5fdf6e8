//! Compares the times of our candle operators with direct launches into allocated memory, by CUDA events over many
//! calls. Writes the ratios as JSON to the given file.
//!
//! ```sh
//! cargo bench -p gridguard-candle --features cuda --bench gpu_operators -- RESULTS.json
//! ```

use std::error::Error;
use std::time::Instant;

use candle_core::cuda::CudaDType;
use candle_core::{CudaDevice, DType, Device, Storage, Tensor};
use cudarc::driver::{CudaSlice, CudaStream, DeviceRepr, ValidAsZeroBits, sys::CUevent_flags};
use gridguard::cuda::InOrder;
use gridguard::profile::{Objective, Policy};
use gridguard_candle::{Attention, GuardedDevice};
use gridguard_kernels::argsort::{Argsort, Order};
use gridguard_kernels::rms_norm::RmsNorm;
use gridguard_kernels::softmax::Softmax;
use gridguard_kernels::temporal_attention::{Shape, TemporalAttention};
use gridguard_kernels::{Element, ElementType, Kernels, Operation, Prepared};
use gridguard_kernels::{Tensor as Input, TensorMut as Output};
use half::f16;

type Result<T> = std::result::Result<T, Box<dyn Error>>;
type Call<'a> = Box<dyn FnMut() -> Result<()> + 'a>;

/// Calls of a sample: enough that the host stays ahead of the device.
const CALLS: u32 = 100;
/// Samples of each, in turn.
const SAMPLES: usize = 21;

/// A launch by hand and the operator, of the same operation on the same input.
struct Row {
    name: &'static str,
    native_us: f64,
    operator_us: f64,
    /// Microseconds of the host for a call of the operator.
    host_us: f64,
    /// The median of the ratios of samples that were measured one after the other.
    ratio: f64,
}

/// Microseconds of the device and of the host for a call.
fn sample(stream: &CudaStream, call: &mut Call<'_>) -> Result<[f64; 2]> {
    let flags = Some(CUevent_flags::CU_EVENT_DEFAULT);
    // The wait for the sample before has returned the pool's free memory to the driver: this call takes it again.
    call()?;
    let begin = stream.record_event(flags)?;
    let begun = Instant::now();
    for _ in 0..CALLS {
        call()?;
    }
    let host = begun.elapsed().as_secs_f64() * 1e6;
    let end = stream.record_event(flags)?;
    let device = f64::from(begin.elapsed_ms(&end)?) * 1e3;
    Ok([device, host].map(|time| time / f64::from(CALLS)))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn compare(
    name: &'static str,
    stream: &CudaStream,
    mut native: Call<'_>,
    operator: &dyn Fn() -> candle_core::Result<Tensor>,
) -> Result<Row> {
    let mut operator: Call<'_> = Box::new(|| {
        operator()?;
        Ok(())
    });
    // Compiles, and brings the clock up.
    sample(stream, &mut native)?;
    sample(stream, &mut operator)?;
    let (mut natives, mut operators) = (Vec::new(), Vec::new());
    let (mut hosts, mut ratios) = (Vec::new(), Vec::new());
    for _ in 0..SAMPLES {
        let [native, _] = sample(stream, &mut native)?;
        let [time, host] = sample(stream, &mut operator)?;
        natives.push(native);
        operators.push(time);
        hosts.push(host);
        ratios.push(time / native);
    }
    let [native_us, operator_us, host_us, ratio] = [natives, operators, hosts, ratios].map(median);
    Ok(Row { name, native_us, operator_us, host_us, ratio })
}

/// The launch that the operator makes: as the profile says.
fn tuned<O: Operation>(kernels: &Kernels, operation: O) -> Result<Prepared<O>> {
    Ok(kernels.prepare_tuned(operation, Policy::default(), Objective::default())?.prepared)
}

/// The memory of a tensor that begins at its beginning, as a launch by hand takes it.
fn memory<T: CudaDType + DeviceRepr>(tensor: &Tensor) -> Result<InOrder<CudaSlice<T>>> {
    let (storage, _) = tensor.storage_and_layout();
    match &*storage {
        Storage::Cuda(storage) => Ok(in_order(storage.as_cuda_slice::<T>()?.try_clone()?)),
        _ => Err("not on a device".into()),
    }
}

/// Memory for direct launches. Like the operators, they need no synchronisation.
#[allow(unsafe_code, reason = "an order that only this program knows")]
fn in_order<T>(memory: CudaSlice<T>) -> InOrder<CudaSlice<T>> {
    // SAFETY: one thread uses the memory, only on the stream of the device.
    unsafe { InOrder::new(memory) }
}

fn attention(device: &Device, cuda: &CudaDevice, of: [u64; 4]) -> Result<Row> {
    let (kernels, stream) = (device.kernels()?, cuda.cuda_stream());
    let shape = Shape::new(of[0], of[1], of[2], of[3])?;
    let element = ElementType::F16;
    let prepared = kernels.prepare_attention(TemporalAttention::new(
        shape,
        element,
        kernels.guard().limits(),
    )?)?;
    let prepared = prepared.prepared;
    let dims = of.map(|size| usize::try_from(size).unwrap_or_default()).to_vec();
    let tensor = || Tensor::randn(0_f32, 1.0, &*dims, device)?.to_dtype(DType::F16);
    let (q, k, v) = (tensor()?, tensor()?, tensor()?);
    let (a, b, c) = (memory::<f16>(&q)?, memory::<f16>(&k)?, memory::<f16>(&v)?);
    let mut out = in_order(cuda.alloc_zeros::<f16>(q.elem_count())?);
    let operator = Attention::new(shape.scale());
    compare(
        "attention",
        &stream,
        Box::new(|| {
            let inputs = [Input::new(&a, of), Input::new(&b, of), Input::new(&c, of)];
            prepared.launch(&stream, inputs, None, shape.scale(), Output::new(&mut out, of))?;
            Ok(())
        }),
        &|| operator.forward(&q, &k, &v),
    )
}

fn softmax(device: &Device, cuda: &CudaDevice, of: [u64; 2]) -> Result<Row> {
    let (x, a, mut out) = rows::<f16>(device, cuda, of)?;
    let prepared = tuned(&device.kernels()?, Softmax::new(of[0], of[1], ElementType::F16)?)?;
    let stream = cuda.cuda_stream();
    compare(
        "softmax",
        &stream,
        Box::new(|| {
            prepared.launch(&stream, Input::new(&a, of), Output::new(&mut out, of))?;
            Ok(())
        }),
        &|| gridguard_candle::softmax(&x),
    )
}

fn argsort(device: &Device, cuda: &CudaDevice, of: [u64; 2]) -> Result<Row> {
    let (x, a, mut out) = rows::<u32>(device, cuda, of)?;
    let operation = Argsort::new(of[0], of[1], ElementType::F16, Order::Ascending)?;
    let (prepared, stream) = (tuned(&device.kernels()?, operation)?, cuda.cuda_stream());
    compare(
        "argsort",
        &stream,
        Box::new(|| {
            prepared.launch(&stream, Input::new(&a, of), Output::new(&mut out, of))?;
            Ok(())
        }),
        &|| gridguard_candle::argsort(&x, true),
    )
}

fn rms_norm(device: &Device, cuda: &CudaDevice, of: [u64; 2]) -> Result<Row> {
    let (x, a, mut out) = rows::<f16>(device, cuda, of)?;
    let weight = Tensor::ones(x.dims()[1], DType::F16, device)?;
    let b = memory::<f16>(&weight)?;
    let prepared = tuned(&device.kernels()?, RmsNorm::new(of[0], of[1], ElementType::F16)?)?;
    let stream = cuda.cuda_stream();
    compare(
        "rms_norm",
        &stream,
        Box::new(|| {
            let weight = Input::new(&b, [of[1]]);
            prepared.launch(
                &stream,
                Input::new(&a, of),
                weight,
                1e-6,
                Output::new(&mut out, of),
            )?;
            Ok(())
        }),
        &|| gridguard_candle::rms_norm(&x, &weight, 1e-6),
    )
}

/// Rows of f16, their memory for launches by hand, and memory for those launches' output.
fn rows<U: DeviceRepr + ValidAsZeroBits>(
    device: &Device,
    cuda: &CudaDevice,
    of: [u64; 2],
) -> Result<(Tensor, InOrder<CudaSlice<f16>>, InOrder<CudaSlice<U>>)> {
    let [rows, columns] = of.map(|size| usize::try_from(size).unwrap_or_default());
    let x = Tensor::randn(0_f32, 1.0, (rows, columns), device)?.to_dtype(DType::F16)?;
    let (a, out) = (memory(&x)?, in_order(cuda.alloc_zeros(rows * columns)?));
    Ok((x, a, out))
}

fn main() -> Result<()> {
    assert_eq!(f16::TYPE, ElementType::F16);
    let device = Device::new_cuda(0)?;
    let cuda = device.as_cuda_device()?;
    let rows = [
        attention(&device, cuda, [15_360, 5, 16, 64])?,
        attention(&device, cuda, [70_000, 5, 16, 64])?,
        attention(&device, cuda, [2560, 5, 16, 64])?,
        softmax(&device, cuda, [262_144, 1024])?,
        rms_norm(&device, cuda, [131_072, 4096])?,
        argsort(&device, cuda, [4096, 16_384])?,
    ];
    println!("  operator   native us  operator us   ratio   host us");
    for Row { name, native_us, operator_us, host_us, ratio } in &rows {
        println!(
            "{name:>10}  {native_us:>10.2}  {operator_us:>11.2}  {ratio:>6.3}  {host_us:>8.2}"
        );
    }
    // `cargo bench` passes options of its own.
    if let Some(path) = std::env::args().skip(1).find(|word| !word.starts_with('-')) {
        let rows = rows.iter().map(|Row { name, native_us, operator_us, host_us, ratio }| {
            format!(
                " {{\"operator\": \"{name}\", \"native_us\": {native_us:.3}, \"operator_us\": {operator_us:.3}, \
                 \"host_us\": {host_us:.3}, \"ratio\": {ratio:.4}}}"
            )
        });
        let device = device.guard()?.limits().name.clone();
        let rows = rows.collect::<Vec<_>>().join(",\n");
        let [driver, date, commit] = ["DRIVER", "DATE", "COMMIT"].map(|name| {
            std::env::var(format!("GRIDGUARD_{name}")).unwrap_or_else(|_| "unknown".into())
        });
        let text = format!(
            "{{\"device\": \"{device}\", \"driver\": \"{driver}\", \"date\": \"{date}\", \
             \"commit\": \"{commit}\", \"goal\": 1.02, \"rows\": [\n{rows}\n]}}\n"
        );
        std::fs::write(path, text)?;
    }
    Ok(())
}
