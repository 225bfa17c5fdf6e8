//! Reads q, k and v from a safetensors file, and writes the output to one.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use bytemuck::Pod;
use gridguard_files::publish;
use gridguard_kernels::temporal_attention::Shape;
use gridguard_kernels::{Element, KernelError};
use half::{bf16, f16};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

/// q, k and v of one shape and type.
#[derive(Clone, Debug)]
pub struct Qkv<T> {
    /// Queries.
    pub q: Vec<T>,
    /// Keys.
    pub k: Vec<T>,
    /// Values.
    pub v: Vec<T>,
    /// Their shape, with one head if the file's tensors have three dimensions.
    pub shape: Shape,
    /// The dimensions in the file and of the output.
    pub dims: Vec<usize>,
}

/// Tensors of any type that attention takes.
#[derive(Clone, Debug)]
pub enum Tensors {
    /// Half precision.
    F16(Qkv<f16>),
    /// bfloat16.
    Bf16(Qkv<bf16>),
    /// Single precision.
    F32(Qkv<f32>),
}

/// Why a tensor file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TensorFileError {
    /// The file cannot be read or written.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The file is not a valid safetensors file.
    #[error("{} is not a valid safetensors file: {error}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// Why.
        error: safetensors::SafeTensorError,
    },
    /// Tensors that are missing, or of a type or rank that attention does not take.
    #[error("{0}")]
    Tensors(String),
    /// A shape that the kernel does not take.
    #[error(transparent)]
    Shape(#[from] KernelError),
}

/// Reads `q`, `k` and `v` from a safetensors file.
///
/// # Errors
///
/// [`TensorFileError`] if the file is not valid, a tensor is missing or of a wrong type, rank or
/// shape, or the kernel does not take the shape.
pub fn read_qkv(path: &Path) -> Result<Tensors, TensorFileError> {
    let bytes =
        fs::read(path).map_err(|error| TensorFileError::Io { path: path.to_owned(), error })?;
    let file = SafeTensors::deserialize(&bytes)
        .map_err(|error| TensorFileError::Format { path: path.to_owned(), error })?;
    let tensor = |name| {
        file.tensor(name).map_err(|_| {
            let mut known: Vec<String> =
                file.names().into_iter().map(|name| name.to_string()).collect();
            known.sort();
            let (path, known) = (path.display(), known.join(", "));
            TensorFileError::Tensors(format!("{path} has no tensor {name:?}, only {known}"))
        })
    };
    let (q, k, v) = (tensor("q")?, tensor("k")?, tensor("v")?);
    for (name, other) in [("k", &k), ("v", &v)] {
        if other.dtype() != q.dtype() || other.shape() != q.shape() {
            return Err(TensorFileError::Tensors(format!(
                "tensor {name} is {:?} {:?}, q is {:?} {:?}",
                other.dtype(),
                other.shape(),
                q.dtype(),
                q.shape()
            )));
        }
    }
    let shape = shape_of(q.shape())?;
    match q.dtype() {
        Dtype::F16 => Ok(Tensors::F16(qkv(&q, &k, &v, shape))),
        Dtype::BF16 => Ok(Tensors::Bf16(qkv(&q, &k, &v, shape))),
        Dtype::F32 => Ok(Tensors::F32(qkv(&q, &k, &v, shape))),
        dtype => Err(TensorFileError::Tensors(format!(
            "tensor q is {dtype:?}, attention takes F16, BF16 and F32"
        ))),
    }
}

fn shape_of(dims: &[usize]) -> Result<Shape, TensorFileError> {
    let wide: Vec<u64> = dims.iter().map(|size| u64::try_from(*size).unwrap_or(u64::MAX)).collect();
    match wide[..] {
        [items, frames, head_dim] => Ok(Shape::new(items, 1, frames, head_dim)?),
        [items, heads, frames, head_dim] => Ok(Shape::new(items, heads, frames, head_dim)?),
        _ => Err(TensorFileError::Tensors(format!(
            "tensor q has shape {dims:?}, expected 3 dimensions [items, frames, head_dim] or 4 \
             [items, heads, frames, head_dim]"
        ))),
    }
}

fn qkv<T: Element + Pod>(
    q: &TensorView<'_>,
    k: &TensorView<'_>,
    v: &TensorView<'_>,
    shape: Shape,
) -> Qkv<T> {
    // Copied, as the file's bytes need not be aligned for T.
    let elements = |view: &TensorView<'_>| bytemuck::pod_collect_to_vec(view.data());
    Qkv { q: elements(q), k: elements(k), v: elements(v), shape, dims: q.shape().to_vec() }
}

/// Writes `out` to a safetensors file, atomically.
///
/// # Errors
///
/// [`TensorFileError`] if the file cannot be written.
pub fn write_out<T: Element + Pod>(
    path: &Path,
    dims: &[usize],
    out: &[T],
) -> Result<(), TensorFileError> {
    let dtype = match T::TYPE {
        gridguard_kernels::ElementType::F16 => Dtype::F16,
        gridguard_kernels::ElementType::Bf16 => Dtype::BF16,
        gridguard_kernels::ElementType::F32 => Dtype::F32,
    };
    let format = |error| TensorFileError::Format { path: path.to_owned(), error };
    let view = TensorView::new(dtype, dims.to_vec(), bytemuck::cast_slice(out)).map_err(format)?;
    let bytes = safetensors::serialize([("out", view)], None).map_err(format)?;
    publish(path, &bytes)
        .map(drop)
        .map_err(|error| TensorFileError::Io { path: path.to_owned(), error: error.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(tensors: &[(&str, Dtype, &[usize])]) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let bytes = vec![0_u8; 4096];
        let views = tensors.iter().map(|(name, dtype, dims)| {
            let size = dims.iter().product::<usize>() * dtype.bitsize() / 8;
            (*name, TensorView::new(*dtype, dims.to_vec(), &bytes[..size]).expect("a tensor"))
        });
        safetensors::serialize_to_file(views, None, file.path()).expect("written");
        file
    }

    type Dims = &'static [usize];

    fn of(dtype: Dtype, dims: Dims) -> [(&'static str, Dtype, Dims); 3] {
        [("q", dtype, dims), ("k", dtype, dims), ("v", dtype, dims)]
    }

    fn message(tensors: &[(&str, Dtype, &[usize])]) -> String {
        read_qkv(file(tensors).path()).expect_err("rejected").to_string()
    }

    #[test]
    fn three_dimensions_mean_one_head() {
        let file = file(&of(Dtype::F16, &[3, 2, 8]));
        let Tensors::F16(qkv) = read_qkv(file.path()).expect("legal") else {
            panic!("another type");
        };
        assert_eq!(qkv.shape.dims(), [3, 1, 2, 8]);
        assert_eq!(qkv.q.len(), 48);
    }

    #[test]
    fn wrong_rank_type_and_shape_have_their_own_errors() {
        let dims: Dims = &[3, 2, 8];
        assert_eq!(
            message(&of(Dtype::F32, &[2, 8])),
            "tensor q has shape [2, 8], expected 3 dimensions [items, frames, head_dim] or 4 \
             [items, heads, frames, head_dim]"
        );
        assert_eq!(
            message(&of(Dtype::I32, dims)),
            "tensor q is I32, attention takes F16, BF16 and F32"
        );
        let mut mixed = of(Dtype::F32, dims);
        mixed[2].2 = &[3, 2, 9];
        assert_eq!(message(&mixed), "tensor v is F32 [3, 2, 9], q is F32 [3, 2, 8]");
        assert_eq!(
            message(&of(Dtype::F32, &[1, 1, 520])),
            "head_dim is 520, the kernel takes 1 to 512"
        );
    }

    #[test]
    fn a_missing_tensor_and_a_cut_file_are_errors() {
        let dims: &[usize] = &[3, 2, 8];
        let missing = message(&[("q", Dtype::F16, dims), ("w", Dtype::F16, dims)]);
        assert!(missing.ends_with("has no tensor \"k\", only q, w"), "{missing}");
        let whole = file(&[("q", Dtype::F16, dims)]);
        let bytes = fs::read(whole.path()).expect("bytes");
        fs::write(whole.path(), &bytes[..bytes.len() - 1]).expect("cut");
        let error = read_qkv(whole.path()).expect_err("cut").to_string();
        assert!(error.contains("is not a valid safetensors file"), "{error}");
    }

    #[test]
    fn a_written_tensor_reads_back() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("out.safetensors");
        let out: Vec<f16> = (0..48_u8).map(f16::from).collect();
        write_out(&path, &[3, 2, 8], &out).expect("written");
        let bytes = fs::read(&path).expect("bytes");
        let file = SafeTensors::deserialize(&bytes).expect("whole");
        let view = file.tensor("out").expect("out");
        assert_eq!((view.dtype(), view.shape()), (Dtype::F16, &[3_usize, 2, 8][..]));
        assert_eq!(bytemuck::pod_collect_to_vec::<u8, f16>(view.data()), out);
        assert_eq!(fs::read_dir(folder.path()).expect("folder").count(), 1);
    }
}
