//! Element types of tensors.

use core::fmt;

use half::{bf16, f16};

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ElementType {
    /// IEEE half precision.
    F16,
    /// The upper half of an `f32`.
    Bf16,
    /// IEEE single precision.
    F32,
}

impl ElementType {
    /// All element types.
    pub const ALL: [Self; 3] = [Self::F16, Self::Bf16, Self::F32];

    /// The name, as in the kernels' names: `f16`, `bf16` or `f32`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::F32 => "f32",
        }
    }

    /// The value of the macro `ELEMENT`, as the prelude of the device code numbers it.
    #[must_use]
    pub(crate) const fn number(self) -> u64 {
        match self {
            Self::F16 => 0,
            Self::Bf16 => 1,
            Self::F32 => 2,
        }
    }

    /// The largest relative Frobenius error of f32 arithmetic whose own errors, of 2^-24 each, average
    /// out, and whose results are rounded once to this type, by half a unit in the last place at most.
    pub(crate) const fn rounding_error(self) -> f64 {
        match self {
            Self::F16 => 5e-4,
            Self::Bf16 => 4e-3,
            Self::F32 => 1e-6,
        }
    }

    /// Bytes of an element.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        match self {
            Self::F16 | Self::Bf16 => 2,
            Self::F32 => 4,
        }
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A type that tensors hold on host and device.
pub trait Element: Copy + Send + Sync + 'static {
    /// Which one.
    const TYPE: ElementType;

    /// The value, exactly.
    fn widen(self) -> f32;

    /// The nearest value, ties to even.
    fn narrow(value: f32) -> Self;
}

impl Element for f16 {
    const TYPE: ElementType = ElementType::F16;

    fn widen(self) -> f32 {
        self.to_f32()
    }

    fn narrow(value: f32) -> Self {
        Self::from_f32(value)
    }
}

impl Element for bf16 {
    const TYPE: ElementType = ElementType::Bf16;

    fn widen(self) -> f32 {
        self.to_f32()
    }

    fn narrow(value: f32) -> Self {
        Self::from_f32(value)
    }
}

impl Element for f32 {
    const TYPE: ElementType = ElementType::F32;

    fn widen(self) -> f32 {
        self
    }

    fn narrow(value: f32) -> Self {
        value
    }
}
