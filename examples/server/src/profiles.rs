//! Tuned choices: profiles that are loaded again when they change, and a log of the shapes that they lack.

use std::path::PathBuf;
use std::sync::Arc;

use gridguard::profile::{
    DeviceIdentity, Environment, Layers, LayersStamp, MissLog, NoticeLevel, Objective, Policy,
};
use gridguard::{Choice, Guard, Strategy};
use gridguard_kernels::temporal_attention::{Layout, TemporalAttention};
use gridguard_kernels::{KernelError, Operation};
use metrics::{counter, gauge};
use parking_lot::{Mutex, RwLock};

use crate::options::Options;

/// The profile of a device.
pub(crate) struct Profile {
    layers: Layers,
    identity: DeviceIdentity,
    environment: Environment,
    /// Looks up and logs; launches nothing.
    lookup: RwLock<Arc<Guard>>,
    /// The state of the files at the last load, even if it failed.
    stamp: Mutex<LayersStamp>,
    misses: Arc<MissLog>,
    /// Where they are written.
    misses_path: Option<PathBuf>,
}

impl Profile {
    /// Loads the profile of a guard's device: from the operator's path, the user's folder and those built in, in this
    /// order. What is wrong with its files is logged.
    pub(crate) fn open(guard: &Guard, options: &Options) -> Arc<Self> {
        let identity = guard.identity();
        let layers = options.profile.iter().fold(Layers::new(), Layers::explicit);
        let profile = Arc::new(Self {
            layers: layers.user().built_in(&identity),
            identity,
            environment: guard.environment(),
            lookup: RwLock::new(Arc::new(Guard::host(guard.limits().clone()))),
            stamp: Mutex::default(),
            misses: Arc::new(MissLog::new(10_000)),
            misses_path: options.misses.clone(),
        });
        profile.load(false);
        profile
    }

    /// Loads the profile again if its files have changed, and adds the shapes that had no exact entry since the last
    /// time to the operator's file, for `gridguard tune`.
    pub(crate) fn keep_up(&self) {
        let has_changed = self.layers.stamp(&self.identity) != *self.stamp.lock();
        let is_loaded = has_changed.then(|| self.load(true));
        // Both from the start: nobody sees an increase from no value to 1.
        for (result, counts) in [("ok", Some(true)), ("failed", Some(false))] {
            counter!("gridguard_server_profile_reloads_total", "result" => result)
                .increment((is_loaded == counts).into());
        }
        if let Some(path) = &self.misses_path
            && !self.misses.snapshot().is_empty()
            && let Err(error) = self.misses.write(path)
        {
            tracing::error!(%error, "misses not written");
        }
    }

    /// Prepares `attention` as its profile entry says, or as the planner does where no entry matches or the entry is
    /// not legal here; or as one launch, if it must be whole.
    pub(crate) fn choose<R>(
        &self,
        attention: TemporalAttention,
        is_whole: bool,
        prepare: impl Fn(TemporalAttention, Choice) -> Result<R, KernelError>,
    ) -> Result<R, KernelError> {
        // The layout that `gridguard tune` tunes.
        let attention = attention.with_layout(Layout::FoldedY);
        if is_whole {
            return prepare(attention, Choice::AUTOMATIC.strategy(Strategy::Whole));
        }
        let guard = Arc::clone(&self.lookup.read());
        let key = attention.key(guard.limits(), Policy::default(), Objective::default())?;
        let (names, sizes): (Vec<&str>, Vec<u64>) = attention.sizes().into_iter().unzip();
        let found = guard.tuned(&key, &names, &sizes);
        if found.entry.is_some() {
            let tuned = attention.with_parameters(found.parameters());
            match tuned.and_then(|tuned| prepare(tuned, found.choice())) {
                Ok(prepared) => return Ok(prepared),
                Err(reason) => {
                    tracing::warn!(%reason, matched = %found.matched, "profile entry not used");
                    found.refused();
                }
            }
        }
        prepare(attention, Choice::AUTOMATIC)
    }

    /// Loads the layers, and returns whether they are in use now: after the start only if every file can be used as a
    /// whole.
    fn load(&self, is_reload: bool) -> bool {
        *self.stamp.lock() = self.layers.stamp(&self.identity);
        let loaded = self.layers.load(&self.identity, &self.environment);
        let mut is_whole = true;
        for notice in &loaded.notices {
            is_whole &= notice.notice.level() != NoticeLevel::Reject;
            tracing::warn!(%notice, "profile");
        }
        let file = self.identity.file_name();
        if is_reload && !is_whole {
            tracing::error!(file, "the old profile stays in use");
            return false;
        }
        let digest = loaded.profile.choices_digest();
        let mut lookup = self.lookup.write();
        let old = lookup.profile().map(|profile| profile.choices_digest());
        // The digest in use has the value 1.
        for (digest, value) in old.into_iter().map(|old| (old, 0.0)).chain([(digest, 1.0)]) {
            let labels = [("profile", file.clone()), ("digest", digest)];
            gauge!("gridguard_server_profile_info", &labels).set(value);
        }
        let guard = Guard::host(lookup.limits().clone());
        let guard = guard.with_profile(Arc::new(loaded.profile));
        *lookup = Arc::new(guard.with_miss_log(Arc::clone(&self.misses)));
        tracing::info!(file, "profile loaded");
        true
    }
}
