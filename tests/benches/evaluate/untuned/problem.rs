//! The problems: their sizes, launch parameters and launches.

use std::fmt;

use gridguard::profile::Named;
use gridguard::{Axis, BatchAxis, Dim3, LaunchLimits, LaunchRequest};
use gridguard_autotune::LaunchConfig;

/// A problem of floats, with one item for each block of y.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UntunedProblem {
    /// Passes over each row, in place. All passes run over a chunk before the next chunk begins.
    Passes { rows: u64, columns: u64, passes: u32 },
    /// Transposes a matrix for each item.
    Transpose { items: u64, height: u64, width: u64 },
    /// Adds the four neighbours to each element of a matrix for each item.
    Blur { items: u64, height: u64, width: u64 },
    /// Adds the largest element of each row to its elements: two launches over a chunk.
    Peaks { rows: u64, columns: u64 },
}

use UntunedProblem::{Blur, Passes, Peaks, Transpose};

impl UntunedProblem {
    const KERNELS: [&'static str; 4] = ["passes", "transpose", "blur", "peaks"];

    /// Problems of 128 MiB, more than the cache of an H200.
    pub(crate) fn of_device() -> Vec<Self> {
        let passes = [
            (262_144, 128, 1),
            (32_768, 1024, 1),
            (8192, 4096, 2),
            (32_768, 1024, 4),
            (87_040, 384, 6),
            (65_536, 512, 8),
            (8192, 4096, 8),
            (4096, 8192, 16),
        ];
        let matrices = [
            (32_768, 32, 32),
            (8192, 64, 64),
            (2048, 128, 128),
            (16_384, 16, 128),
            (16_384, 128, 16),
            (4096, 8, 1024),
        ];
        let blurs = [(2048, 128, 128), (8192, 32, 128)];
        let peaks = [(65_536, 512), (16_384, 2048)];
        let passes = passes.map(|(rows, columns, passes)| Passes { rows, columns, passes });
        let matrices = matrices.map(|(items, height, width)| Transpose { items, height, width });
        let blurs = blurs.map(|(items, height, width)| Blur { items, height, width });
        let peaks = peaks.map(|(rows, columns)| Peaks { rows, columns });
        passes.into_iter().chain(matrices).chain(blurs).chain(peaks).collect()
    }

    pub(crate) const fn kernel(self) -> &'static str {
        match self {
            Passes { .. } => Self::KERNELS[0],
            Transpose { .. } => Self::KERNELS[1],
            Blur { .. } => Self::KERNELS[2],
            Peaks { .. } => Self::KERNELS[3],
        }
    }

    pub(crate) const fn items(self) -> u64 {
        match self {
            Passes { rows: items, .. }
            | Peaks { rows: items, .. }
            | Transpose { items, .. }
            | Blur { items, .. } => items,
        }
    }

    pub(crate) const fn elements_per_item(self) -> u64 {
        match self {
            Passes { columns, .. } | Peaks { columns, .. } => columns,
            Transpose { height, width, .. } | Blur { height, width, .. } => height * width,
        }
    }

    pub(crate) fn elements(self) -> usize {
        index(self.items() * self.elements_per_item())
    }

    /// The launch parameters, those that one writes without measuring first.
    pub(crate) fn parameters(self) -> Vec<Named> {
        let named = |names: [&str; 2], values: [u64; 2]| {
            names.into_iter().map(str::to_owned).zip(values).collect()
        };
        match self {
            Passes { .. } | Peaks { .. } => {
                let sets = [256, 32, 64, 128, 512, 1024].into_iter();
                let sets = sets.flat_map(|threads| [1, 2, 4].map(|floats| [threads, floats]));
                sets.map(|set| named(["threads", "floats"], set)).collect()
            }
            Transpose { .. } | Blur { .. } => {
                let sets = [16, 1, 2, 4, 8, 32, 64, 128].into_iter();
                let sets = sets.flat_map(|x| [16, 1, 4, 32].map(|y| [x, y]));
                let sets = sets.filter(|[x, y]| (32..=1024).contains(&(x * y)));
                sets.map(|set| named(["threads_x", "threads_y"], set)).collect()
            }
        }
    }

    /// The launch over `items` items.
    pub(crate) fn request(self, items: u64, parameters: &Named) -> LaunchRequest {
        let value = |place: usize| parameters.get(place).map_or(1, |(_, value)| *value);
        let block = match self {
            Passes { .. } | Peaks { .. } => Dim3::new(value(0), 1, 1),
            Transpose { .. } | Blur { .. } => Dim3::new(value(0), value(1), 1),
        };
        LaunchRequest::new(Dim3::new(1, items, 1), block)
    }

    pub(crate) fn configuration(self, parameters: Named, limits: LaunchLimits) -> LaunchConfig {
        let request = self.request(self.items(), &parameters);
        let batch = Some(BatchAxis::new(Axis::Y, self.items()));
        LaunchConfig { parameters, request, batch, limits }
    }

    /// What passes make of zeros.
    pub(crate) fn expected(self) -> f32 {
        match self {
            Passes { passes, .. } => (0..passes).fold(0.0, |x, _| x * 0.5 + 1.0),
            _ => 0.0,
        }
    }

    /// The input, without zeros, because the output is cleared to zeros.
    pub(crate) fn input(self) -> Vec<f32> {
        match self {
            Passes { .. } => Vec::new(),
            // Whole numbers that floats hold exactly.
            _ => {
                let numbers = (1..=1_u16 << 14).cycle().zip((0..251_u16).cycle());
                numbers
                    .map(|(a, b)| f32::from(a) + f32::from(b) / 256.0)
                    .take(self.elements())
                    .collect()
            }
        }
    }
}

impl fmt::Display for UntunedProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kernel = self.kernel();
        match self {
            Passes { rows, columns, passes } => write!(f, "{kernel} f32 {rows}x{columns}x{passes}"),
            Transpose { items, height, width } | Blur { items, height, width } => {
                write!(f, "{kernel} f32 {items}x{height}x{width}")
            }
            Peaks { rows, columns } => write!(f, "{kernel} f32 {rows}x{columns}"),
        }
    }
}

/// A size as a length or index. The problems above are far smaller than the largest one.
pub(crate) fn index(size: u64) -> usize {
    usize::try_from(size).unwrap_or(usize::MAX)
}
