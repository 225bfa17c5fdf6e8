//! Contexts that another part of the program destroys while a guard uses them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cudarc::driver::{CudaContext, CudaSlice, CudaStream};
use gridguard::Guard;
use gridguard::cuda::Kernel;
use gridguard_test_support::Random;

use crate::device_setup::{
    DeviceSetup, along_y, context, count, counts_right, kernel, poisoned, spill,
};
use crate::environment::RunEnvironment;
use crate::expected::{Expected, Observed};
use crate::fault::Case;
use crate::observed_error::{ObservedError, describe};
use crate::raw;

/// How the context is destroyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// The primary context, by the same thread.
    Reset,
    /// The primary context, by another thread.
    ResetElsewhere,
    /// The primary context is released once too often.
    Release,
    /// A context of the program, by another thread, while it is current on this one.
    DestroyElsewhere,
}

/// The first call to the guard afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum First {
    Launch,
    Workspace,
    Synchronize,
    Load,
    FreeMemory,
    Priorities,
    Residency,
    /// Launches continue while another thread destroys the context.
    MidWork,
}

const HOWS: [How; 4] = [How::Reset, How::ResetElsewhere, How::Release, How::DestroyElsewhere];
const FIRSTS: [First; 8] = [
    First::Launch,
    First::Workspace,
    First::Synchronize,
    First::Load,
    First::FreeMemory,
    First::Priorities,
    First::Residency,
    First::MidWork,
];

/// A destroyed context.
#[derive(Debug)]
pub(crate) struct Destroyed {
    how: How,
    first: First,
    items: u64,
    /// Launches before it that are not synchronised.
    under_way: u64,
    /// Microseconds from the first launch until another thread destroys it.
    after_us: u64,
}

/// Codes of a destroyed context: deinitialised, invalid, destroyed, or unknown handles.
pub(crate) const GONE: [i32; 4] = [4, 201, 709, 400];
/// How long launches are repeated at most.
const LONGEST: Duration = Duration::from_secs(10);

pub(crate) fn draw(number: u64, random: &mut Random) -> Destroyed {
    let place = |count: usize| u64::try_from(count).expect("few");
    let how = HOWS[usize::try_from(number % place(HOWS.len())).expect("few")];
    let first =
        FIRSTS[usize::try_from(number / place(HOWS.len()) % place(FIRSTS.len())).expect("few")];
    Destroyed {
        how,
        first,
        items: 1 + random.below(100_000),
        under_way: random.below(5),
        after_us: random.below(3000),
    }
}

/// What the guard has in the context.
struct Scene {
    guard: Guard,
    stream: Arc<CudaStream>,
    iota: Kernel,
    spiller: Kernel,
    out: CudaSlice<u64>,
}

impl Destroyed {
    fn is_of_the_program(&self) -> bool {
        self.how == How::DestroyElsewhere
    }

    fn destroy(&self, context: &Arc<CudaContext>) -> i32 {
        let elsewhere = |destroy: &(dyn Fn() -> i32 + Sync)| {
            std::thread::scope(|scope| scope.spawn(destroy).join().expect("no panic"))
        };
        match self.how {
            How::Reset => raw::reset_primary_context(),
            How::ResetElsewhere => elsewhere(&raw::reset_primary_context),
            How::Release => raw::release_primary_context(),
            How::DestroyElsewhere => elsewhere(&|| raw::destroy_context(context)),
        }
    }

    fn scene(&self, setup: &DeviceSetup) -> Scene {
        let guard = match self.is_of_the_program() {
            true => Guard::with_context(raw::new_context()).expect("a guard"),
            false => setup.guard(),
        };
        let module = setup.module(&guard);
        let stream = context(&guard).default_stream();
        let (iota, spiller) = (kernel(&module, "iota_y"), kernel(&module, "spill_y"));
        let out = poisoned(&stream, self.items);
        Scene { guard, stream, iota, spiller, out }
    }

    /// Launches until an error, while another thread destroys the context.
    fn mid_work(&self, scene: &mut Scene) -> ObservedError {
        let (destroyed, context) = (AtomicBool::new(false), Arc::clone(context(&scene.guard)));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_micros(self.after_us));
                let status = self.destroy(&context);
                destroyed.store(true, Ordering::SeqCst);
                assert_eq!(status, 0, "the context was alive");
            });
            let begun = Instant::now();
            while begun.elapsed() < LONGEST {
                let was_destroyed = destroyed.load(Ordering::SeqCst);
                let described = describe(&scene.launch(self.items));
                if described.is_error || was_destroyed {
                    return described;
                }
            }
            ObservedError::outcome("nothing interrupted the launches")
        })
    }

    fn ask(&self, first: First, setup: &DeviceSetup, scene: &mut Scene) -> ObservedError {
        let cooperative = along_y(1).0.cooperative();
        match first {
            First::Launch | First::MidWork => describe(&scene.launch(self.items)),
            First::Workspace => {
                let Scene { guard, stream, spiller, out, .. } = scene;
                describe(&spill(guard, spiller, stream, out, self.items, 256))
            }
            First::Synchronize => describe(&scene.guard.synchronize(&scene.stream)),
            First::Load => describe(&scene.guard.load(&setup.image("kernels"))),
            First::FreeMemory => describe(&scene.guard.free_memory()),
            First::Priorities => describe(&scene.guard.priorities()),
            First::Residency => describe(&scene.iota.occupancy(&cooperative)),
        }
    }
}

impl Scene {
    fn launch(&mut self, items: u64) -> Result<u64, gridguard::cuda::LaunchError> {
        count(&self.guard, &self.iota, &self.stream, &mut self.out, items)
    }
}

impl Case for Destroyed {
    fn name(&self) -> &'static str {
        match self.how {
            How::Reset => "reset",
            How::ResetElsewhere => "reset_by_another_thread",
            How::Release => "released_too_often",
            How::DestroyElsewhere => "destroyed_by_another_thread",
        }
    }

    fn needs_a_process(&self) -> bool {
        true
    }

    fn expected(&self, _ground: &RunEnvironment) -> Expected {
        let paths = match self.first {
            First::Launch | First::Workspace | First::MidWork => ["LaunchError::", "LaunchError::"],
            First::Residency => ["DriverError/", "DriverError/"],
            _ => ["CudaError::Driver/", "CudaError::Load/"],
        };
        Expected { codes: GONE.to_vec(), ..Expected::one_of(paths) }
    }

    fn inject(&self, setup: &DeviceSetup) -> Observed {
        let mut observed = Observed::default();
        let mut scene = self.scene(setup);
        for _ in 0..self.under_way {
            scene.launch(self.items).expect("the context is alive");
        }
        if self.first == First::MidWork {
            observed.error = self.mid_work(&mut scene);
        } else {
            let status = self.destroy(context(&scene.guard));
            observed.require(status == 0, || format!("destroying answered {status}"));
            observed.error = self.ask(self.first, setup, &mut scene);
        }
        for first in FIRSTS {
            let described = self.ask(first, setup, &mut scene);
            let gone = described.code.is_some_and(|code| GONE.contains(&code));
            observed
                .require(gone, || format!("afterwards {first:?} came to {}", described.outcome));
        }
        // The old context is gone completely before a new one is created.
        drop(scene);
        let renewed = Guard::cuda(0).map_err(|error| error.to_string());
        match renewed.and_then(|guard| counts_right(setup, &guard)) {
            // A race in the driver can leave an error that is not the guard's (H200: 719).
            Err(_) if self.first == First::MidWork => {}
            Err(error) => observed.complain(format!("a new guard: {error}")),
            Ok(()) => {}
        }
        observed
    }
}
