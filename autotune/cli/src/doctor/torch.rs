//! Checks whether a PyTorch fits the driver and has code for the devices.

use std::path::{Path, PathBuf};
use std::time::Duration;

use gridguard::image::Architecture;
use gridguard::{ComputeCapability, count};
use gridguard_diagnose::CudaVersion;
use humantime::format_duration;
use serde::Deserialize;

use super::child::{self, ChildError};
use super::driver::version_number;
use super::examine::Device;
use super::finding::{Finding, Subject, remedy_of_message, shorten};

pub(super) const TORCH: Subject = Subject::new("torch");
const PROBE: &str = include_str!("torch_probe.py");
pub(super) const DEFAULT_PYTHON: &str = "python3";

/// A PyTorch, described by the probe.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct Torch {
    python: String,
    missing: bool,
    /// Why it could not be imported or queried.
    error: Option<String>,
    version: String,
    /// The CUDA version of the build.
    cuda: Option<String>,
    /// The ROCm version of the build.
    hip: Option<String>,
    /// Architectures with code, for example `sm_90` and `compute_90`.
    architectures: Vec<String>,
    cudnn: Option<u64>,
    devices: u64,
    available: bool,
    warnings: Vec<String>,
}

/// The driver and devices that a PyTorch must fit.
#[derive(Clone, Debug, Default)]
pub(super) struct Machine {
    /// The CUDA version of the driver.
    pub(super) driver: Option<i32>,
    pub(super) devices: Vec<Device>,
}

/// The CUDA versions of the wheels in PyTorch's index as of PyTorch 2.9, the newest first, each with its oldest and
/// newest compute capability. The wheels for CUDA 12.4 and before contain older versions of PyTorch.
const WHEELS: [(i32, [(u32, u32); 2]); 6] = [
    (13_000, [(7, 5), (12, 1)]),
    (12_080, [(7, 5), (12, 1)]),
    (12_060, [(5, 0), (9, 0)]),
    (12_040, [(5, 0), (9, 0)]),
    (12_010, [(5, 0), (9, 0)]),
    (11_080, [(3, 7), (9, 0)]),
];

/// The Python of a virtual environment, if the path is its folder, otherwise the path. The default is never a folder of
/// the working directory.
pub(super) fn find_python(path: &Path) -> PathBuf {
    if path == Path::new(DEFAULT_PYTHON) {
        return path.to_owned();
    }
    let inside = ["bin/python", "bin/python3", "Scripts/python.exe"].map(|name| path.join(name));
    let found = inside.into_iter().find(|python| path.is_dir() && python.is_file());
    found.unwrap_or_else(|| path.to_owned())
}

/// Runs the probe within a time limit.
pub(super) fn probe(python: &Path, limit: Duration) -> Result<Torch, ChildError> {
    let output = child::run(child::python(python, PROBE), limit, |_| false);
    let torch = output.out.lines().find_map(child::marked::<Torch>);
    match (torch.filter(|torch| *torch != Torch::default()), output.end) {
        // The result counts even after a crash.
        (Some(torch), _) => Ok(torch),
        (None, Ok(())) => Err(ChildError::Unexpected(child::last_line(&output.out))),
        (None, Err(error)) => Err(error),
    }
}

/// Whether the working directory, which the probe ignores, has a file that hides PyTorch.
pub(super) fn check_folder() -> Option<Finding> {
    let mut files = ["torch.py", "torch/__init__.py"].into_iter();
    let file = files.find(|file| Path::new(file).is_file())?;
    let what = format!("programs of this folder import ./{file} instead of PyTorch");
    Some(TORCH.bad(what, "rename it, or start Python in another folder"))
}

/// `python` is the name that the user gave.
pub(super) fn check(
    probe: &Result<Torch, ChildError>,
    python: &str,
    machine: &Machine,
) -> Vec<Finding> {
    let other = "name a Python that has torch: gridguard doctor --torch PATH/bin/python";
    vec![match probe {
        Ok(torch) => return check_torch(torch, python, machine),
        Err(ChildError::NotStarted(why)) => {
            TORCH.unknown(format!("{python} does not start: {why}"), other)
        }
        Err(ChildError::TimedOut(limit)) => TORCH.unknown(
            format!("{python} did not respond within {}", format_duration(*limit)),
            format!(
                "run \"{python}\" -X importtime -c 'import torch' to see where it hangs, or set a \
                 longer --patience"
            ),
        ),
        Err(ChildError::Crashed(why)) => TORCH.bad(
            format!("{python} crashed while importing torch: {why}"),
            format!(
                "its libraries do not match: unset LD_LIBRARY_PATH and try again, or reinstall \
                 torch in a separate environment, {}",
                install(machine)
            ),
        ),
        Err(ChildError::Unexpected(output)) => {
            TORCH.unknown(format!("unexpected output of {python}: {output:?}"), other)
        }
    }]
}

fn check_torch(torch: &Torch, python: &str, machine: &Machine) -> Vec<Finding> {
    let bad = |what: String, remedy: String| vec![TORCH.bad(what, remedy)];
    if torch.missing && torch.python.starts_with("2.") {
        let what = format!("{python} is Python {}, PyTorch needs Python 3", torch.python);
        return bad(what, "gridguard doctor --torch python3".into());
    }
    if torch.missing {
        let install = install(machine).replace(" --force-reinstall", "");
        let remedy = format!(
            "name the Python that has it, gridguard doctor --torch PATH/bin/python, or {install}"
        );
        return vec![
            TORCH.unknown(format!("not installed in {python} ({})", torch.python), remedy),
        ];
    }
    if let Some(error) = &torch.error {
        let remedy = remedy_of_message(error).unwrap_or_else(|| {
            format!("reinstall torch in a separate environment: {}", install(machine))
        });
        return bad(format!("{python}: {}", shorten(error)), remedy);
    }
    let Some(cuda) = torch.cuda.as_deref() else {
        let built_for = match &torch.hip {
            Some(hip) => format!("{} is built for ROCm {hip}, not for CUDA", torch.version),
            None => format!("{} is built for the CPU only", torch.version),
        };
        return bad(built_for, install(machine));
    };
    let mut findings = vec![check_wheel(torch, cuda, machine)];
    let mut seen = Vec::new();
    for device in &machine.devices {
        if !seen.contains(&device.capability) {
            seen.push(device.capability);
            findings.push(check_code(torch, cuda, device, machine));
        }
    }
    findings.extend(check_availability(torch, machine));
    findings
}

/// Whether the driver supports the wheel's CUDA version.
fn check_wheel(torch: &Torch, cuda: &str, machine: &Machine) -> Finding {
    let cudnn = torch.cudnn.map(|cudnn| format!(", cuDNN {}", cudnn_text(cudnn)));
    let what = format!("{} for CUDA {cuda}{}", torch.version, cudnn.unwrap_or_default());
    let Some((wheel, driver)) = parse(cuda).zip(machine.driver).filter(|(w, d)| w > d) else {
        return TORCH.good(what);
    };
    let supported = CudaVersion(driver);
    let what = format!("{what}: newer than the driver, which supports CUDA {supported}");
    let remedy = format!("update the driver, or {}", install(machine));
    if wheel / 1000 > driver / 1000 {
        return TORCH.bad(what, remedy);
    }
    let what = format!("{what}; its machine code runs, PTX and run-time compilation may not");
    TORCH.warning(what, remedy)
}

/// Whether there is code for a device.
fn check_code(torch: &Torch, cuda: &str, device: &Device, machine: &Machine) -> Finding {
    let sm = device.capability.sm();
    let all = torch.architectures.join(" ");
    let install_this = || install_for(machine.driver, Some(device.capability));
    let device_name = format!("{} ({sm})", device.name);
    match best_code(&torch.architectures, device.capability) {
        Some(code) if code == sm => TORCH.good(format!("has code for {device_name}")),
        Some(code) if code.starts_with("sm_") => {
            TORCH.good(format!("has code for {device_name}: that of {code}"))
        }
        Some(_) if parse(cuda) > machine.driver => TORCH.bad(
            format!("has only PTX for {device_name}, which is newer than the driver: {all}"),
            format!("update the driver, or {}", install(machine)),
        ),
        Some(code) => TORCH.warning(
            format!(
                "has no code for {device_name}: the driver compiles {code}, which takes minutes at \
                 first"
            ),
            install_this(),
        ),
        None => TORCH.bad(format!("has no code for {device_name}, only for {all}"), install_this()),
    }
}

/// The best architecture for a device: its own machine code, older machine code, or PTX.
fn best_code(architectures: &[String], device: ComputeCapability) -> Option<&str> {
    let names = architectures.iter().map(String::as_str);
    let fitting = names.filter(|name| runs_on(name, device));
    fitting.max_by_key(|name| (name.starts_with("sm_"), *name == device.sm()))
}

/// Whether code for an architecture, for example `sm_90a` or the PTX `compute_90`, runs on a device.
fn runs_on(name: &str, device: ComputeCapability) -> bool {
    let Some((kind, number)) = name.split_once('_') else { return false };
    Architecture::from_name(&format!("sm_{number}")).is_ok_and(|code| match kind {
        "sm" => code.runs_on(device),
        "compute" => code.compiles_for(device),
        _ => false,
    })
}

/// Whether PyTorch finds the devices that the driver lists.
fn check_availability(torch: &Torch, machine: &Machine) -> Option<Finding> {
    let listed = machine.devices.len();
    if listed == 0 {
        // The checks of the driver report why.
        return None;
    }
    let messages: Vec<String> = torch.warnings.iter().map(|message| shorten(message)).collect();
    let messages = messages.join("; ");
    let remedy = || {
        let known = torch.warnings.iter().find_map(|message| remedy_of_message(message));
        known.unwrap_or_else(|| "gridguard explain says more about its message".to_owned())
    };
    if !torch.available {
        let why = if messages.is_empty() { "it gives no reason" } else { &messages };
        let what = format!("finds no device, the driver lists {listed}: {why}");
        return Some(TORCH.bad(what, remedy()));
    }
    if u64::try_from(listed).ok() != Some(torch.devices) {
        let what = format!("finds {}, the driver lists {listed}", count(torch.devices, "device"));
        let remedy =
            "start both in the same environment: CUDA_VISIBLE_DEVICES, the container's GPUs";
        return Some(TORCH.warning(what, remedy));
    }
    (!messages.is_empty()).then(|| TORCH.warning(format!("warns: {messages}"), remedy()))
}

/// How to install a wheel for the first device.
fn install(machine: &Machine) -> String {
    install_for(machine.driver, machine.devices.first().map(|device| device.capability))
}

/// How to install the newest wheel with code for the device that the driver supports. Otherwise suggests a wheel of
/// the driver's major version, or a driver update.
fn install_for(driver: Option<i32>, capability: Option<ComputeCapability>) -> String {
    let has_code = |range: [(u32, u32); 2]| {
        let [oldest, newest] = range.map(ComputeCapability::from);
        capability.is_none_or(|it| (oldest..=newest).contains(&it))
    };
    let with_code =
        || WHEELS.into_iter().filter(|(_, range)| has_code(*range)).map(|(cuda, _)| cuda);
    let whole = |cuda: &i32| driver.is_none_or(|driver| *cuda <= driver);
    let partly = |cuda: &i32| driver.is_none_or(|driver| cuda / 1000 == driver / 1000);
    if let Some(cuda) = with_code().find(whole).or_else(|| with_code().rfind(partly)) {
        return pip(cuda);
    }
    match with_code().next_back() {
        Some(cuda) => {
            let needed = CudaVersion(cuda);
            format!("update the driver to one for CUDA {needed} or later, then {}", pip(cuda))
        }
        None => {
            let sm = capability.map(ComputeCapability::sm).unwrap_or_default();
            format!("no wheel has code for {sm}: build PyTorch from source, or use another GPU")
        }
    }
}

fn pip(cuda: i32) -> String {
    let (major, minor) = (cuda / 1000, cuda % 1000 / 10);
    format!(
        "pip install --force-reinstall torch --index-url \
         https://download.pytorch.org/whl/cu{major}{minor}"
    )
}

/// `12.8` as `cuDriverGetVersion` encodes it.
fn parse(cuda: &str) -> Option<i32> {
    let mut parts = cuda.split('.').map(str::parse::<u32>);
    let (major, minor) = (parts.next()?.ok()?, parts.next()?.ok()?);
    Some(version_number(major, minor))
}

/// `9.1.0` for 90100, `8.9.2` for 8902.
fn cudnn_text(cudnn: u64) -> String {
    let thousand = if cudnn >= 90_000 { 10_000 } else { 1000 };
    format!("{}.{}.{}", cudnn / thousand, cudnn % thousand / 100, cudnn % 100)
}

#[cfg(test)]
mod tests;
