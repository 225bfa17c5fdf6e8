//! Checks the launch configuration that a log states against limits.

use gridguard::catalog::{self, CatalogError};
use gridguard::{
    DeviceLimits, Dim3, KernelLimits, LaunchLimits, LaunchRequest, Owner, Rule, Violation,
    Violations, validate,
};
use gridguard_diagnose::{StatedLaunch, ViolatedRule};

use crate::evidence::violated_rule;

/// The rules that the launch violates on `device`, on the compute capability in the log, or on the GPUs of the
/// catalogue, and the command that checks it. The log may come from another machine, so the devices of this one do not
/// count. `None` if too little is stated to call it legal.
pub(crate) fn judge(
    launch: &StatedLaunch,
    device: Option<&DeviceLimits>,
    capability: Option<&str>,
) -> Result<Option<(Vec<ViolatedRule>, String)>, CatalogError> {
    let StatedLaunch { grid, block, shared_bytes, kernel_threads, kernel, .. } = launch;
    let stated = capability.and_then(|it| catalog::limits(&architecture(it)).ok());
    let size = |size: Option<[u64; 3]>| size.map_or(Dim3::ONE, |[x, y, z]| Dim3::new(x, y, z));
    let mut request = LaunchRequest::new(size(*grid), size(*block));
    request.dynamic_shared_bytes = shared_bytes.unwrap_or(0);
    let kernel = KernelLimits {
        name: kernel.clone().unwrap_or_else(|| "of the launch".into()),
        max_threads_per_block: *kernel_threads,
        ..KernelLimits::default()
    };
    let (name, violations) = match device.or(stated.as_deref()) {
        Some(device) => {
            let violations = violations(&request, device, &kernel);
            // The catalogue names the limits of `sm_86` `any sm_86`.
            let name = device.name.strip_prefix("any ").unwrap_or(&device.name);
            let name = catalog::limits(name).is_ok().then(|| name.to_owned());
            (name, violations.iter().cloned().collect())
        }
        None => on_catalogue(&request, &kernel)?,
    };
    let rules: Vec<_> = violations.iter().map(stated_rule).collect();
    // Without grid or block, further rules may be violated.
    let is_whole = grid.is_some() && block.is_some();
    let command = command(&request, name.as_deref().unwrap_or("any"), *kernel_threads);
    Ok((is_whole || !rules.is_empty()).then_some((rules, command)))
}

/// The check of a launch, to be pasted.
fn command(request: &LaunchRequest, gpu: &str, kernel_threads: Option<u64>) -> String {
    let Dim3 { x, y, z } = request.grid;
    let block = request.block;
    let gpu = if gpu.contains(' ') { format!("'{gpu}'") } else { gpu.to_owned() };
    let mut command = format!(
        "gridguard check --gpu {gpu} --grid {x},{y},{z} --block {},{},{}",
        block.x, block.y, block.z
    );
    if request.dynamic_shared_bytes > 0 {
        command += &format!(" --shared-mem {}", request.dynamic_shared_bytes);
    }
    if let Some(threads) = kernel_threads {
        command += &format!(" --kernel-max-threads {threads}");
    }
    command
}

/// `9.0`, `90` and `sm_90a` as the catalogue names them.
fn architecture(capability: &str) -> String {
    let digits: String = capability.chars().filter(char::is_ascii_digit).collect();
    format!("sm_{digits}")
}

/// The rules that `request` violates on GPUs of the catalogue, each with the highest limit, and the first such GPU,
/// unless a rule is violated on all. Rules that are violated on all come first.
fn on_catalogue(
    request: &LaunchRequest,
    kernel: &KernelLimits,
) -> Result<(Option<String>, Vec<Violation>), CatalogError> {
    let gpus = catalog::gpus()?;
    let mut found: Vec<(Violation, usize)> = Vec::new();
    for gpu in gpus {
        for violation in &violations(request, &gpu.limits, kernel) {
            match found.iter_mut().find(|(known, _)| known.rule == violation.rule) {
                Some((known, count)) => {
                    *count += 1;
                    // A launch that violates the rule everywhere exceeds the highest limit.
                    if violation.limit > known.limit {
                        *known = violation.clone();
                    }
                }
                None => found.push((violation.clone(), 1)),
            }
        }
    }
    found.sort_by_key(|(_, count)| gpus.len() - count);
    let owned_by_all = |(mut violation, count): (Violation, usize)| {
        if let Owner::Device(name) = &mut violation.owner {
            *name = match gpus.len() {
                all if all == count => format!("all {all} GPUs of the catalogue"),
                all => format!("{name}, one of {count} such GPUs of {all} in the catalogue"),
            };
        }
        violation
    };
    let is_on_some = found.first().is_some_and(|(_, count)| *count < gpus.len());
    let mut on_some = gpus.iter().filter(|_| is_on_some);
    let first = on_some.find(|gpu| !violations(request, &gpu.limits, kernel).is_empty());
    let name = first.map(|gpu| gpu.limits.name.clone());
    Ok((name, found.into_iter().map(owned_by_all).collect()))
}

/// The violated rule in the words of somebody who has a log, but not the launching code.
fn stated_rule(violation: &Violation) -> ViolatedRule {
    let mut rule = violated_rule(violation);
    match violation.rule {
        Rule::KernelThreadsPerBlock => {
            // The driver returns the code for registers.
            rule.codes = &[1, 9, 701];
            rule.remedy += ", or compile the kernel for fewer registers (maxregs in CUDA.jl, \
                            --maxrregcount in nvcc)";
        }
        Rule::DynamicSharedMemoryOptIn => {
            let bytes = violation.requested;
            rule.remedy = format!(
                "before the launch, call cudaFuncSetAttribute(kernel, \
                 cudaFuncAttributeMaxDynamicSharedMemorySize, {bytes}), or in CuPy set \
                 kernel.max_dynamic_shared_size_bytes = {bytes}; or request less"
            );
        }
        Rule::SharedMemoryTotal => rule.remedy += "; opting in does not allow more",
        _ => {}
    }
    rule
}

/// The rules that `request` violates on `device` with a kernel that opted in to the most shared memory; if there are
/// none, without the opt-in.
fn violations(request: &LaunchRequest, device: &DeviceLimits, kernel: &KernelLimits) -> Violations {
    let opted_in = Some(device.max_shared_bytes_per_block_opt_in);
    for max_dynamic_shared_bytes in [opted_in, None] {
        let kernel = KernelLimits { max_dynamic_shared_bytes, ..kernel.clone() };
        if let Err(violations) = validate(request, &LaunchLimits::new(device.clone(), kernel)) {
            return violations;
        }
    }
    Violations::default()
}
