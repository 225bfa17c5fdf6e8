//! Makes an oversized launch in parts, with forms of the kernel.

use core::ffi::c_uint;
use core::sync::atomic::Ordering;
use std::ffi::CString;

use gridguard::abi::{DEPENDENT, LaunchAttribute, LaunchConfig};
use gridguard::ptx::{EntryReport, Fold, shifted_words};
use gridguard::{Choice, FormLimits, LaunchLimits, Plan, Rule, Strategy, Violation, Violations};

use crate::driver::Driver;
use crate::driver::abi::{FindKernel, Handle, SUCCESS, Status};
use crate::driver::functions::{self, FUNCTIONS, OF_EACH_PART, OF_ONE_LAUNCH};
use crate::driver::request::{Launch, attributes};
use crate::fix::arguments::{Arguments, RawArguments, WordSlot};
use crate::fix::sidecar::{self, SidecarImage};
use crate::process;
use crate::process::guarded;
use crate::watch::handle_record::{HandleRecord, Kernel, LoadedImage, Reason};
use crate::watch::table;

/// The function of the driver that the program called: takes a configuration, a kernel and its arguments.
pub(crate) type SendLaunch<'a> = &'a dyn Fn(&LaunchConfig, Handle, RawArguments) -> Status;

/// Launches a form of the kernel on each part of the grid by `send`, in the same stream. Returns the driver's status, or
/// why nothing was launched.
///
/// # Safety
///
/// The program passes the launch with this configuration and these arguments to the driver: they are valid.
pub(crate) unsafe fn in_parts(
    launch: &Launch,
    config: &LaunchConfig,
    passed: RawArguments,
    send: SendLaunch<'_>,
) -> Result<Status, Reason> {
    // SAFETY: by this function's contract.
    let prepared = guarded::run(|| unsafe { Prepared::new(launch, attributes(config), passed) });
    let prepared = prepared.unwrap_or_else(|| Err("preparing its parts failed".into()))?;
    let launched = guarded::on_own_stack(|| prepared.launch(launch, config, send));
    launched.unwrap_or_else(|| Err("there is no memory for its parts".into()))
}

/// A launch that can be made in parts.
struct Prepared {
    kernel: &'static Kernel,
    /// The module with the form, if it is not the kernel's own module.
    sidecar: Option<&'static SidecarImage>,
    form: Handle,
    plan: Plan,
    arguments: Arguments,
    /// The attributes of the later parts, without programmatic dependent launch.
    later: Vec<LaunchAttribute>,
}

impl Prepared {
    /// # Safety
    ///
    /// As [`in_parts`].
    unsafe fn new(
        launch: &Launch,
        attributes: &[LaunchAttribute],
        passed: RawArguments,
    ) -> Result<Self, Reason> {
        if launch.cooperative {
            return Err("the blocks of a cooperative launch wait for each other".into());
        }
        let known = table::find(launch.kernel.addr()).and_then(table::Entry::record);
        let kernel =
            known.and_then(HandleRecord::kernel).ok_or("it was not looked up by its name")?;
        let sidecar = match kernel.loaded {
            Some(LoadedImage::Machine(origin)) => {
                // SAFETY: by this function's contract.
                Some(unsafe { sidecar::image_for(kernel, origin, launch) }?)
            }
            _ => None,
        };
        let entry = sidecar.map_or_else(|| kernel.entry(), |image| Ok(&image.entry))?;
        let forms = entry.forms.as_ref();
        let forms = forms.map_err(|refusal| Reason::from(format!("its PTX, {refusal}")))?;
        let driver = Driver::of(launch.through);
        let device = driver.device_limits().ok_or("the limits of the device are unknown")?;
        let name = kernel.name.to_string_lossy();
        let symbols = [&forms.shifted, &forms.folded];
        let handles = match sidecar {
            Some(sidecar) => sidecar.forms,
            // SAFETY: the module or library is loaded, since the program launches a kernel of it.
            None => unsafe { [find(kernel, 0, symbols[0])?, find(kernel, 1, symbols[1])?] },
        };
        // SAFETY: the program is launching the kernel just now, and the others are of the same module.
        let [limits, shifted, folded] = unsafe {
            handles.iter().for_each(|form| driver.copy_attributes(launch.kernel, *form));
            let of = |kernel| driver.limits_for(&Launch { kernel, ..*launch }, &name);
            [launch.kernel, handles[0], handles[1]].map(of)
        };
        let &EntryReport { reads_block_index, reads_grid_size, .. } = entry;
        let of_forms = FormLimits { shifted, folded, reads_block_index, reads_grid_size };
        let limits = LaunchLimits::rewritten(device.clone(), limits, of_forms);
        let plan = Plan::new(&launch.request(), None, &limits, Choice::AUTOMATIC)
            .map_err(|violations| not_in_parts(&violations))?;
        let form = match plan.strategy() {
            Strategy::Shifted => handles[0],
            Strategy::Folded => handles[1],
            _ => return Err("its grid breaks no rule that is known here".into()),
        };
        check_attributes(attributes, plan.len())?;
        let bytes = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let slot = WordSlot {
            index: forms.parameter_index,
            offset: bytes(forms.parameter_offset),
            own_bytes: bytes(entry.parameter_bytes),
        };
        // SAFETY: the program passes them to the kernel, whose parameters the entry states.
        let arguments = unsafe { Arguments::new(passed, slot) }?;
        let later = attributes.iter().filter(|attribute| attribute.id != DEPENDENT);
        let later = later.copied().collect();
        Ok(Self { kernel, sidecar, form, plan, arguments, later })
    }

    fn launch(
        mut self,
        launch: &Launch,
        config: &LaunchConfig,
        send: SendLaunch<'_>,
    ) -> Result<Status, Reason> {
        let Self { kernel, sidecar, form, plan, arguments, later } = &mut self;
        let &Launch { through, stream, .. } = launch;
        if let Some(sidecar) = sidecar {
            sidecar.copy_constants(Driver::of(through), stream, FUNCTIONS[through.0].per_thread)?;
        }
        let (kernel, count) = (*kernel, plan.len());
        for (place, planned) in (0..count).zip(plan.launches()) {
            let mut part = LaunchConfig { grid: planned.launch.grid(), ..*config };
            if place > 0 {
                part.attributes = later.as_ptr();
                part.attribute_count = c_uint::try_from(later.len()).unwrap_or(0);
            }
            let mut words = words(plan, launch.grid, planned.first_block);
            let status = arguments.with(&mut words, |passed| send(&part, *form, passed));
            if status != SUCCESS {
                return refused(kernel, Driver::of(through), status, (place, count));
            }
        }
        Ok(SUCCESS)
    }
}

/// The outcome if the driver refused a part.
fn refused(
    kernel: &Kernel,
    driver: &Driver,
    status: Status,
    (place, count): (u64, u64),
) -> Result<Status, Reason> {
    let outcome = guarded::run(|| {
        let error = driver.error(status);
        if place == 0 {
            return Err(format!("the driver refused its form: {error}").into());
        }
        let (name, part) = (kernel.name.to_string_lossy(), place + 1);
        process::say(&format!(
            "gridguard: part {part} of {count} of a fixed launch of {name} was refused: {error}; the parts \
             before it were launched\n"
        ));
        Ok(status)
    });
    outcome.unwrap_or(Ok(status))
}

/// The words of the part that begins at `first_block`.
fn words(plan: &Plan, grid: [u32; 3], first_block: [u32; 3]) -> Vec<u32> {
    match Fold::new(grid).filter(|_| plan.strategy() == Strategy::Folded) {
        Some(fold) => fold.words(first_block[0]).into(),
        None => shifted_words(grid, first_block).into(),
    }
}

/// Why the parts of a launch would be refused too: it breaks a rule other than the grid size.
fn not_in_parts(violations: &Violations) -> Reason {
    let is_size =
        |one: &&Violation| [Rule::GridDimX, Rule::GridDimY, Rule::GridDimZ].contains(&one.rule);
    let other = violations.iter().find(|one| !is_size(one)).or_else(|| violations.iter().next());
    other.map_or("it has no parts".into(), |other| format!("also in parts, {other}").into())
}

/// Whether `launches` launches of a form may have these attributes.
fn check_attributes(attributes: &[LaunchAttribute], launches: u64) -> Result<(), Reason> {
    let may_stand =
        |id: &c_uint| OF_EACH_PART.contains(id) || (launches == 1 && OF_ONE_LAUNCH.contains(id));
    match attributes.iter().map(|attribute| attribute.id).find(|id| !may_stand(id)) {
        None => Ok(()),
        Some(id) => {
            Err(format!("its attribute {id} is for one launch of the kernel itself").into())
        }
    }
}

/// The form `symbol` of the kernel, which is looked up once.
///
/// # Safety
///
/// The kernel's module or library is loaded.
unsafe fn find(kernel: &Kernel, place: usize, symbol: &str) -> Result<Handle, Reason> {
    let missing = || Reason::from(format!("its module has no {symbol}"));
    let known = kernel.forms.get(place).ok_or_else(missing)?;
    let found = known.load(Ordering::Acquire);
    if !found.is_null() {
        return Ok(found);
    }
    // SAFETY: the hook replaces functions of this type.
    let find = unsafe { functions::original::<FindKernel>(kernel.found_by) };
    let (find, name) = find.zip(CString::new(symbol).ok()).ok_or_else(missing)?;
    let mut found = core::ptr::null_mut();
    let container = core::ptr::without_provenance_mut(kernel.container);
    // SAFETY: the module or library is loaded; the pointers are to a live handle and a string.
    if unsafe { find(&raw mut found, container, name.as_ptr()) } != SUCCESS {
        return Err(missing());
    }
    known.store(found, Ordering::Release);
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_that_bind_to_a_launch_stay_on_it() {
        let with = |id| [LaunchAttribute { id, padding: [0; 4], value: [0; 16] }];
        for (id, one, several) in [(8, true, true), (12, true, false), (13, false, false)] {
            assert_eq!(check_attributes(&with(id), 1).is_ok(), one, "{id}");
            assert_eq!(check_attributes(&with(id), 2).is_ok(), several, "{id}");
        }
    }
}
