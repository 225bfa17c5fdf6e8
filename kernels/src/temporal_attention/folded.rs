//! Tensors of any number of axes as the items and heads of the kernels.

use super::operation::TemporalAttention;
use super::shape::{Shape, has_keys, has_values};
use crate::error::KernelError;
use crate::extent::Extent;

/// The sizes and strides of a tensor of any number of axes, in elements, slowest axis first.
#[derive(Clone, Copy, Debug)]
pub struct StridedView<'a> {
    /// The sizes.
    pub dims: &'a [u64],
    /// The strides.
    pub strides: &'a [u64],
}

/// Attention over tensors with any number of batch axes, as items and heads. The last two axes are frames and
/// head dimension.
///
/// ```
/// use gridguard_kernels::temporal_attention::{Folded, StridedView};
///
/// // [2, 3, 8, 16, 64], contiguous: the first two axes are one of 6 items.
/// let tensor = StridedView { dims: &[2, 3, 8, 16, 64], strides: &[24_576, 8192, 1024, 64, 1] };
/// let folded = Folded::new([tensor; 4], None, false)?;
/// assert_eq!(folded.shape.dims(), [6, 8, 16, 64]);
/// assert_eq!(folded.extents[0].strides, [8192, 1024, 64, 1]);
/// # Ok::<(), gridguard_kernels::temporal_attention::NotFolded>(())
/// ```
///
/// The four tensors are q, k, v and out. The gradients of attention have seven: q, k, v, grad, dq, dk and dv.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Folded<const N: usize = 4> {
    /// Items, heads, frames, keys and head dimensions.
    pub shape: Shape,
    /// The extents of the tensors.
    pub extents: [Extent<4>; N],
    /// The extent of the bias.
    pub bias: Option<Extent<4>>,
}

/// Why tensors are not one launch of the kernels.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum NotFolded {
    /// The tensors have different numbers of axes, or fewer than two.
    #[error("the tensors differ in their number of axes, or have fewer than two")]
    Axes,
    /// Sizes of the tensors and the bias that do not match.
    #[error(
        "the tensors differ in size along a batch axis, in the number of keys or in their head dimension"
    )]
    Sizes,
    /// The elements of a row are not contiguous, or the batch axes are not two of constant stride.
    #[error("the strides cannot be expressed as items and heads with contiguous rows")]
    Strides,
    /// A dimension that no kernel supports.
    #[error(transparent)]
    Shape(#[from] KernelError),
}

impl<const N: usize> Folded<N> {
    /// Merges the batch axes of the tensors to items and heads. If `grouped`, the last batch axis of k and v may
    /// divide the last batch axis of q, as in grouped-query attention.
    ///
    /// A bias is broadcast to `[batch ..., frames, keys]`, as in NumPy, but its last axis must have `keys` elements.
    ///
    /// Nothing is copied: two axes are merged only if one stride covers both.
    ///
    /// # Errors
    ///
    /// [`NotFolded`], if that is not possible.
    pub fn new(
        tensors: [StridedView<'_>; N],
        bias: Option<StridedView<'_>>,
        grouped: bool,
    ) -> Result<Self, NotFolded> {
        const { assert!(N == 4 || N == 7, "q, k, v and out, or the tensors of the gradients") };
        let [q, k, v, ..] = *tensors.as_slice() else { return Err(NotFolded::Axes) };
        let rank = q.dims.len();
        if rank < 2 || tensors.iter().any(|it| it.dims.len() != rank || it.strides.len() != rank) {
            return Err(NotFolded::Axes);
        }
        let (batch_rank, in_row) = (rank - 2, rank - 1);
        // The sizes of an axis agree if each tensor has the size of q, or of the other tensor whose it is.
        let agree_with = |at: usize, other: StridedView<'_>, has_other: fn(usize) -> bool| {
            let [of_q, of_other] = [q, other].map(|view| size_at(view, at));
            let expected = (0..N).map(|tensor| if has_other(tensor) { of_other } else { of_q });
            tensors.iter().map(|view| size_at(*view, at)).eq(expected)
        };
        let agree = |at: usize| agree_with(at, k, has_keys);
        let (keys, head_dim) = (size_at(k, batch_rank), size_at(q, in_row));
        if !agree(batch_rank) || !agree_with(in_row, v, has_values) {
            return Err(NotFolded::Sizes);
        }
        let bias = bias.map(|bias| broadcast(bias, q.dims, keys)).transpose()?;
        let axis_at = |at: usize| Axis {
            size: size_at(q, at),
            strides: tensors.map(|view| stride(view.strides, at)),
            bias: bias.as_deref().map_or(0, |strides| stride(strides, at)),
        };
        let row = axis_at(in_row);
        let mut rows = tensors.iter().zip(row.strides);
        if rows.any(|(view, stride)| size_at(*view, in_row) > 1 && stride != 1)
            || (keys > 1 && bias.is_some() && row.bias != 1)
        {
            return Err(NotFolded::Strides);
        }

        let mut batch = Vec::with_capacity(batch_rank + 1);
        for at in 0..batch_rank {
            let (axis, heads) = (axis_at(at), size_at(k, at));
            match axis.size.checked_div(heads) {
                _ if !agree(at) => return Err(NotFolded::Sizes),
                _ if heads == axis.size => batch.push(axis),
                Some(group) if grouped && at + 1 == batch_rank && heads * group == axis.size => {
                    batch.extend(axis.grouped(group));
                }
                _ => return Err(NotFolded::Sizes),
            }
        }
        let [items, heads] = two_of(batch)?;
        let frames = axis_at(batch_rank);
        let shape = Shape::new(items.size, heads.size, frames.size, head_dim)?;
        let shape = shape.with_keys(keys)?.with_value_dim(size_at(v, in_row))?;
        let extent = |dims: [u64; 4], stride_of: &dyn Fn(&Axis<N>) -> u64| {
            let [items, heads, frames] = [&items, &heads, &frames].map(stride_of);
            Extent::strided(dims, [items, heads, frames, 1])
        };
        let extents = core::array::from_fn(|tensor| {
            extent(shape.tensor_dims(tensor), &|axis| stride(&axis.strides, tensor))
        });
        let bias = bias.map(|_| extent(shape.score_dims(), &|axis| axis.bias));
        Ok(Self { shape, extents, bias })
    }

    /// `operation` as these tensors need it: with strides unless they are contiguous, with a bias if they have one,
    /// and with a causal mask if `causal`.
    pub fn options(&self, operation: TemporalAttention, causal: bool) -> TemporalAttention {
        TemporalAttention {
            causal,
            biased: self.bias.is_some(),
            strided: !self.is_contiguous(),
            ..operation
        }
    }

    /// Whether all tensors are contiguous, and the bias is one for all items and heads.
    pub fn is_contiguous(&self) -> bool {
        self.extents.iter().all(Extent::is_contiguous)
            && self.bias.is_none_or(|bias| self.shape.is_shared_bias(&bias))
    }
}

/// An axis of q, with the strides of the tensors and the bias.
#[derive(Clone, Copy)]
struct Axis<const N: usize> {
    size: u64,
    strides: [u64; N],
    bias: u64,
}

impl<const N: usize> Axis<N> {
    const ONE: Self = Self { size: 1, strides: [0; N], bias: 0 };

    /// The axis as heads of k and v, and `group` heads of q for each.
    fn grouped(self, group: u64) -> [Self; 2] {
        let (mut heads, mut of_group) = (self, Self { size: group, ..self });
        heads.size = self.size / group.max(1);
        heads.bias = self.bias.saturating_mul(group);
        let strides = heads.strides.iter_mut().zip(&mut of_group.strides);
        for (tensor, (of_heads, of_group)) in strides.enumerate() {
            if has_keys(tensor) {
                *of_group = 0;
            } else {
                *of_heads = of_heads.saturating_mul(group);
            }
        }
        [heads, of_group]
    }

    /// This axis and the next `inner` one as one, if a single stride steps over both in each tensor.
    fn merged(self, inner: Self) -> Option<Self> {
        let size = self.size.checked_mul(inner.size)?;
        if inner.size == 1 {
            return Some(self);
        }
        let strides = self.strides.into_iter().zip(inner.strides);
        let is_one = strides
            .chain([(self.bias, inner.bias)])
            .all(|(outer, stride)| stride.checked_mul(inner.size) == Some(outer));
        (self.size == 1 || is_one).then_some(Self { size, ..inner })
    }
}

/// Merges axes, outer axes first, until there are two.
fn two_of<const N: usize>(mut axes: Vec<Axis<N>>) -> Result<[Axis<N>; 2], NotFolded> {
    loop {
        match *axes.as_slice() {
            [] => return Ok([Axis::ONE; 2]),
            [items] => return Ok([items, Axis::ONE]),
            [items, heads] => return Ok([items, heads]),
            _ => {}
        }
        let pairs = axes.iter().zip(axes.iter().skip(1)).enumerate();
        let mut merged = pairs.filter_map(|(at, (outer, inner))| Some((at, outer.merged(*inner)?)));
        let (at, axis) = merged.next().ok_or(NotFolded::Strides)?;
        axes.splice(at..at + 2, [axis]);
    }
}

fn size_at(view: StridedView<'_>, at: usize) -> u64 {
    view.dims.get(at).copied().unwrap_or_default()
}

fn stride(strides: &[u64], at: usize) -> u64 {
    strides.get(at).copied().unwrap_or_default()
}

/// The strides of a bias that is broadcast to the axes of q, with `keys` as the last axis. Repeated axes get stride 0.
fn broadcast(bias: StridedView<'_>, q: &[u64], keys: u64) -> Result<Vec<u64>, NotFolded> {
    let StridedView { dims, strides } = bias;
    let Some(lacking) = q.len().checked_sub(dims.len()).filter(|_| dims.len() == strides.len())
    else {
        return Err(NotFolded::Axes);
    };
    let mut broadcast = vec![0; q.len()];
    let last = q.len().saturating_sub(1);
    for (at, (size, stride)) in (lacking..).zip(dims.iter().zip(strides)) {
        let expected = if at == last { Some(&keys) } else { q.get(at) };
        match broadcast.get_mut(at) {
            Some(place) if Some(size) == expected => *place = *stride,
            Some(_) if *size == 1 => {}
            _ => return Err(NotFolded::Sizes),
        }
    }
    Ok(broadcast)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The strides of a contiguous tensor.
    fn contiguous(dims: &[u64]) -> Vec<u64> {
        (1..=dims.len()).map(|at| dims[at..].iter().product()).collect()
    }

    fn fold(tensors: [(&[u64], &[u64]); 4], grouped: bool) -> Result<Folded, NotFolded> {
        Folded::new(tensors.map(|(dims, strides)| StridedView { dims, strides }), None, grouped)
    }

    fn fold_contiguous(q: &[u64], kv: &[u64], grouped: bool) -> Result<Folded, NotFolded> {
        let (of_q, of_kv) = (contiguous(q), contiguous(kv));
        fold([(q, &of_q), (kv, &of_kv), (kv, &of_kv), (q, &of_q)], grouped)
    }

    #[test]
    fn up_to_two_batch_axes_keep_their_sizes() {
        let dims = |dims: &[u64]| fold_contiguous(dims, dims, false).expect("folds").shape.dims();
        assert_eq!(dims(&[16, 64]), [1, 1, 16, 64]);
        assert_eq!(dims(&[9, 16, 64]), [9, 1, 16, 64]);
        assert_eq!(dims(&[9, 5, 16, 64]), [9, 5, 16, 64]);
        assert_eq!(dims(&[0, 5, 16, 64]), [0, 5, 16, 64]);
        assert_eq!(dims(&[2, 3, 4, 5, 16, 64]), [24, 5, 16, 64]);
    }

    #[test]
    fn views_of_one_tensor_and_swapped_axes_keep_their_strides() {
        // q, k and v of [9, 16, 3, 5, 64] as [9, 5, 16, 64].
        let (dims, packed) = ([9, 5, 16, 64], [15_360, 64, 960, 1]);
        let out = contiguous(&dims);
        let folded =
            fold([(&dims, &packed), (&dims, &packed), (&dims, &packed), (&dims, &out)], false);
        let folded = folded.expect("folds");
        assert_eq!(folded.extents[2].strides, packed);
        assert_eq!(folded.extents[3].strides, [5120, 1024, 64, 1]);
        assert!(!folded.is_contiguous());
        // Axes of one element merge for any strides.
        let (dims, strange) = ([9, 1, 1, 5, 16, 64], [5120, 7, 99, 1024, 64, 1]);
        let folded = fold([(&dims, &strange); 4], false).expect("folds");
        assert_eq!(folded.shape.dims(), [9, 5, 16, 64]);
        assert!(folded.is_contiguous());
        // [3, 4, 5, ...] of which the first two were swapped.
        let (dims, swapped) = ([3, 4, 5, 16, 64], [5120, 15_360, 1024, 64, 1]);
        assert_eq!(fold([(&dims, &swapped); 4], false), Err(NotFolded::Strides));
    }

    #[test]
    fn grouped_heads_repeat_the_heads_of_k_and_v() {
        let folded = fold_contiguous(&[9, 6, 16, 64], &[9, 2, 16, 64], true).expect("folds");
        assert_eq!(folded.shape.dims(), [18, 3, 16, 64]);
        let strides = folded.extents.map(|extent| extent.strides);
        let q = [3072, 1024, 64, 1];
        assert_eq!(strides, [q, [1024, 0, 64, 1], [1024, 0, 64, 1], q]);
        let refused =
            |q: &[u64], kv: &[u64], grouped| fold_contiguous(q, kv, grouped).expect_err("no");
        assert_eq!(refused(&[9, 6, 16, 64], &[9, 2, 16, 64], false), NotFolded::Sizes);
        assert_eq!(refused(&[9, 6, 16, 64], &[9, 4, 16, 64], true), NotFolded::Sizes);
        assert_eq!(refused(&[9, 6, 16, 64], &[9, 0, 16, 64], true), NotFolded::Sizes);
        assert_eq!(refused(&[9, 6, 16, 64], &[3, 6, 16, 64], true), NotFolded::Sizes);
    }

    #[test]
    fn keys_may_be_more_or_fewer_than_queries() {
        let folded = fold_contiguous(&[9, 5, 16, 64], &[9, 5, 77, 64], false).expect("folds");
        assert_eq!(folded.shape.dims(), [9, 5, 16, 64]);
        assert_eq!(folded.shape.key_dims(), [9, 5, 77, 64]);
        assert_eq!(folded.extents[2].strides, [24_640, 4928, 64, 1]);
        assert!(folded.is_contiguous());
        let none = fold_contiguous(&[9, 5, 16, 64], &[9, 5, 0, 64], false).expect_err("no keys");
        assert!(matches!(none, NotFolded::Shape(_)), "{none}");
    }

    #[test]
    fn values_may_be_wider_or_narrower_than_keys() {
        let (q, k, v, out) = ([9, 5, 16, 64], [9, 5, 77, 64], [9, 5, 77, 8], [9, 5, 16, 8]);
        let fold_all = |out: &[u64]| {
            let dims = [&q[..], &k, &v, out];
            let strides = dims.map(contiguous);
            fold(core::array::from_fn(|at| (dims[at], &strides[at][..])), false)
        };
        let folded = fold_all(&out).expect("folds");
        assert_eq!((folded.shape.dims(), folded.shape.out_dims()), (q, out));
        assert_eq!(folded.extents[2].strides, [3080, 616, 8, 1]);
        assert!(folded.is_contiguous());
        assert_eq!(fold_all(&q), Err(NotFolded::Sizes));
    }

    #[test]
    fn a_bias_is_broadcast_to_items_and_heads() {
        let biased = |q: &[u64], kv: &[u64], bias: &[u64], grouped| {
            let (of_q, of_kv, of_bias) = (contiguous(q), contiguous(kv), contiguous(bias));
            let views = [(q, &of_q), (kv, &of_kv), (kv, &of_kv), (q, &of_q)];
            let views = views.map(|(dims, strides)| StridedView { dims, strides });
            Folded::new(views, Some(StridedView { dims: bias, strides: &of_bias }), grouped)
        };
        let (q, kv) = ([9, 5, 16, 64], [9, 5, 8, 64]);
        let strides = |bias: &[u64]| {
            let folded = biased(&q, &kv, bias, false).expect("folds");
            let bias = folded.bias.expect("given");
            assert_eq!(bias.dims, [9, 5, 16, 8]);
            (bias.strides, folded.is_contiguous())
        };
        assert_eq!(strides(&[16, 8]), ([0, 0, 8, 1], true));
        assert_eq!(strides(&[1, 1, 16, 8]), ([0, 0, 8, 1], true));
        assert_eq!(strides(&[8]), ([0, 0, 0, 1], false));
        assert_eq!(strides(&[1, 8]), ([0, 0, 0, 1], false));
        assert_eq!(strides(&[5, 16, 8]), ([0, 128, 8, 1], false));
        assert_eq!(strides(&[9, 1, 1, 8]), ([8, 0, 0, 1], false));
        assert_eq!(strides(&[9, 5, 16, 8]), ([640, 128, 8, 1], false));
        // Two batch axes of which the bias repeats the inner one: [2, 3, 5] as 2 items of 15 heads.
        let (q, kv) = ([2, 3, 5, 16, 64], [2, 3, 5, 8, 64]);
        let folded = biased(&q, &kv, &[2, 1, 1, 16, 8], false).expect("folds");
        assert_eq!(folded.shape.dims(), [2, 15, 16, 64]);
        assert_eq!(folded.bias.map(|bias| bias.strides), Some([128, 0, 8, 1]));
        // 6 heads of q, three for each of the two heads of k and v: 18 items of 3 heads.
        let folded = biased(&[9, 6, 16, 64], &[9, 2, 8, 64], &[9, 6, 16, 8], true).expect("folds");
        assert_eq!(folded.shape.dims(), [18, 3, 16, 64]);
        assert_eq!(folded.bias.map(|bias| bias.strides), Some([384, 128, 8, 1]));

        let (q, kv) = ([9, 5, 16, 64], [9, 5, 8, 64]);
        let refused = |bias: &[u64]| biased(&q, &kv, bias, false).expect_err("refused");
        assert_eq!(refused(&[16, 16]), NotFolded::Sizes);
        assert_eq!(refused(&[3, 1, 16, 8]), NotFolded::Sizes);
        assert_eq!(refused(&[1, 9, 5, 16, 8]), NotFolded::Axes);
        // One number for all keys of a query.
        assert_eq!(refused(&[16, 1]), NotFolded::Strides);
    }

    #[test]
    fn unsupported_tensors_are_errors() {
        let refused = |q: &[u64], kv: &[u64]| fold_contiguous(q, kv, false).expect_err("refused");
        assert_eq!(refused(&[9, 5, 16, 64], &[9, 5, 16, 32]), NotFolded::Sizes);
        assert_eq!(refused(&[9, 5, 16, 64], &[5, 16, 64]), NotFolded::Axes);
        assert_eq!(refused(&[64], &[64]), NotFolded::Axes);
        assert!(matches!(refused(&[9, 5, 16, 513], &[9, 5, 16, 513]), NotFolded::Shape(_)));
        assert!(matches!(refused(&[9, 0, 16, 64], &[9, 0, 16, 64]), NotFolded::Shape(_)));
        let (dims, columns) = ([9, 5, 16, 64], [5120, 1024, 1, 16]);
        assert_eq!(fold([(&dims, &columns); 4], false), Err(NotFolded::Strides));
        // Sizes and strides that 64 bits cannot hold the products of.
        let (dims, wide) = ([u64::MAX, u64::MAX, 2, 2, 2], [u64::MAX; 5]);
        assert_eq!(fold([(&dims, &wide); 4], false), Err(NotFolded::Strides));
    }
}
