//! Products of matrices by cuBLASLt as stages of pipelines, row-major as in PyTorch's linear layers.

mod algorithms;
pub(crate) mod cublaslt;
mod library;
mod shape;
mod stage;
#[cfg(feature = "profile")]
mod tuning;

pub use algorithms::Product;
pub use cublaslt::CublasLt;
pub use shape::{ProductElement, ProductShape};
pub use stage::ProductBuffers;
pub(crate) use stage::ProductStage;

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::ProductShape;
    use super::algorithms::{check_addresses, no_algorithm, no_such_algorithm};
    use super::cublaslt::call_failed;
    use super::shape::MAX_SIZE;
    use super::stage::check_extents;
    use crate::buffer::{BufferId, Extent};

    #[test]
    fn what_does_not_fit_a_product_is_refused_with_its_text() {
        let shape =
            ProductShape { rows: 16, inner: 320, columns: 960, bias: true, residual: false };
        let sized = |[rows, inner, columns]: [u64; 3]| {
            ProductShape { rows, inner, columns, ..shape }.check()
        };
        assert_eq!(sized([MAX_SIZE, 2, 3]), Ok(()));
        assert_eq!(shape.check_operands(true, false), Ok(()));
        assert_eq!(check_addresses(&[Some(0x7f00), None, None, None, None, None]), Ok(()));
        let id = Some(BufferId { pipeline: 0, index: 0 });
        let extents = |operands, extent| check_extents::<f32>(&shape, operands, |_| Some(extent));
        let x = [id, None, None, None, None, None];
        let narrow = ProductShape { rows: 1, inner: 6, ..shape };
        let narrow = check_extents::<f32>(&narrow, &x, |_| Some(Extent::PerItem(24)));
        let errors = [
            sized([0, 1, 1]),
            sized([1, 1 << 31, 1]),
            sized([1, 1, 0]),
            shape.check_operands(false, false),
            shape.check_operands(true, true),
            check_addresses(&[Some(0x7f02), None, None, None, None, None]),
            extents(&x, Extent::PerItem(640)).map(drop),
            extents(&[None, None, None, None, None, id], Extent::PerItem(8)).map(drop),
            narrow.map(drop),
            Err(call_failed("cublasLtMatmul", 7, "CUBLAS_STATUS_INVALID_VALUE")),
            Err(no_algorithm(&shape, "f16", 0)),
            Err(no_such_algorithm(4, 4)),
        ];
        let texts = errors.map(|error| error.expect_err("it does not fit").to_string());
        expect![[r#"
            rows is 0, cuBLASLt takes 1 to 2147483647
            inner is 2147483648, cuBLASLt takes 1 to 2147483647
            columns is 0, cuBLASLt takes 1 to 2147483647
            bias was not given, the product was made with it
            residual was given, the product was made without it
            x is at 0x7f02, which is not a multiple of 16 bytes
            x has 640 bytes an item, the product takes 20480 bytes an item
            the workspace has 8 bytes an item, the product takes a fixed size
            x has 24 bytes an item, which is not a multiple of 16
            cublasLtMatmul returned CUBLAS_STATUS_INVALID_VALUE (7)
            cuBLASLt has no algorithm for a f16 product of 16 x 320 and 320 x 960 with 0 bytes of workspace
            algorithm is 4, the product has 4, counted from 0"#]].assert_eq(&texts.join("\n"));
    }
}
