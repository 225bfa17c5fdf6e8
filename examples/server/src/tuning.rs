//! Tuned choices: profile layers, loaded at start, on SIGHUP and if files change, and a log of missing shapes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use gridguard::profile::{
    DeviceIdentity, Environment, Layers, LayersStamp, MissLog, NoticeLevel, Objective, Policy,
    ProfileError,
};
use gridguard::{Choice, Guard};
use gridguard_kernels::temporal_attention::TemporalAttention;
use gridguard_kernels::{KernelError, Operation};
use metrics::{counter, gauge};
use parking_lot::{Mutex, RwLock};

/// The profiles of all devices of the server.
#[derive(Debug)]
pub struct Profiles {
    /// A file or a folder that the operator names.
    path: Option<PathBuf>,
    misses: Arc<MissLog>,
    devices: Mutex<Vec<Arc<Tuning>>>,
}

/// The profile of a device.
#[derive(Debug)]
pub struct Tuning {
    layers: Layers,
    identity: DeviceIdentity,
    environment: Environment,
    /// Looks up and logs; launches nothing.
    lookup: RwLock<Arc<Guard>>,
    /// The state of the files at the last load, even if it failed.
    stamp: Mutex<LayersStamp>,
    misses: Arc<MissLog>,
}

impl Profiles {
    /// Profiles from `path`, the user's folder and those built in, in this order.
    #[must_use]
    pub fn new(path: Option<PathBuf>) -> Self {
        let misses = Arc::new(MissLog::new(MAX_MISSES));
        Self { path, misses, devices: Mutex::default() }
    }

    /// Loads the profile of a guard's device. What is wrong with its files is logged.
    pub fn open(&self, guard: &Guard) -> Arc<Tuning> {
        let identity = guard.identity();
        let layers = Layers::new();
        let layers = match &self.path {
            Some(path) => layers.explicit(path),
            None => layers,
        };
        let tuning = Arc::new(Tuning {
            layers: layers.user().built_in(&identity),
            identity,
            environment: guard.environment(),
            lookup: RwLock::new(Arc::new(Guard::host(guard.limits().clone()))),
            stamp: Mutex::default(),
            misses: Arc::clone(&self.misses),
        });
        tuning.load(false);
        let mut devices = self.devices.lock();
        devices.push(Arc::clone(&tuning));
        report_entries(&devices);
        tuning
    }

    /// Loads all profiles again. A device keeps its profile if a file cannot be used as a whole.
    pub fn reload(&self) {
        self.reload_if(|_| true);
    }

    /// Loads the profiles again whose files have changed, for example by `gridguard profile pull`.
    pub fn reload_changed(&self) {
        self.reload_if(Tuning::is_changed);
    }

    fn reload_if(&self, is_wanted: impl Fn(&Tuning) -> bool) {
        let devices = self.devices.lock();
        let wanted = devices.iter().filter(|device| is_wanted(device));
        let loaded: Vec<bool> = wanted.map(|device| device.load(true)).collect();
        report_entries(&devices);
        for is_loaded in loaded {
            let result = if is_loaded { "ok" } else { "failed" };
            counter!("gridguard_server_profile_reloads_total", "result" => result).increment(1);
        }
    }

    /// Adds the shapes that had no exact entry since the last time to a file, for `gridguard tune`.
    ///
    /// # Errors
    ///
    /// Those of [`MissLog::write`], which keeps the log.
    pub fn write_misses(&self, path: &Path) -> Result<(), ProfileError> {
        if !self.misses.snapshot().is_empty() {
            let shapes = self.misses.write(path)?.entries;
            tracing::info!(path = %path.display(), shapes, "misses written");
        }
        Ok(())
    }
}

impl Tuning {
    /// Prepares `attention` as its profile entry says, or as the planner does where no entry matches or the
    /// entry is not legal here. Lookups do not depend on a mask, which is added only then: launch parameters
    /// are tuned without one.
    ///
    /// # Errors
    ///
    /// What `prepare` returns for the planner's choice.
    pub fn choose<R>(
        &self,
        attention: &TemporalAttention,
        is_masked: bool,
        prepare: impl Fn(TemporalAttention, Choice) -> Result<R, KernelError>,
    ) -> Result<R, KernelError> {
        let guard = Arc::clone(&self.lookup.read());
        let key = attention.key(guard.limits(), Policy::default(), Objective::default())?;
        let (names, sizes): (Vec<&str>, Vec<u64>) = attention.sizes().into_iter().unzip();
        let found = guard.tuned(&key, &names, &sizes);
        let masked = |attention: TemporalAttention| {
            if is_masked { attention.with_bias() } else { attention }
        };
        if found.entry.is_some() {
            let tuned = attention.with_parameters(found.parameters());
            match tuned.and_then(|tuned| prepare(masked(tuned), found.choice())) {
                Ok(prepared) => return Ok(prepared),
                Err(reason) => {
                    tracing::warn!(%reason, matched = %found.matched, "profile entry not used");
                    found.refused();
                }
            }
        }
        prepare(masked(*attention), Choice::AUTOMATIC)
    }

    /// Loads the layers, and returns whether they are in use now: after the start only if every file can be
    /// used as a whole.
    fn load(&self, is_reload: bool) -> bool {
        *self.stamp.lock() = self.layers.stamp(&self.identity);
        let loaded = self.layers.load(&self.identity, &self.environment);
        let mut is_whole = true;
        for notice in &loaded.notices {
            match notice.level() {
                NoticeLevel::Reject => {
                    is_whole = false;
                    tracing::error!(%notice, "profile");
                }
                NoticeLevel::Degrade => tracing::warn!(%notice, "profile"),
                NoticeLevel::Note => tracing::info!(%notice, "profile"),
            }
        }
        if is_reload && !is_whole {
            tracing::error!(device = %self.identity.file_name(), "the old profile stays in use");
            return false;
        }
        let (entries, digest) = (loaded.profile.entries().len(), loaded.profile.choices_digest());
        let mut lookup = self.lookup.write();
        if let Some(old) = lookup.profile() {
            self.report_digest(old.choices_digest(), 0.0);
        }
        self.report_digest(digest.clone(), 1.0);
        let guard = Guard::host(lookup.limits().clone());
        let guard = guard.with_profile(Arc::new(loaded.profile));
        *lookup = Arc::new(guard.with_miss_log(Arc::clone(&self.misses)));
        drop(lookup);
        tracing::info!(device = %self.identity.file_name(), entries, digest, "profile loaded");
        true
    }

    fn is_changed(&self) -> bool {
        self.layers.stamp(&self.identity) != *self.stamp.lock()
    }

    /// The digest in use has the value 1.
    fn report_digest(&self, digest: String, value: f64) {
        let device = self.identity.file_name();
        gauge!("gridguard_server_profile_info", "device" => device, "digest" => digest).set(value);
    }

    fn entries(&self) -> usize {
        let guard = self.lookup.read();
        guard.profile().map_or(0, |profile| profile.entries().len())
    }
}

fn report_entries(devices: &[Arc<Tuning>]) {
    let entries: usize = devices.iter().map(|device| device.entries()).sum();
    gauge!("gridguard_server_profile_entries").set(u32::try_from(entries).unwrap_or(u32::MAX));
}

/// Shapes between two writes.
const MAX_MISSES: usize = 10_000;
