//! What a log says about an access, the machine or the launch, other than sizes, and what follows from it.

use super::capability::Capability;
use super::failure::{Cause, Hint};

/// What a log says besides sizes and names of functions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Remarks {
    /// The access that compute-sanitizer reports.
    pub(super) access: Option<Access>,
    /// The part of a line that shows that the log comes from WSL.
    pub(super) wsl: Option<String>,
    /// The line that names a GPU, and its compute capability.
    pub(super) gpu: Option<(String, Capability)>,
    /// What a block needs and has.
    pub(super) need: Option<Need>,
    /// The text that says that an input is empty.
    pub(super) empty: Option<String>,
    /// Grid and block of a launch in source code, without known values.
    pub(super) launch: Option<[String; 2]>,
    /// File and line of a source of device code.
    pub(super) place: Option<String>,
    /// The innermost function of a stack that is not part of a framework.
    pub(super) function: Option<String>,
}

impl Remarks {
    /// What is true of the whole log.
    pub(super) fn of_machine(&self) -> Self {
        let Self { wsl, gpu, .. } = self.clone();
        Self { wsl, gpu, ..Self::default() }
    }

    /// Adds the remarks in `other`, without replacing any.
    pub(super) fn add(&mut self, other: &Self) {
        let Self { access: _, wsl, gpu, need, empty, launch, place, function } = other.clone();
        self.wsl = self.wsl.take().or(wsl);
        self.gpu = self.gpu.take().or(gpu);
        self.need = self.need.or(need);
        self.empty = self.empty.take().or(empty);
        self.launch = self.launch.take().or(launch);
        self.place = self.place.take().or(place);
        self.function = self.function.take().or(function);
    }

    /// What to print, and where, to find the refused size.
    pub(super) fn sizes_to_print(&self) -> Option<String> {
        let what = match &self.launch {
            Some([grid, block]) => format!("{grid} and {block}"),
            None => "grid and block".into(),
        };
        let place = match (&self.place, &self.function) {
            (Some(place), _) => format!(" before {place}"),
            (None, Some(function)) => format!(" of the launch in {function}"),
            (None, None) if self.launch.is_some() => " before the launch".into(),
            (None, None) => return None,
        };
        Some(format!("print {what}{place}: one of them is 0 or exceeds a limit"))
    }

    /// The cause of an empty grid, if an input is empty.
    pub(super) fn empty_input(&self) -> Option<Cause> {
        let why = format!("the log says `{}`", self.empty.as_ref()?);
        Some(Cause::stated(
            Hint::EmptyBatch,
            "the grid is empty, because an input is empty",
            why,
            "check that the input is found and read, and skip the launch if it is empty",
        ))
    }
}

/// An invalid access to memory, as compute-sanitizer reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Access {
    /// `read`, `write` or `atomic`.
    pub(super) kind: String,
    /// `global`, `shared` or `local`.
    pub(super) space: String,
    pub(super) bytes: u64,
    pub(super) kernel: Option<String>,
    /// As in `thread (1,0,0) in block (5,0,0)`.
    pub(super) thread: Option<String>,
    pub(super) address: Option<String>,
    pub(super) is_misaligned: bool,
    /// Bytes to the nearest allocation, `after` or `before`, and the size of the allocation.
    pub(super) nearest: Option<(u64, &'static str, u64)>,
}

impl Access {
    fn hint(&self) -> Hint {
        if self.is_misaligned { Hint::Misaligned } else { Hint::OutOfBounds }
    }

    pub(super) fn cause(&self) -> Cause {
        let Self { kind, space, bytes, kernel, thread, address, is_misaligned, nearest } = self;
        let kernel = kernel.as_deref().unwrap_or("the kernel");
        let verb = match kind.as_str() {
            "write" => "writes",
            "atomic" => "updates",
            _ => "reads",
        };
        let thread = thread.as_ref().map_or_else(String::new, |it| format!(", {it},"));
        let address = address.as_ref().map_or_else(String::new, |it| format!(" at {it}"));
        let how = if *is_misaligned { "at a misaligned address" } else { "out of bounds" };
        let mut what = format!("{kernel}{thread} {verb} {bytes} bytes of {space} memory {how}");
        let remedy = if *is_misaligned {
            format!(
                "make the address a multiple of {bytes}: pass an aligned pointer and stride, or use \
                 narrower accesses"
            )
        } else if let Some((distance, side, size)) = nearest {
            what += &format!(
                ": {distance} {} {side} the nearest allocation, of {size} bytes",
                if *distance == 1 { "byte" } else { "bytes" }
            );
            format!(
                "check the index against the number of elements in {kernel}, as the grid may have more \
                 threads than the buffer has elements; or correct the size of the buffer, {size} bytes"
            )
        } else if space == "global" {
            "check the index against the number of elements, and that the pointer is memory of the \
             GPU that is not yet freed"
                .into()
        } else {
            format!("check the index against the size of the array in {space} memory")
        };
        let why = format!("compute-sanitizer reports the access{address}");
        Cause::stated(self.hint(), what, why, remedy)
    }
}

/// The need of a block of a kernel, and the limit of the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Need {
    pub(super) needed: u64,
    pub(super) limit: u64,
    pub(super) unit: &'static str,
}

/// The unit of shared memory.
pub(super) const SHARED_BYTES: &str = "bytes of shared memory";

impl Need {
    pub(super) fn text(self) -> String {
        /// The most shared memory of a block, with opt-in.
        const GPUS: [(u64, &str); 5] = [
            (65_536, "7.5"),
            (98_304, "7.0"),
            (101_376, "8.6, 8.9 and 12.0"),
            (166_912, "8.0 and 8.7"),
            (232_448, "9.0 and 10.0"),
        ];
        let Self { needed, limit, unit } = self;
        let of = GPUS.iter().find(|(bytes, _)| *bytes == limit && unit == SHARED_BYTES);
        let of =
            of.map_or_else(String::new, |(_, it)| format!(", the most of compute capability {it}"));
        format!("a block needs {needed} {unit}, and a block of this GPU has {limit}{of}")
    }
}
