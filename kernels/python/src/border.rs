//! Which implementation serves a call. Entries of profiles say up to how many rows our kernels do, or which one serves a
//! single problem.

use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::HashMap;
use std::sync::OnceLock;
use std::time::SystemTime;

use gridguard::DeviceLimits;
use gridguard::profile::{
    DeviceIdentity, Document, Entry, Environment, Key, L2, Layer, Layers, Policy, Profile,
    ProfileError, Provenance, StoredChoice, Summary, publish,
};
use gridguard_kernels::temporal_attention::{
    AttentionBackward, MAX_FRAMES, MAX_HEAD_DIM, MAX_LONG_FRAMES, Shape, TemporalAttention,
    Variant, WIDE_HEAD_DIM,
};
use gridguard_kernels::{ElementType, KernelError};
use parking_lot::{Mutex, RwLock};
use pyo3::prelude::*;

/// Why the kernels do not serve a call. Nothing was launched.
pub(crate) type Reason = &'static str;

/// A head dimension, and the most queries or keys of problems up to it, for each of `CLASSES`.
pub(crate) type Border = (u64, [u64; CLASSES.len()]);

/// Kinds of calls. One implementation serves both passes of training.
const CLASSES: [&str; 6] = [
    "forward",
    "forward causal",
    "forward masked",
    "training",
    "training causal",
    "training masked",
];
/// The first class of training.
const TRAINING: usize = 3;

/// The sizes of a problem, as in its entry.
const SIZES: [&str; 7] = ["items", "heads", "key_heads", "queries", "keys", HEAD_DIM, "value_dim"];
const HEAD_DIM: &str = "head_dim";

/// The kernel of entries with borders, and of those of one problem.
const BORDER: &str = "attention_border";
const CHOICE: &str = "attention_choice";
/// The variant of borders for GPUs that have none.
const ELSEWHERE: &str = "elsewhere";
/// The parameter that is 1 if our kernels serve a problem, and 0 if PyTorch does.
const OURS: &str = "ours";

/// The versions of both implementations. Choices of other versions are not used.
pub(crate) static VERSIONS: OnceLock<String> = OnceLock::new();

/// Which implementation serves attention on a GPU.
pub(crate) struct Borders {
    table: Table,
    /// Where the borders come from, and why entries are not used.
    notes: Mutex<Vec<String>>,
    /// Whether PyTorch serves a problem, whatever the borders.
    choices: RwLock<HashMap<Problem, bool>>,
    has_choices: AtomicBool,
    /// Whether a thread measures.
    measures: AtomicBool,
    /// The entries that this process measured.
    measured: Mutex<Document>,
}

/// By type: whether the borders were measured on this GPU, and the borders, with rising head dimensions. Those of another
/// GPU decide nothing.
type Table = HashMap<ElementType, (bool, Vec<Border>)>;

/// A call with four axes, as far as its time depends on it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Problem {
    pub(crate) element: ElementType,
    class: usize,
    /// As `SIZES`.
    sizes: [u64; SIZES.len()],
}

/// Why the user's entries are not used.
#[derive(Debug, thiserror::Error)]
enum BorderError {
    #[error("two entries differ for {element} and head dimension {head_dim}: remove one")]
    Contradiction { element: ElementType, head_dim: u64 },
    #[error(
        "an entry names our kernels for {class}, {rows} rows of {element} and head dimension {head_dim}, which they \
         cannot serve on this GPU: remove it"
    )]
    CannotServe { class: &'static str, element: ElementType, rows: u64, head_dim: u64 },
    #[error("an entry has an unknown type, class or size, or lacks one: remove it")]
    Malformed,
}

impl Problem {
    pub(crate) fn new(
        element: ElementType,
        sizes: [u64; SIZES.len()],
        (causal, masked, differentiated): (bool, bool, bool),
    ) -> Self {
        let kind = if causal { 1 } else { usize::from(masked) * 2 };
        Self { element, class: kind + if differentiated { TRAINING } else { 0 }, sizes }
    }

    const fn rows(&self) -> (u64, u64) {
        let [_, _, _, queries, keys, width, values] = self.sizes;
        (if queries > keys { queries } else { keys }, if width > values { width } else { values })
    }

    fn key(&self) -> Key {
        Key {
            kernel: CHOICE.to_owned(),
            source: VERSIONS.get().cloned().unwrap_or_default(),
            variant: CLASSES.get(self.class).copied().unwrap_or_default().to_owned(),
            dtypes: self.element.name().to_owned(),
            policy: Policy { l2: L2::Hot, ..Policy::default() },
            ..Key::default()
        }
    }
}

impl Borders {
    /// The borders and choices of the user's profile; without such borders the shipped ones of this GPU, or else those
    /// that the measured GPU with the nearest compute capability has for others.
    pub(crate) fn new(
        profile: Option<&Profile>,
        limits: &DeviceLimits,
        environment: Environment,
    ) -> Self {
        let (identity, mut notes) = (DeviceIdentity::new(limits), Vec::new());
        let parsed = gridguard_data::BORDERS_RON.iter().map(|text| Document::parse(text));
        let documents = parsed.filter_map(Result::ok).map(|parsed| parsed.document);
        let nearest = documents.min_by_key(|document| {
            let (own, other) = (document.device().compute_capability, limits.compute_capability);
            let distance = (own.major.abs_diff(other.major), own.minor.abs_diff(other.minor));
            (document.device().serves(&[], &identity).is_err(), distance)
        });
        let mut table = Table::new();
        if let Some(document) = nearest {
            let are_own = document.device().serves(&[], &identity).is_ok();
            let (on, name) = (&document.device().name, &limits.name);
            match read(document.entries(), are_own, limits) {
                Ok((shipped, _)) => table = shipped,
                Err(error) => notes.push(format!("the borders of {on} are not used: {error}")),
            }
            notes.push(if are_own {
                format!("measured on {on}")
            } else {
                format!("not measured on {name}: stricter borders than those of {on}")
            });
        }
        let of_user = profile.into_iter().flat_map(Profile::entries);
        let of_user = of_user.filter(|(layer, _)| *layer == Layer::User).map(|(_, entry)| entry);
        let (own, choices) = read(of_user, true, limits).unwrap_or_else(|error| {
            notes.push(format!("the user's profile is not used here: {error}"));
            (Table::new(), HashMap::new())
        });
        table.extend(own);
        Self {
            table,
            notes: Mutex::new(notes),
            has_choices: AtomicBool::new(!choices.is_empty()),
            choices: RwLock::new(choices),
            measures: AtomicBool::new(false),
            measured: Mutex::new(Document::new(identity, environment)),
        }
    }

    /// The borders of a type.
    pub(crate) fn of(&self, element: ElementType) -> &[Border] {
        self.table.get(&element).map(|(_, borders)| borders.as_slice()).unwrap_or_default()
    }

    pub(crate) fn notes(&self) -> Vec<String> {
        self.notes.lock().clone()
    }

    /// Whether PyTorch serves a problem, and whether that was measured on this GPU, or only PyTorch can.
    pub(crate) fn route(&self, problem: &Problem) -> (bool, bool) {
        if self.has_choices.load(Ordering::Relaxed)
            && let Some(slower) = self.choices.read().get(problem)
        {
            return (*slower, true);
        }
        let ((rows, head_dim), element) = (problem.rows(), problem.element);
        let border = self.of(element).iter().find(|(widest, _)| head_dim <= *widest);
        let most = border.and_then(|(_, rows)| rows.get(problem.class)).copied();
        let has_rows = head_dim.saturating_mul(element.bytes()).is_multiple_of(16);
        let are_own = self.table.get(&element).is_some_and(|(are_own, _)| *are_own);
        let is_measured = are_own && has_rows && border.is_some();
        let is_served = rows <= MAX_LONG_FRAMES && head_dim <= MAX_HEAD_DIM;
        (rows > most.unwrap_or_default() || !has_rows, is_measured || !is_served)
    }

    /// Times both implementations for a problem that no entry decides: `measure` returns the sorted nanoseconds of ours,
    /// none if they do not serve it, and PyTorch's. Returns whether PyTorch serves it; `None` if nothing was measured,
    /// also because another thread measures. An answer that has times is written to the user's profile.
    pub(crate) fn measure(
        &self,
        py: Python<'_>,
        problem: Problem,
        measure: impl FnOnce() -> PyResult<Option<[Vec<u64>; 2]>>,
    ) -> PyResult<Option<bool>> {
        if self.measures.swap(true, Ordering::AcqRel) {
            return Ok(None);
        }
        // What is timed as ours takes this way.
        self.choices.write().insert(problem, false);
        self.has_choices.store(true, Ordering::Release);
        let times = measure();
        let slower = match &times {
            Ok(Some([ours, theirs])) if !ours.is_empty() => {
                let [ours, theirs] = [summary(ours), summary(theirs)];
                let slower = ours.median_ns > theirs.median_ns;
                if let Err(error) = py.detach(|| self.write(&problem, slower, ours, theirs)) {
                    let note = format!("choices last as long as the process: {error}");
                    let mut notes = self.notes.lock();
                    if !notes.contains(&note) {
                        notes.push(note);
                    }
                }
                Some(slower)
            }
            Ok(Some(_)) => Some(true),
            _ => None,
        };
        match slower {
            Some(slower) => self.choices.write().insert(problem, slower),
            None => self.choices.write().remove(&problem),
        };
        self.measures.store(false, Ordering::Release);
        times.map(|_| slower)
    }

    fn write(
        &self,
        problem: &Problem,
        slower: bool,
        ours: Summary,
        theirs: Summary,
    ) -> Result<(), ProfileError> {
        let date = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        let named = |(name, size): (&str, u64)| (name.to_owned(), size);
        let entry = Entry {
            key: problem.key(),
            shape: SIZES.into_iter().zip(problem.sizes).map(named).collect(),
            choice: StoredChoice::Automatic,
            parameters: vec![(OURS.to_owned(), u64::from(!slower))],
            launches: 1,
            chosen: if slower { theirs } else { ours },
            default: theirs,
            found: Provenance {
                date,
                candidates: 2,
                samples: ours.samples * 2,
                ..Provenance::default()
            },
        };
        let mut measured = self.measured.lock();
        measured.insert(entry)?;
        match Layers::new().user().path(Layer::User, measured.device()) {
            Some(path) => publish(&path, &measured).map(drop),
            None => Ok(()),
        }
    }

    /// The digest of a profile's choices, with those that this process measured since it was read.
    pub(crate) fn digest(&self, profile: &Profile) -> String {
        let mut all = self.measured.lock().clone();
        if all.entries().is_empty() {
            return profile.choices_digest();
        }
        let of_profile: Vec<_> = profile.entries().map(|(_, entry)| entry.clone()).collect();
        // Higher layers come first, and what was measured is the latest.
        for entry in of_profile {
            if all.get(&entry.key, &entry.shape).is_none() {
                let _ = all.insert(entry);
            }
        }
        all.choices_digest()
    }
}

/// The borders for the GPU that was measured or for others, and the choices of these versions, in the entries of one layer.
fn read<'e>(
    entries: impl IntoIterator<Item = &'e Entry>,
    are_own: bool,
    limits: &DeviceLimits,
) -> Result<(Table, HashMap<Problem, bool>), BorderError> {
    let (mut table, mut choices) = (Table::new(), HashMap::new());
    let variant = if are_own { "" } else { ELSEWHERE };
    for Entry { key, shape, parameters, .. } in entries {
        let element = ElementType::ALL.into_iter().find(|element| element.name() == key.dtypes);
        let of = |name: &str, from: &[(String, u64)]| {
            let found = from.iter().find(|(own, _)| own == name).map(|(_, value)| *value);
            found.ok_or(BorderError::Malformed)
        };
        if key.kernel == BORDER && key.variant == variant {
            let (element, head_dim) =
                (element.ok_or(BorderError::Malformed)?, of(HEAD_DIM, shape)?);
            let mut border = (head_dim, [0; CLASSES.len()]);
            for (class, rows) in border.1.iter_mut().enumerate() {
                *rows = of(CLASSES.get(class).copied().unwrap_or_default(), shape)?;
                check(element, class, (*rows, head_dim), limits)?;
            }
            let (_, borders) = table.entry(element).or_insert_with(|| (are_own, Vec::new()));
            match borders.iter().find(|(widest, _)| *widest == head_dim) {
                Some(other) if *other != border => {
                    return Err(BorderError::Contradiction { element, head_dim });
                }
                _ => borders.push(border),
            }
        } else if key.kernel == CHOICE && Some(&key.source) == VERSIONS.get() {
            let class = CLASSES.iter().position(|class| *class == key.variant);
            let (Some(element), Some(class)) = (element, class) else {
                return Err(BorderError::Malformed);
            };
            let mut problem = Problem { element, class, sizes: [0; SIZES.len()] };
            for (size, name) in problem.sizes.iter_mut().zip(SIZES) {
                *size = of(name, shape)?;
            }
            let ours = of(OURS, parameters)? == 1;
            if ours {
                check(element, class, problem.rows(), limits)?;
            }
            choices.insert(problem, !ours);
        }
    }
    table.values_mut().for_each(|(_, borders)| borders.sort_unstable());
    Ok((table, choices))
}

/// Checks that our kernels serve such problems on a device.
fn check(
    element: ElementType,
    class: usize,
    (rows, head_dim): (u64, u64),
    limits: &DeviceLimits,
) -> Result<(), BorderError> {
    let shape = Shape::new(1, 1, rows, head_dim).ok();
    let attention = shape.and_then(|shape| attention_of(shape, element, limits).ok()?.ok());
    let is_served = attention.is_some_and(|attention| {
        class < TRAINING || AttentionBackward::new(attention, limits).is_ok()
    });
    if rows == 0 || is_served {
        return Ok(());
    }
    let class = CLASSES.get(class).copied().unwrap_or_default();
    Err(BorderError::CannotServe { class, element, rows, head_dim })
}

/// Attention of a shape by its fastest kernel, or why PyTorch's are faster.
pub(crate) fn attention_of(
    shape: Shape,
    element: ElementType,
    limits: &DeviceLimits,
) -> Result<Result<TemporalAttention, Reason>, KernelError> {
    let attention = match TemporalAttention::new(shape, element, limits) {
        Err(KernelError::Variant { .. }) => return Ok(Err("shape")),
        attention => attention?,
    };
    if attention.variant() == Variant::General {
        if shape.frames().max(shape.keys()) > MAX_FRAMES {
            return Ok(Err("length"));
        }
        if shape.head_dim() > WIDE_HEAD_DIM {
            return Ok(Err("shape"));
        }
    }
    Ok(Ok(attention))
}

/// The summary of sorted samples. The second from each end bounds the median with 98 % confidence for nine samples.
fn summary(sorted: &[u64]) -> Summary {
    let samples = sorted.len();
    let at = |place: usize| sorted.get(place).copied().unwrap_or_default();
    Summary {
        median_ns: at(samples / 2),
        low_ns: at(1),
        high_ns: at(samples.saturating_sub(2)),
        samples: samples.try_into().unwrap_or(u64::MAX),
    }
}
