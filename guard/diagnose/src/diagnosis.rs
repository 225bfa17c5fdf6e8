//! Diagnoses: the meaning of a failure, its causes ranked by evidence, and commands to run next.

use core::fmt;

use super::codes::causes::{WSL_MEMORY, WSL_REMEDY};
use super::codes::commands::{BLOCKING, CHECK, DRIVER_LOG, HOST, INDEX, LIMITS, RUN, SANITIZER};
use super::evidence::{
    CudaVersion, Evidence, LaunchConfig, LaunchSizes, Verdict, ViolatedRule, says,
};
use super::failure::{Cause, Hint, Origin};
use super::failure_id::FailureId;
use super::remarks::Access;
use super::shape::{AXIS_BLOCKS, Shape, parts};
use super::stated::AxisVerdict;

/// The meaning of a failure and its probable causes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Diagnosis {
    /// The failure.
    pub failure: FailureId,
    /// Its meaning.
    pub meaning: &'static str,
    /// Whether the context is lost: every later CUDA call in the process returns an error.
    pub sticky: bool,
    /// Whether an unrelated later call usually reports it, instead of the call that caused it.
    pub late: bool,
    /// Whether nothing tells which argument or size of a launch was refused. The first command finds out.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "core::ops::Not::not"))]
    pub is_undecided: bool,
    /// The failed kernel, if it is named.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub kernel: Option<String>,
    /// Excluded explanations, each with the reason.
    pub not: Vec<String>,
    /// The driver's log about the failed call.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Vec::is_empty"))]
    pub driver_log: Vec<String>,
    /// Possible causes, the most likely first.
    pub causes: Vec<Cause>,
    /// Commands that give more information, the most useful first.
    pub commands: Vec<String>,
    /// Lines of Python to add to the program after the first command.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Vec::is_empty"))]
    pub lines: Vec<String>,
}

/// Explains `failure`. Causes that `evidence` supports come first, and causes that it excludes are listed in
/// [`Diagnosis::not`].
///
/// ```
/// use gridguard_diagnose::{Evidence, FailureId, diagnose};
///
/// let evidence = Evidence { visible_devices: Some(0), ..Evidence::default() };
/// let diagnosis = diagnose(&FailureId::from_code(100), &evidence);
/// assert_eq!(diagnosis.causes[0].why_likely.as_deref(), Some("the driver reports 0 devices"));
/// ```
#[must_use]
pub fn diagnose(failure: &FailureId, evidence: &Evidence) -> Diagnosis {
    let entry = failure.entry();
    let mut not: Vec<String> = entry.mistaken_for.into_iter().map(String::from).collect();
    let is_rejected_launch = entry.known_causes().any(|known| known.hint == Some(Hint::LaunchSize));
    let stated = Stated::new(failure, evidence, is_rejected_launch);
    not.extend(stated.fits);
    let mut rules = violated_rules(failure, evidence);
    rules.extend(stated.pair);
    let has_rules = !rules.is_empty();
    let is_legal = evidence.violated_rules.as_ref().is_some_and(Vec::is_empty);
    let work = &evidence.launch_sizes.work;
    let access = evidence.remarks.access.as_ref().filter(|_| failure.is_cuda());
    let [mut likely, mut open, mut unlikely] = [const { Vec::new() }; 3];
    let empty = evidence.remarks.empty_input();
    let is_empty = work.shape.is_some_and(|shape| shape.is_empty()) || empty.is_some();
    let shape = work.shape.as_ref().filter(|it| it.is_empty() || empty.is_none());
    let shape = shape.map(Shape::cause).or(empty);
    let shape =
        shape.filter(|_| is_rejected_launch && failure.is_cuda() && !has_rules && !is_legal);
    let decided = [&stated.case, &shape].map(|it| it.as_ref().and_then(|it| it.id.clone()));
    let is_out_of_memory = entry.known_causes().any(|known| known.hint == Some(Hint::HostMemory));
    let is_host_memory = decided.contains(&Some(Hint::HostMemory.id()));
    for known in entry.known_causes() {
        if known.hint.is_some_and(|hint| {
            decided.contains(&Some(hint.id())) || is_host_memory && OF_DEVICE_MEMORY.contains(&hint)
        }) {
            // The cause is stated more precisely, or is about other memory.
            continue;
        }
        let is_of_access = [Hint::OutOfBounds, Hint::Misaligned, Hint::EarlierKernel];
        if access.is_some() && known.hint.is_some_and(|hint| is_of_access.contains(&hint)) {
            // The report names kernel and access.
            continue;
        }
        if has_rules
            && matches!(known.hint, Some(Hint::LaunchSize | Hint::LaunchRule | Hint::IndexWrap))
        {
            // The violated rules are more precise.
            continue;
        }
        match known.hint.and_then(|hint| evidence.weigh(hint)) {
            Some(Verdict::Likely(why)) => likely.push(Cause::known(known, Some(why))),
            Some(Verdict::Unlikely) => unlikely.push(Cause::known(known, None)),
            Some(Verdict::Excluded(why)) => not.push(why),
            None => open.push(Cause::known(known, None)),
        }
    }
    likely.splice(0..0, access.map(Access::cause));
    let launch = evidence.launch.or(stated.launch);
    let is_undecided = is_rejected_launch
        && !has_rules
        && !is_legal
        && likely.is_empty()
        && stated.case.is_none()
        && evidence.driver_log.is_empty();
    // A traceback that ends in a copy may contain a known kernel, too.
    let is_host_call = is_rejected_launch && evidence.host_call().is_some();
    let place = if is_host_call { likely.len() } else { 0 };
    likely.splice(place..place, stated.case);
    // An empty tensor explains the failure, and a large one only may.
    let place = if is_empty && !is_host_call { 0 } else { likely.len() };
    likely.splice(place..place, shape);
    if failure.is_cuda()
        && evidence.requested_bytes.is_none()
        && evidence.clue(Hint::Allocation).is_none()
    {
        // Without size and call, it is often a program's first use of the device.
        open.sort_by_key(|it| it.id != Some(Hint::OtherProcess.id()));
    }
    if is_out_of_memory {
        add_wsl(evidence, &mut likely, &mut open);
    }
    let mut causes = [rules, likely, open, unlikely].concat();
    for cause in &mut causes {
        let is_size = is_undecided && cause.id == Some(Hint::LaunchSize.id());
        if let Some(print) = evidence.remarks.sizes_to_print().filter(|_| is_size) {
            cause.remedy = format!("{print}; reduce this size alone, or skip the empty launch");
        }
    }
    for cause in causes.iter_mut().filter(|it| it.id == Some(Hint::CapturedCall.id())) {
        for (hint, remedy) in IN_PROGRAMS {
            cause.remedy += if evidence.clue(hint).is_some() { remedy } else { "" };
        }
    }
    let evidence = Evidence { launch, ..evidence.clone() };
    let mut commands: Vec<String> = Vec::new();
    for command in entry.commands.iter().filter(|it| !(has_rules && **it == DRIVER_LOG)) {
        let command = filled(command, &evidence);
        if !commands.contains(&command) {
            commands.push(command);
        }
    }
    if access.is_some() || entry.origin == Origin::Sanitizer {
        // The command has run already, and names the kernel.
        commands.retain(|it| !it.contains("compute-sanitizer") && !it.contains("BLOCKING"));
    }
    if is_host_memory {
        commands = HOST.map(String::from).into();
    }
    // The kernels of this project serve the call, if the attention of PyTorch is at fault.
    let is_attention = causes.first().and_then(|it| it.id.as_deref()).is_some_and(|id| {
        [Hint::AttentionBatch, Hint::TemporalAttention].iter().any(|hint| hint.id() == id)
    });
    if is_attention && evidence.clues.iter().any(|it| it.row.is_installable) {
        commands.retain(|it| it != INSTALL);
        commands.insert(0, INSTALL.to_owned());
    }
    let lines = if commands.first().is_some_and(|it| it == INSTALL) { INSTALLED } else { &[] };
    Diagnosis {
        failure: *failure,
        meaning: entry.meaning,
        sticky: entry.sticky,
        late: entry.late && access.is_none(),
        is_undecided,
        kernel: evidence.kernel,
        not,
        driver_log: evidence.driver_log,
        causes,
        commands,
        lines: lines.iter().map(|line| (*line).to_owned()).collect(),
    }
}

/// Adds the limit of WSL on pinned memory, among the first two causes, unless the log names the memory of the device.
fn add_wsl(evidence: &Evidence, likely: &mut Vec<Cause>, open: &mut Vec<Cause>) {
    let Some(word) = &evidence.remarks.wsl else { return };
    let is_host = |it: &Cause| it.id == Some(Hint::HostMemory.id());
    if let Some(cause) = likely.iter_mut().find(|it| is_host(it)) {
        cause.remedy += "; in WSL, ";
        cause.remedy += WSL_REMEDY;
    } else if evidence.clue(Hint::Allocation).is_none()
        && likely.iter().all(|it| it.id != Some(Hint::TooLittleFree.id()))
    {
        open.retain(|it| !is_host(it));
        let place = likely.len().min(1);
        likely.insert(place, Cause::known(&WSL_MEMORY, Some(says(word))));
    }
}

/// Causes that are about the memory of the device.
const OF_DEVICE_MEMORY: [Hint; 4] =
    [Hint::TooLittleFree, Hint::OtherProcess, Hint::Fragments, Hint::LocalMemory];

/// How programs keep calls out of a capture.
const IN_PROGRAMS: [(Hint, &str); 2] = [
    (Hint::PyTorch, "; in PyTorch, keep .item(), .cpu(), printing and allocations out of it"),
    (Hint::Ggml, "; or run without graphs: GGML_CUDA_DISABLE_GRAPHS=1"),
];

/// Makes the kernels of this project serve PyTorch's attention.
const INSTALL: &str = "pip install gridguard";
const INSTALLED: &[&str] = &["import gridguard.torch", "gridguard.torch.install()"];

/// The conclusions from the sizes and functions in a log, mostly about a rejected launch.
#[derive(Default)]
struct Stated {
    /// The known case that the functions suggest.
    case: Option<Cause>,
    /// Sizes that worked and failed, between which an axis ends.
    pair: Option<Cause>,
    /// Cases whose sizes are within the limit.
    fits: Vec<String>,
    /// The launch that the sizes imply.
    launch: Option<LaunchConfig>,
}

impl Stated {
    fn new(failure: &FailureId, evidence: &Evidence, is_rejected_launch: bool) -> Self {
        let mut stated = Self::default();
        if !failure.is_cuda() {
            return stated;
        }
        let LaunchSizes { block, work, .. } = &evidence.launch_sizes;
        let threads = block.map(|[x, y, z]| x.saturating_mul(y).saturating_mul(z));
        let launch = |blocks: u64, threads: u64| LaunchConfig {
            grid: [1, blocks, 1],
            block: [threads, 1, 1],
            ..LaunchConfig::default()
        };
        if let Some((threads, below, above)) = work.pair(threads).filter(|_| is_rejected_launch) {
            let (works, fails) = (work.works.unwrap_or(0), work.fails.unwrap_or(0));
            let (parts, blocks) = parts(above);
            stated.pair = Some(Cause {
                id: Some("grid-dim-y".into()),
                what: format!(
                    "grid.y or grid.z ends between the two sizes: {works} elements in blocks of {threads} are \
                     {below} blocks, {fails} are {above}, and the limit is {AXIS_BLOCKS}"
                ),
                why_likely: Some(format!("the log says that {works} works and {fails} fails")),
                remedy: format!(
                    "split it into {parts} launches of at most {blocks} blocks, or put it on grid.x"
                ),
            });
            stated.launch = Some(launch(above, threads));
            return stated;
        }
        for (case, clue) in evidence.cases(failure.number(), is_rejected_launch) {
            let mut cause = Cause::known(&case, Some(says(&clue.text)));
            match work.judge(clue.row.axis) {
                Some(AxisVerdict::Fits(sizes)) => {
                    let id = cause.id.unwrap_or_default();
                    stated.fits.push(format!(
                        "{id}: {sizes}, and an axis of the grid holds {AXIS_BLOCKS}"
                    ));
                    continue;
                }
                Some(AxisVerdict::TooLarge(blocks, sizes)) => {
                    let (parts, each) = parts(blocks);
                    cause.why_likely =
                        Some(format!("the log says {sizes}, the limit is {AXIS_BLOCKS}"));
                    cause.remedy += &format!("; here {parts} calls of at most {each}");
                    stated.launch = Some(launch(blocks, threads.unwrap_or(1)));
                }
                None => {}
            }
            if case.hint == Some(Hint::CapturedCall)
                && let Some(name) = clue.name()
            {
                cause.what = format!("{name} cannot be captured, and is called during the capture");
                cause.remedy = format!("call {name} before or after the capture");
                if name.contains("Async") {
                    cause.what = format!(
                        "{name} is called during the capture with pageable memory, or outside of \
                         the capturing stream"
                    );
                    cause.remedy += ", or pass it pinned memory and the capturing stream";
                }
            }
            if case.hint == Some(Hint::SharedMemory)
                && let (Some(bytes), Some(device)) =
                    (evidence.max_shared_bytes, evidence.capability)
            {
                let why = cause.why_likely.get_or_insert_default();
                *why +=
                    &format!("; a block has at most {bytes} bytes on compute capability {device}");
            }
            stated.case = Some(cause);
            break;
        }
        stated
    }
}

/// `command` with the known values filled in.
fn filled(command: &str, evidence: &Evidence) -> String {
    let Evidence { device_name, program, .. } = evidence;
    // A launch that violates no rule need not be checked again.
    let is_legal = evidence.violated_rules.as_ref().is_some_and(Vec::is_empty);
    let launch = evidence.launch.filter(|_| !is_legal).map(|launch| launch.options());
    let program = program.as_ref().map_or("PROGRAM".to_owned(), |it| format!("python {it}"));
    match (command, launch, device_name) {
        (CHECK, Some(launch), Some(name)) => format!("gridguard check --gpu '{name}' {launch}"),
        (CHECK, Some(launch), None) => format!("gridguard check --gpu any {launch}"),
        (CHECK | RUN, ..) if evidence.program.is_some() => format!("gridguard run -- {program}"),
        (CHECK, None, _) => RUN.to_owned(),
        (DRIVER_LOG, ..) if evidence.driver_cuda.is_some_and(|it| it < CudaVersion(12_090)) => {
            BLOCKING.replace("PROGRAM", &program)
        }
        (LIMITS, _, Some(name)) => format!("gridguard limits --gpu '{name}'"),
        (BLOCKING | SANITIZER | DRIVER_LOG | INDEX, ..) => command.replace("PROGRAM", &program),
        _ => command.to_owned(),
    }
}

impl Cause {
    fn violated(rule: &ViolatedRule) -> Self {
        let ViolatedRule { id, what, remedy, codes: _ } = rule;
        let why = format!("the launch violates rule {id}");
        let (id, what, remedy) = (Some(id.clone()), what.clone(), remedy.clone());
        Self { id, what, why_likely: Some(why), remedy }
    }
}

/// The violated rules that CUDA reports as this failure, or that are among its known causes.
fn violated_rules(failure: &FailureId, evidence: &Evidence) -> Vec<Cause> {
    let number = failure.number().filter(|_| failure.is_cuda());
    let causes_it = |rule: &&ViolatedRule| {
        let mut hints = failure.entry().known_causes().filter_map(|known| known.hint);
        number.is_some_and(|number| rule.codes.contains(&number))
            || hints.any(|hint| hint.id() == rule.id)
    };
    let rules = evidence.violated_rules.iter().flatten();
    rules.filter(causes_it).map(Cause::violated).collect()
}

impl fmt::Display for Diagnosis {
    /// Several lines: name, meaning, time of the report, excluded explanations, causes, commands. The last line
    /// is the most useful command.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { failure, meaning, sticky, late, not, driver_log, causes, commands, .. } = self;
        write!(f, "{failure}")?;
        if let Some(name) = failure.entry().runtime_name {
            write!(f, ", {name} in the runtime")?;
        }
        if let Some(message) = failure.entry().messages().first() {
            write!(f, ": \"{message}\"")?;
        }
        write!(f, "\n  {meaning}")?;
        if *late {
            f.write_str("\n  reported late, often by a call that is not at fault")?;
        }
        if *sticky {
            f.write_str(
                "\n  the context is lost: every CUDA call fails until the process restarts",
            )?;
        }
        if let Some(kernel) = &self.kernel {
            write!(f, "\n  kernel: {kernel}")?;
        }
        if let Some(command) = commands.first().filter(|_| self.is_undecided) {
            write!(
                f,
                "\n  this message alone does not name the refused size or argument; to find out, run: {command}"
            )?;
        }
        for other in not {
            write!(f, "\n  not {other}")?;
        }
        for line in driver_log {
            write!(f, "\n  driver log: {line}")?;
        }
        f.write_str("\npossible causes")?;
        for (place, Cause { id: _, what, why_likely, remedy }) in (1..).zip(causes) {
            write!(f, "\n  {place}. {what}")?;
            if let Some(why) = why_likely {
                write!(f, "\n     evidence: {why}")?;
            }
            write!(f, "\n     fix: {remedy}")?;
        }
        let Some((next, others)) = commands.split_first() else {
            return Ok(());
        };
        if !others.is_empty() {
            f.write_str("\nalso useful")?;
        }
        for command in others {
            write!(f, "\n  {command}")?;
        }
        write!(f, "\nnext step\n  {next}")?;
        if !self.lines.is_empty() {
            f.write_str("\nand in the program, before the model runs")?;
        }
        self.lines.iter().try_for_each(|line| write!(f, "\n  {line}"))
    }
}
