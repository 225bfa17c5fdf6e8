//! `gridguard bug-report`: the facts that a maintainer needs, without personal details.

mod redact;

use std::env;
use std::fs;
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use clap::Args;
use gridguard::{DeviceLimits, cuda};
use gridguard_diagnose::CudaVersion;
use serde_json::{Map, Value, json};

use self::redact::Person;
use crate::doctor;
use crate::error::{CommandError, Exit};
use crate::output::{self, Format, OutputArgs, note};
use crate::report::read;

#[derive(Args)]
pub(crate) struct BugReport {
    /// Report of `gridguard run --report` to include
    #[arg(long, value_name = "FILE.json")]
    report: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
}

impl BugReport {
    pub(crate) fn run(&self) -> Result<Exit, CommandError> {
        let report = self.report.as_deref().map(read).transpose()?;
        note("examining this machine; this takes up to 20 seconds");
        let (driver, devices) = devices();
        let (doctor, torch) = doctor::of_machine();
        let text = |path| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        let release = text("/etc/os-release");
        let release = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
        let mut document = json!({
            "gridguard": env!("GRIDGUARD_VERSION"),
            "system": release.unwrap_or(env::consts::OS).trim_matches('"'),
            "kernel": text("/proc/sys/kernel/osrelease"),
            "architecture": env::consts::ARCH,
            "environment": environment(),
            "driver": driver,
            "devices": devices,
            "doctor": doctor,
            "torch": torch,
            "report": report,
        });
        Person::of_machine().redact_all(&mut document);
        match self.output.format {
            Format::Json => output::write(&(output::json(&document)? + "\n"))?,
            Format::Text => {
                let text = format!("{document:#}");
                output::write(&format!("```json\n{text}\n```\n"))?;
                note(
                    "home, user, host, and folders other than the system's, such as /usr/lib, are removed; file names \
                     remain: read it before you post it",
                );
            }
        }
        Ok(Exit::Yes)
    }
}

/// The variables that change what CUDA, PyTorch or gridguard does.
fn environment() -> Map<String, Value> {
    let value = |name: &&str| Some(((*name).to_owned(), env::var(name).ok()?.into()));
    VARIABLES.iter().filter_map(value).collect()
}

/// The CUDA version of the driver, or why there is none, and the limits of the devices. A driver that hangs counts as
/// none.
fn devices() -> (String, Vec<DeviceLimits>) {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let driver = cuda::driver_version()
            .map_or_else(|error| error.to_string(), |version| CudaVersion(version).to_string());
        let count = cuda::device_count().unwrap_or(0);
        let limits = (0..count).filter_map(|ordinal| cuda::device_limits(ordinal).ok());
        sender.send((driver, limits.map(|limits| (*limits).clone()).collect()))
    });
    receiver.recv_timeout(PATIENCE).unwrap_or_else(|_| ("no response".to_owned(), Vec::new()))
}

const PATIENCE: Duration = Duration::from_secs(20);
const VARIABLES: [&str; 11] = [
    "CUDA_DEVICE_ORDER",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "CUDA_VISIBLE_DEVICES",
    "GRIDGUARD_CUBIN_CACHE",
    "GRIDGUARD_PRELOAD",
    "GRIDGUARD_PROFILES",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "NVIDIA_VISIBLE_DEVICES",
    "PYTORCH_CUDA_ALLOC_CONF",
];
