//! Which launches may have caused an error that surfaces at a later call.

use core::fmt;

use crate::context::ContextState;
use crate::cuda::driver::history::{History, LaunchRecord};
use crate::cuda::driver::symbols::{Driver, Handle, Status};

/// The launches that may have caused an error that another call reports.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FaultSuspects {
    /// This launch: it was synchronised at once, and no other launch of the guard was pending.
    Launch(LaunchRecord),
    /// One of these launches, submitted since their streams were last synchronised through a guard; or a launch that is
    /// not on record, because it bypassed the guard, or its guard and kernels were dropped.
    OneOf {
        /// The launches on record, the newest last.
        launches: Vec<LaunchRecord>,
        /// How many more there were whose records were overwritten by later launches.
        forgotten: u64,
    },
}

impl FaultSuspects {
    /// The most launches that a message names; [`FaultSuspects::launches`] has all.
    pub const NAMED: usize = 8;

    /// The launches in `context`, or else in the current context, that may have caused `status`. `None` if the call
    /// that returned `status` caused it.
    pub(crate) fn collect(
        driver: &Driver,
        status: Status,
        context: Option<Handle>,
    ) -> Option<Self> {
        if ContextState::after(status) != ContextState::Lost {
            return None;
        }
        let histories = History::known(context.or_else(|| driver.current_context()));
        let (mut launches, mut forgotten) = (Vec::new(), 0_u64);
        for history in &histories {
            let (suspects, more) = history.suspects();
            launches.extend(suspects);
            forgotten = forgotten.saturating_add(more);
        }
        (!histories.is_empty()).then_some(Self::OneOf { launches, forgotten })
    }

    /// The same, given that the newest launch was synchronised at once: if it is the only suspect,
    /// it is the cause.
    pub(crate) fn after_checked_launch(self) -> Self {
        match self {
            Self::OneOf { launches, forgotten: 0 } => match <[LaunchRecord; 1]>::try_from(launches)
            {
                Ok([launch]) => Self::Launch(launch),
                Err(launches) => Self::OneOf { launches, forgotten: 0 },
            },
            several => several,
        }
    }

    /// The suspects on record, the newest last.
    pub fn launches(&self) -> &[LaunchRecord] {
        match self {
            Self::Launch(launch) => core::slice::from_ref(launch),
            Self::OneOf { launches, .. } => launches,
        }
    }
}

impl fmt::Display for FaultSuspects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Launch(launch) => write!(f, "the faulting launch is {launch}"),
            Self::OneOf { launches, forgotten } => one_of(f, launches, *forgotten),
        }
    }
}

fn one_of(f: &mut fmt::Formatter<'_>, launches: &[LaunchRecord], forgotten: u64) -> fmt::Result {
    let on_record = u64::try_from(launches.len()).unwrap_or(u64::MAX);
    let all = on_record.saturating_add(forgotten);
    f.write_str("not caused by this call")?;
    match all {
        0 => return f.write_str(", but by a launch that is not on record"),
        1 => f.write_str("; suspect: 1 launch since the last synchronisation")?,
        all => write!(f, "; suspects: {all} launches since the last synchronisation")?,
    }
    let named =
        launches.get(launches.len().saturating_sub(FaultSuspects::NAMED)..).unwrap_or_default();
    if u64::try_from(named.len()).is_ok_and(|named| named < all) {
        write!(f, ", the last {} on record", named.len())?;
    }
    for (place, launch) in named.iter().enumerate() {
        write!(f, "{} {launch}", if place == 0 { ":" } else { "," })?;
    }
    Ok(())
}
