//! A product of one shape, with the library's algorithms for it.

use core::ffi::{c_int, c_void};
use core::fmt;
use std::rc::Rc;

use cudarc::driver::CudaStream;

use super::error::{ALIGNMENT, ProductError};
use super::library::{LibraryHandle, Object, bind, check, describe};
use super::shape::{ProductNumber, ProductShape, R_32F};
use crate::cuda::arguments::memory::{Memory, MemoryMut, wide};
use crate::cuda::arguments::uses::{Uses, check_order};
use crate::cuda::driver::library::handle;
use crate::cuda::driver::symbols::{HeuristicResult, Status};
use crate::cuda::error::CudaError;
use crate::cuda::launch::capture::{is_captured, may_capture};
use crate::guard::Guard;

/// One of the library's algorithms for a product.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Algorithm {
    /// Bytes of workspace that it needs.
    pub workspace_bytes: u64,
    /// How many times its blocks fill the device, by the library's estimate.
    pub waves: f32,
}

/// A product of one shape on one device, with the algorithms that the library has for it.
///
/// Results are the same for every launch of an algorithm. Launches are not in the guard's history.
pub struct Product {
    shape: ProductShape,
    description: Object,
    weight: Object,
    x: Object,
    out: Object,
    algorithms: Vec<HeuristicResult>,
    /// The most bytes of workspace that they may take.
    #[cfg_attr(not(feature = "profile"), allow(dead_code, reason = "entries of profiles have it"))]
    allowed_workspace: u64,
    /// The index of the algorithm that is launched.
    algorithm: usize,
    /// Dropped last. The products of a pipeline's stage, which stay together, share it.
    library: Rc<LibraryHandle>,
}

/// The device memory of a product.
pub struct ProductMemory<'m, T> {
    /// `[rows, inner]`.
    pub x: &'m dyn Memory<T>,
    /// `[columns, inner]`.
    pub weight: &'m dyn Memory<T>,
    /// `[columns]`.
    pub bias: Option<&'m dyn Memory<T>>,
    /// `[rows, columns]`.
    pub residual: Option<&'m dyn Memory<T>>,
    /// `[rows, columns]`.
    pub out: &'m mut dyn MemoryMut<T>,
    /// As many bytes as the algorithm needs, or more.
    pub workspace: &'m mut dyn MemoryMut<u8>,
}

/// The device addresses of a product's matrices, as in [`ProductMemory`]. The residual may be out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProductAddresses {
    /// The address of x.
    pub x: u64,
    /// The address of the weight.
    pub weight: u64,
    /// The address of the bias.
    pub bias: Option<u64>,
    /// The address of the residual.
    pub residual: Option<u64>,
    /// The address of out.
    pub out: u64,
    /// The address of the workspace.
    pub workspace: u64,
    /// Its size.
    pub workspace_bytes: u64,
}

impl Guard {
    /// A product on the guard's device, by algorithms that take up to `workspace_bytes`. It launches the one
    /// that the guard's profile has for exactly these sizes, workspace and library, or else the one that the
    /// library expects to be fastest.
    ///
    /// # Errors
    ///
    /// [`ProductError`] if the library cannot be used, or has no algorithm for the shape.
    pub fn product(
        &self,
        shape: ProductShape,
        workspace_bytes: u64,
    ) -> Result<Product, ProductError> {
        Product::new(self, Rc::new(LibraryHandle::of(self)?), shape, workspace_bytes)
    }
}

impl Product {
    /// The handle is of the guard's device.
    pub(super) fn new(
        guard: &Guard,
        handle: Rc<LibraryHandle>,
        shape: ProductShape,
        workspace_bytes: u64,
    ) -> Result<Self, ProductError> {
        let (library, element) = (handle.library, shape.element.number());
        let functions = library.functions;
        let description = Object::new(functions.description_destroy, |object| {
            // SAFETY: the pointer is to a live handle.
            let status = unsafe { (functions.description_create)(object, COMPUTE_F32, R_32F) };
            check(library, "cublasLtMatmulDescCreate", status)
        })?;
        // The library's matrices are column-major, so that a row-major one is its own transpose: out is
        // the product of weight, transposed, and x.
        describe(library, &description, TRANSPOSE_A, &OP_T)?;
        if shape.bias {
            describe(library, &description, EPILOGUE, &EPILOGUE_BIAS)?;
            // Never read: its alignment decides which algorithms are possible.
            describe(library, &description, BIAS_POINTER, &ALIGNMENT)?;
        }
        let layout = |rows: u64, columns: u64| {
            Object::new(functions.layout_destroy, |object| {
                let stride = i64::try_from(rows).unwrap_or(i64::MAX);
                // SAFETY: the pointer is to a live handle.
                let status =
                    unsafe { (functions.layout_create)(object, element, rows, columns, stride) };
                check(library, "cublasLtMatrixLayoutCreate", status)
            })
        };
        let weight = layout(shape.inner, shape.columns)?;
        let x = layout(shape.inner, shape.rows)?;
        let out = layout(shape.columns, shape.rows)?;
        let mut product = Self {
            shape,
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
    #[must_use]
    pub const fn shape(&self) -> &ProductShape {
        &self.shape
    }

    /// The algorithms, the one that the library expects to be fastest first.
    pub fn algorithms(&self) -> impl ExactSizeIterator<Item = Algorithm> {
        self.algorithms.iter().map(|found| Algorithm {
            workspace_bytes: wide(found.workspace_bytes),
            waves: found.waves,
        })
    }

    /// The index of the algorithm that is launched.
    #[must_use]
    pub fn algorithm(&self) -> u64 {
        wide(self.algorithm)
    }

    /// Launches the algorithm of this index from now on, a launch parameter for a tuner.
    ///
    /// # Errors
    ///
    /// [`ProductError::Algorithm`] if there is none.
    pub fn choose(&mut self, algorithm: u64) -> Result<(), ProductError> {
        let index = usize::try_from(algorithm).ok();
        let Some(index) = index.filter(|index| *index < self.algorithms.len()) else {
            let count = wide(self.algorithms.len());
            return Err(ProductError::Algorithm { given: algorithm, count });
        };
        self.algorithm = index;
        Ok(())
    }

    #[cfg(feature = "profile")]
    pub(super) const fn allowed_workspace(&self) -> u64 {
        self.allowed_workspace
    }

    #[cfg(feature = "profile")]
    pub(super) fn library_version(&self) -> (u32, u32, u32) {
        self.library.library.version()
    }

    /// Bytes of workspace that a launch needs.
    #[must_use]
    pub fn workspace_bytes(&self) -> u64 {
        self.algorithms.get(self.algorithm).map_or(0, |found| wide(found.workspace_bytes))
    }

    /// Submits the product to `stream`, and returns without waiting for it.
    ///
    /// # Errors
    ///
    /// [`ProductError`] if memory has another length than the shape, other elements, is misaligned, or of
    /// another context, before anything is launched; or if the library rejects the launch.
    pub fn launch<T: ProductNumber>(
        &mut self,
        stream: &CudaStream,
        memory: ProductMemory<'_, T>,
    ) -> Result<(), ProductError> {
        let ProductMemory { x, weight, bias, residual, out, workspace } = memory;
        let ProductShape { rows, inner, columns, element, .. } = self.shape;
        self.shape.check_element::<T>()?;
        let lengths = [
            ("x", Some(wide(x.num_bytes())), rows * inner),
            ("weight", Some(wide(weight.num_bytes())), columns * inner),
            ("bias", bias.map(|bias| wide(bias.num_bytes())), columns),
            ("residual", residual.map(|residual| wide(residual.num_bytes())), rows * columns),
            ("out", Some(wide(out.num_bytes())), rows * columns),
        ];
        for (tensor, given, elements) in lengths {
            let expected = elements * element.bytes();
            if let Some(given) = given
                && given != expected
            {
                return Err(ProductError::Length { tensor, given, expected });
            }
        }
        if stream.context() != &self.library.context {
            return Err(ProductError::OtherContext { what: "the stream" });
        }
        let mut uses = Uses::new(stream);
        let workspace_bytes = wide(workspace.num_bytes());
        let addresses = ProductAddresses {
            x: uses.read(x),
            weight: uses.read(weight),
            bias: bias.map(|bias| uses.read(bias)),
            residual: residual.map(|residual| uses.read(residual)),
            out: uses.write(out),
            workspace: uses.write(workspace),
            workspace_bytes,
        };
        if uses.has_foreign_memory() {
            return Err(ProductError::OtherContext { what: "memory" });
        }
        check_order(&uses).map_err(CudaError::from)?;
        bind(self.library.driver, stream.context())?;
        let refuses = !may_capture();
        // SAFETY: the stream is borrowed, and its context current.
        let captured = unsafe { is_captured(self.library.driver, handle(stream)) };
        if captured || refuses && uses.were_added_in_capture() {
            return Err(ProductError::Captured);
        }
        let _in_use = uses.begin();
        // SAFETY: the memory is of the product's context and sizes, borrowed, and ordered by `uses`.
        unsafe { self.submit(stream, &addresses) }?;
        if uses.end() { Err(ProductError::Captured) } else { Ok(()) }
    }

    /// As [`Self::launch`], with memory by address: such as the views of a pipeline's stage.
    ///
    /// # Errors
    ///
    /// As [`Self::launch`], but for elements, lengths and contexts, which are the caller's to check.
    ///
    /// # Safety
    ///
    /// The stream and all addresses are of the product's context; the memory has the elements of the shape, and
    /// until the stream has done this, nothing writes what is read, and nothing else uses what is written:
    /// out, which overlaps nothing but a residual at the same address, and the workspace.
    pub unsafe fn submit(
        &mut self,
        stream: &CudaStream,
        addresses: &ProductAddresses,
    ) -> Result<(), ProductError> {
        self.check_addresses(addresses)?;
        let Some(algorithm) = self.algorithms.get(self.algorithm) else {
            return Err(ProductError::Algorithm { given: wide(self.algorithm), count: 0 });
        };
        let ProductAddresses { x, weight, bias, residual, out, .. } = *addresses;
        let library = self.library.library;
        if let Some(bias) = bias {
            describe(library, &self.description, BIAS_POINTER, &bias)?;
        }
        bind(self.library.driver, stream.context())?;
        let (alpha, beta) = (1.0_f32, if residual.is_some() { 1.0_f32 } else { 0.0 });
        let Self { description, weight: weight_layout, x: x_layout, out: out_layout, .. } = self;
        // SAFETY: the objects are alive in `self` and the factors on the stack; the library reads them
        // before it returns. The context is current, and the memory as this function's caller promises;
        // without a residual the library does not read it. The algorithm is one for these objects, and
        // the workspace as large as it needs.
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
                pointer(residual.unwrap_or(out)).cast_const(),
                out_layout.handle,
                pointer(out),
                out_layout.handle,
                &raw const algorithm.algorithm,
                pointer(addresses.workspace),
                algorithm.workspace_bytes,
                handle(stream),
            )
        };
        check(library, "cublasLtMatmul", status)
    }

    fn check_addresses(&self, addresses: &ProductAddresses) -> Result<(), ProductError> {
        let ProductAddresses { x, weight, bias, residual, out, workspace, workspace_bytes } =
            *addresses;
        self.shape.check_operands(bias.is_some(), residual.is_some())?;
        let needed = self.workspace_bytes();
        if workspace_bytes < needed {
            let algorithm = wide(self.algorithm);
            return Err(ProductError::Workspace { given: workspace_bytes, algorithm, needed });
        }
        let all = [
            ("x", Some(x)),
            ("weight", Some(weight)),
            ("bias", bias),
            ("residual", residual),
            ("out", Some(out)),
            ("the workspace", (needed > 0).then_some(workspace)),
        ];
        match all.into_iter().find(|(_, at)| at.is_some_and(|at| !at.is_multiple_of(ALIGNMENT))) {
            Some((tensor, Some(address))) => Err(ProductError::Misaligned { tensor, address }),
            _ => Ok(()),
        }
    }

    /// The algorithms that the library has, fastest first by its estimate.
    fn heuristic(&self, workspace_bytes: u64) -> Result<Vec<HeuristicResult>, ProductError> {
        let library = self.library.library;
        let functions = library.functions;
        let preference = Object::new(functions.preference_destroy, |object| {
            // SAFETY: the pointer is to a live handle.
            let status = unsafe { (functions.preference_create)(object) };
            check(library, "cublasLtMatmulPreferenceCreate", status)
        })?;
        let alignment = u32::try_from(ALIGNMENT).unwrap_or(1);
        let alignments =
            MIN_ALIGNMENTS.map(|attribute| (attribute, (&raw const alignment).cast(), 4));
        let workspace = (MAX_WORKSPACE_BYTES, (&raw const workspace_bytes).cast::<c_void>(), 8);
        for (attribute, value, bytes) in alignments.into_iter().chain([workspace]) {
            // SAFETY: the object is alive, and the pointer to a live integer of so many bytes.
            let status =
                unsafe { (functions.preference_set)(preference.handle, attribute, value, bytes) };
            check(library, "cublasLtMatmulPreferenceSetAttribute", status)?;
        }
        let mut found = vec![HeuristicResult::NONE; MAX_ALGORITHMS];
        let (asked, mut count) = (c_int::try_from(found.len()).unwrap_or(1), 0);
        // SAFETY: all objects are alive, and `found` has room for as many results as are asked for. The
        // library's own context is current.
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
            check(library, "cublasLtMatmulAlgoGetHeuristic", status)?;
            found.truncate(usize::try_from(count).unwrap_or(0));
            found.retain(|found| found.status == 0);
            if !found.is_empty() {
                return Ok(found);
            }
        }
        Err(ProductError::NoAlgorithm { shape: self.shape, workspace_bytes })
    }
}

impl fmt::Debug for Product {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Product");
        debug.field("shape", &self.shape).field("algorithm", &self.algorithm);
        debug.finish_non_exhaustive()
    }
}

// SAFETY: the library's objects and its handle belong to no thread, and are used through `&mut` or not
// changed. A product that is not alone with its handle is in a `ProductStage`, which is not `Send`.
unsafe impl Send for Product {}

/// A device address for the library.
fn pointer(address: u64) -> *mut c_void {
    core::ptr::without_provenance_mut(usize::try_from(address).unwrap_or(usize::MAX))
}

/// The most algorithms that are asked for. Entries of profiles count among those that the library then returns.
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
/// `CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES`, and those of B, C and D.
const MIN_ALIGNMENTS: [c_int; 4] = [5, 6, 7, 8];
/// `CUBLAS_STATUS_NOT_SUPPORTED`.
const NOT_SUPPORTED: Status = 15;
