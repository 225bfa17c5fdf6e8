//! The operands of a product, as buffers or as addresses.

/// The operands of a product: buffers or addresses.
#[derive(Clone, Copy)]
pub(in crate::cuda) struct Operands<A> {
    pub(super) x: A,
    pub(super) weight: A,
    pub(super) bias: Option<A>,
    pub(super) residual: Option<A>,
    pub(super) out: A,
    pub(super) workspace: A,
}

impl<A: Copy> Operands<A> {
    pub(in crate::cuda) fn try_map<B, E>(
        &self,
        map: impl Fn(A) -> Result<B, E>,
    ) -> Result<Operands<B>, E> {
        Ok(Operands {
            x: map(self.x)?,
            weight: map(self.weight)?,
            bias: self.bias.map(&map).transpose()?,
            residual: self.residual.map(&map).transpose()?,
            out: map(self.out)?,
            workspace: map(self.workspace)?,
        })
    }
}
