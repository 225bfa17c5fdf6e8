//! cuBLASLt's algorithms for a product of one shape, and the product by one of them.

use core::ffi::{c_int, c_void};
use std::rc::Rc;

use cudarc::driver::CudaStream;

use crate::buffer::saturated;
use crate::error::Error;
use crate::product::cublaslt::{HeuristicResult, Status};
use crate::product::library::{LibraryHandle, Object, unusable};
use crate::product::shape::{
    ALIGNMENT, MAX_SIZE, OPERANDS, Operands, ProductElement, ProductShape,
};
use gridguard::Guard;

/// cuBLASLt's algorithms for a product of one shape on one device, to tune them.
///
/// A stage of a pipeline computes products: [`PipelineBuilder::product`](crate::PipelineBuilder).
#[derive(derive_more::Debug)]
#[debug("Product({shape:?}, algorithm {algorithm})")]
pub struct Product {
    shape: ProductShape,
    /// The name of the element type.
    pub(crate) element: &'static str,
    description: Object,
    weight: Object,
    x: Object,
    out: Object,
    algorithms: Vec<HeuristicResult>,
    /// The most bytes of workspace of an algorithm.
    #[cfg_attr(not(feature = "profile"), allow(dead_code, reason = "entries of profiles have it"))]
    pub(crate) allowed_workspace: u64,
    /// The index of the chosen algorithm.
    algorithm: usize,
    /// Dropped last. All products of a stage share it.
    pub(crate) library: Rc<LibraryHandle>,
}

impl Product {
    /// The launch parameter in profiles that is the index of an algorithm.
    pub const ALGORITHM: &'static str = "algorithm";

    /// The algorithms for a product on the guard's device that take up to `workspace_bytes`.
    ///
    /// # Errors
    ///
    /// [`Error`] if the library cannot be used, or has no algorithm for the shape.
    pub fn new<T: ProductElement>(
        guard: &Guard,
        shape: ProductShape,
        workspace_bytes: u64,
    ) -> Result<Self, Error> {
        Self::with_handle::<T>(guard, Rc::new(LibraryHandle::of(guard)?), shape, workspace_bytes)
    }

    /// The handle is of the guard's device.
    pub(crate) fn with_handle<T: ProductElement>(
        guard: &Guard,
        handle: Rc<LibraryHandle>,
        shape: ProductShape,
        workspace_bytes: u64,
    ) -> Result<Self, Error> {
        shape.check()?;
        let library = handle.library;
        let functions = library.functions;
        let (call, destroy) = ("cublasLtMatmulDescCreate", functions.description_destroy);
        let description = Object::new(library, call, destroy, |object| {
            // SAFETY: the pointer is to a live handle.
            unsafe { (functions.description_create)(object, COMPUTE_F32, f32::DATA_TYPE) }
        })?;
        // The library's matrices are column-major, where a row-major matrix is its own transpose: out is the
        // product of weight, transposed, and x.
        description.describe(library, TRANSPOSE_A, &OP_T)?;
        if shape.bias {
            description.describe(library, EPILOGUE, &EPILOGUE_BIAS)?;
            // The pointer is not read, but its alignment decides which algorithms are possible.
            description.describe(library, BIAS_POINTER, &ALIGNMENT)?;
        }
        let layout = |rows: u64, columns: u64| {
            let (call, destroy) = ("cublasLtMatrixLayoutCreate", functions.layout_destroy);
            let stride = i64::try_from(rows).unwrap_or(i64::MAX);
            Object::new(library, call, destroy, |object| {
                // SAFETY: the pointer is to a live handle.
                unsafe { (functions.layout_create)(object, T::DATA_TYPE, rows, columns, stride) }
            })
        };
        let weight = layout(shape.inner, shape.columns)?;
        let x = layout(shape.inner, shape.rows)?;
        let out = layout(shape.columns, shape.rows)?;
        let mut product = Self {
            shape,
            element: T::NAME,
            description,
            weight,
            x,
            out,
            algorithms: Vec::new(),
            allowed_workspace: workspace_bytes,
            algorithm: 0,
            library: handle,
        };
        product.algorithms = product.heuristic(workspace_bytes)?;
        #[cfg(feature = "profile")]
        product.choose_tuned(guard);
        #[cfg(not(feature = "profile"))]
        let _ = guard;
        Ok(product)
    }

    /// The shape.
    pub const fn shape(&self) -> &ProductShape {
        &self.shape
    }

    /// The bytes of workspace of each algorithm, cuBLASLt's first choice first.
    pub fn workspace_bytes(&self) -> impl ExactSizeIterator<Item = u64> {
        self.algorithms.iter().map(|found| saturated(found.workspace_bytes))
    }

    /// The index of the algorithm that a stage of these sizes uses: of the guard's profile if it has one for
    /// exactly this product, else 0.
    pub fn algorithm(&self) -> u64 {
        saturated(self.algorithm)
    }

    /// Chooses the algorithm of this index.
    pub(crate) fn choose(&mut self, algorithm: u64) -> Result<(), Error> {
        let index = usize::try_from(algorithm).ok();
        let Some(index) = index.filter(|index| *index < self.algorithms.len()) else {
            let count = saturated(self.algorithms.len());
            return Err(no_such_algorithm(algorithm, count));
        };
        self.algorithm = index;
        Ok(())
    }

    /// Submits the product to `stream`.
    ///
    /// # Safety
    ///
    /// The stream and all addresses are of the library handle's context. The memory has the elements of the
    /// shape, and the workspace the allowed bytes. Until the stream has done this, nothing writes the
    /// operands, and nothing else uses out and the workspace. out overlaps nothing, except a residual at the
    /// same address.
    pub(crate) unsafe fn submit(
        &mut self,
        stream: &CudaStream,
        operands: &Operands<u64>,
    ) -> Result<(), Error> {
        let Some(algorithm) = self.algorithms.get(self.algorithm) else {
            return Err(no_such_algorithm(saturated(self.algorithm), 0));
        };
        let [x, weight, bias, residual, out, workspace] = *operands;
        let workspace = workspace.filter(|_| algorithm.workspace_bytes > 0);
        check_addresses(&[x, weight, bias, residual, out, workspace])?;
        let library = self.library.library;
        if let Some(bias) = bias {
            self.description.describe(library, BIAS_POINTER, &bias)?;
        }
        self.library.bind().map_err(unusable)?;
        let (alpha, beta) = (1.0_f32, if residual.is_some() { 1.0_f32 } else { 0.0 });
        let Self { description, weight: weight_layout, x: x_layout, out: out_layout, .. } = self;
        // SAFETY: the objects are alive in `self` and the factors on the stack, and the library reads them
        // before it returns. The context is current. The memory is valid by this function's contract, and the
        // library does not read out if there is no residual. The algorithm is for these objects, and needs at
        // most the allowed workspace.
        let status = unsafe {
            (library.functions.matmul)(
                self.library.handle,
                description.handle,
                (&raw const alpha).cast(),
                pointer(weight).cast_const(),
                weight_layout.handle,
                pointer(x).cast_const(),
                x_layout.handle,
                (&raw const beta).cast(),
                pointer(residual.or(out)).cast_const(),
                out_layout.handle,
                pointer(out),
                out_layout.handle,
                &raw const algorithm.algorithm,
                pointer(workspace),
                algorithm.workspace_bytes,
                stream.cu_stream().cast(),
            )
        };
        library.check("cublasLtMatmul", status)
    }

    /// The library's algorithms, by its estimate the fastest first.
    fn heuristic(&self, workspace_bytes: u64) -> Result<Vec<HeuristicResult>, Error> {
        let library = self.library.library;
        let functions = library.functions;
        let (call, destroy) = ("cublasLtMatmulPreferenceCreate", functions.preference_destroy);
        let preference = Object::new(library, call, destroy, |object| {
            // SAFETY: the pointer is to a live handle.
            unsafe { (functions.preference_create)(object) }
        })?;
        let alignment = u32::try_from(ALIGNMENT).unwrap_or(1);
        let alignments =
            MIN_ALIGNMENTS.map(|attribute| (attribute, (&raw const alignment).cast(), 4));
        let workspace = (MAX_WORKSPACE_BYTES, (&raw const workspace_bytes).cast::<c_void>(), 8);
        for (attribute, value, bytes) in alignments.into_iter().chain([workspace]) {
            // SAFETY: the object is alive, and the pointer is to a live integer of this size.
            let status =
                unsafe { (functions.preference_set)(preference.handle, attribute, value, bytes) };
            library.check("cublasLtMatmulPreferenceSetAttribute", status)?;
        }
        let mut found = vec![HeuristicResult::NONE; MAX_ALGORITHMS];
        let (asked, mut count) = (c_int::try_from(found.len()).unwrap_or(1), 0);
        // SAFETY: all objects are alive, and `found` has room for `asked` results.
        let status = unsafe {
            (functions.heuristic)(
                self.library.handle,
                self.description.handle,
                self.weight.handle,
                self.x.handle,
                self.out.handle,
                self.out.handle,
                preference.handle,
                asked,
                found.as_mut_ptr(),
                &raw mut count,
            )
        };
        if status != NOT_SUPPORTED {
            library.check("cublasLtMatmulAlgoGetHeuristic", status)?;
            found.truncate(usize::try_from(count).unwrap_or(0));
            found.retain(|found| found.status == 0);
            if !found.is_empty() {
                return Ok(found);
            }
        }
        let (shape, element) = (self.shape, self.element);
        Err(no_algorithm(&shape, element, workspace_bytes))
    }
}

impl ProductShape {
    /// Checks the sizes against the library's range. The bytes of every matrix then fit u64.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let Self { rows, inner, columns, .. } = *self;
        for (size, given) in [("rows", rows), ("inner", inner), ("columns", columns)] {
            if !(1..=MAX_SIZE).contains(&given) {
                let message = format!("{size} is {given}, cuBLASLt takes 1 to {MAX_SIZE}");
                return Err(Error::product(message));
            }
        }
        Ok(())
    }
}

/// Checks the alignment of all operands.
pub(crate) fn check_addresses(operands: &Operands<u64>) -> Result<(), Error> {
    for (tensor, address) in OPERANDS.into_iter().zip(operands) {
        if let Some(address) = *address
            && !address.is_multiple_of(ALIGNMENT)
        {
            return Err(Error::product(format!(
                "{tensor} is at {address:#x}, which is not a multiple of {ALIGNMENT} bytes"
            )));
        }
    }
    Ok(())
}

pub(crate) fn no_such_algorithm(given: u64, count: u64) -> Error {
    Error::product(format!("algorithm is {given}, the product has {count}, counted from 0"))
}

pub(crate) fn no_algorithm(shape: &ProductShape, element: &str, workspace_bytes: u64) -> Error {
    let ProductShape { rows, inner, columns, .. } = *shape;
    Error::product(format!(
        "cuBLASLt has no algorithm for a {element} product of {rows} x {inner} and {inner} x {columns} \
         with {workspace_bytes} bytes of workspace"
    ))
}

/// A device address for the library; null for none.
fn pointer(address: Option<u64>) -> *mut c_void {
    let address = address.map_or(0, |address| usize::try_from(address).unwrap_or(usize::MAX));
    core::ptr::without_provenance_mut(address)
}

/// The number of algorithms that the library is asked for. Indices in profiles count its results.
const MAX_ALGORITHMS: usize = 32;
/// `CUBLAS_COMPUTE_32F`.
const COMPUTE_F32: c_int = 68;
/// `CUBLAS_OP_T`.
const OP_T: c_int = 1;
/// `CUBLASLT_EPILOGUE_BIAS`.
const EPILOGUE_BIAS: c_int = 4;
/// `CUBLASLT_MATMUL_DESC_TRANSA`.
const TRANSPOSE_A: c_int = 3;
/// `CUBLASLT_MATMUL_DESC_EPILOGUE`.
const EPILOGUE: c_int = 7;
/// `CUBLASLT_MATMUL_DESC_BIAS_POINTER`.
const BIAS_POINTER: c_int = 8;
/// `CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES`.
const MAX_WORKSPACE_BYTES: c_int = 1;
/// `CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES`, and the same for B, C and D.
const MIN_ALIGNMENTS: [c_int; 4] = [5, 6, 7, 8];
/// `CUBLAS_STATUS_NOT_SUPPORTED`.
const NOT_SUPPORTED: Status = 15;
