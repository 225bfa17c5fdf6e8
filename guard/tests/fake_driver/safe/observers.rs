//! Subscribers and recorders that begin captures, launch, change the current context, or panic.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, CudaStream};
use gridguard::cuda::{Args, Kernel, LaunchError};
use gridguard::profile::{Key, Profile};
use gridguard::{Axis, Dim3, Guard, LaunchRequest};
use gridguard_test_support::fake_driver::{launches, with_fake};
use metrics::{Counter, Gauge, Histogram, KeyName, Metadata, Recorder, SharedString, Unit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Subscriber};

use super::assert_ordered;
use crate::kernels::{context, guard, iota, items_along, kernel, plan_along, poisoned, read};

/// Acts at one of the observations of a call.
#[derive(Clone)]
struct Watcher {
    at: usize,
    seen: Arc<AtomicUsize>,
    act: Arc<dyn Fn() + Send + Sync>,
}

impl Watcher {
    fn observe(&self) {
        if self.seen.fetch_add(1, Ordering::Relaxed) == self.at {
            (self.act)();
        }
    }
}

impl Subscriber for Watcher {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        self.observe();
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {
        self.observe();
    }
    fn enter(&self, _: &Id) {
        self.observe();
    }
    fn exit(&self, _: &Id) {
        self.observe();
    }
}

impl Recorder for Watcher {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn register_counter(&self, _: &metrics::Key, _: &Metadata<'_>) -> Counter {
        self.observe();
        Counter::noop()
    }
    fn register_gauge(&self, _: &metrics::Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }
    fn register_histogram(&self, _: &metrics::Key, _: &Metadata<'_>) -> Histogram {
        self.observe();
        Histogram::noop()
    }
}

/// Calls `body` again and again, with `act` at its first observation, at its second, and so on to the
/// last, and checks the program after each. Returns how many observations there are.
fn at_each_observation(
    program: &Program,
    act: impl Fn() + Send + Sync + 'static,
    mut body: impl FnMut(),
) -> usize {
    let act: Arc<dyn Fn() + Send + Sync> = Arc::new(act);
    for at in 0.. {
        let seen = Arc::default();
        let watcher = Watcher { at, seen, act: Arc::clone(&act) };
        let recorder = watcher.clone();
        let seen = Arc::clone(&watcher.seen);
        tracing::subscriber::with_default(watcher, || {
            metrics::with_local_recorder(&recorder, &mut body);
        });
        program.assert_works();
        if seen.load(Ordering::Relaxed) <= at {
            return at;
        }
    }
    0
}

/// Calls `act` at each observation of every way to launch.
fn at_each_observation_of_every_way(act: impl Fn(&Arc<Program>) + Send + Sync + Copy + 'static) {
    let program = Arc::new(Program::new());
    for (name, way) in WAYS {
        let again = Arc::clone(&program);
        let observations = at_each_observation(
            &program,
            move || act(&again),
            || {
                let launched = way(&program, &program.owner);
                assert_eq!(launched.is_ok(), name != "rejected", "{name}: {launched:?}");
            },
        );
        assert!(observations > 0, "{name} is not observed");
    }
}

/// A guard, and what its launches use.
struct Program {
    guard: Arc<Guard>,
    kernel: Kernel,
    tuned: Kernel,
    spill: Kernel,
    wide: Kernel,
    stream: Arc<CudaStream>,
    owner: Arc<CudaStream>,
}

/// One way to launch over memory of the stream `owner`.
type Way = fn(&Program, &Arc<CudaStream>) -> Result<u64, LaunchError>;

const SPLIT: u64 = 65_536;

/// Every way, and how messages call it.
const WAYS: [(&str, Way); 6] = [
    ("whole", |program, owner| program.launch(&program.kernel, owner, 8, false)),
    ("split", |program, owner| program.launch(&program.kernel, owner, SPLIT, true)),
    ("rejected", |program, owner| program.launch(&program.kernel, owner, SPLIT, false)),
    ("tuned", |program, owner| program.launch(&program.tuned, owner, SPLIT, true)),
    ("planned", |program, owner| {
        let mut out = poisoned(owner, SPLIT);
        let mut args = Args::new(&program.stream);
        args.write_items(&mut out, 1).offset().length();
        program.guard.launch(&program.kernel, &plan_along(&program.kernel, Axis::Y, SPLIT), args)
    }),
    ("workspace", |program, owner| {
        let mut out = poisoned(owner, 64);
        let (request, batch) = items_along(Axis::Y, 64);
        let batch = batch.workspace(1000, 32_000);
        let mut args = Args::new(&program.stream);
        args.write_items(&mut out, 1).offset().length().workspace();
        let guard = &program.guard;
        guard.launch(&program.spill, (&request, &batch), args)
    }),
];

impl Program {
    fn new() -> Self {
        let guard = Arc::new(guard().with_profile(Arc::new(Profile::default())));
        let key = Key { kernel: "iota".into(), ..Key::default() };
        let kernel = kernel(&guard, "fake_iota_y");
        let tuned = kernel.clone().with_tuning(key, "items", &[]);
        let [spill, wide] =
            ["fake_spill_y", "wide"].map(|name| crate::kernels::kernel(&guard, name));
        let [stream, owner] = [(); 2].map(|()| context(&guard).new_stream().expect("a stream"));
        Self { guard, kernel, tuned, spill, wide, stream, owner }
    }

    fn launch(
        &self,
        kernel: &Kernel,
        owner: &Arc<CudaStream>,
        items: u64,
        with_batch: bool,
    ) -> Result<u64, LaunchError> {
        let mut out = poisoned(owner, items);
        let (request, batch) = items_along(Axis::Y, items);
        let mut args = Args::new(&self.stream);
        if with_batch {
            args.write_items(&mut out, 1).offset().length();
        } else {
            args.write(&mut out).value(0_u64).value(items);
        }
        self.guard.launch(kernel, (&request, with_batch.then_some(&batch)), args)
    }

    /// Checks that the stream still runs a launch correctly.
    fn assert_works(&self) {
        // What cudarc recorded of the captures.
        let _ = context(&self.guard).check_err();
        let mut out = poisoned(&self.owner, 64);
        let plan = plan_along(&self.kernel, Axis::Y, 64);
        let mut args = Args::new(&self.stream);
        args.write_items(&mut out, 1).offset().length();
        assert_eq!(self.guard.launch(&self.kernel, &plan, args), Ok(1));
        assert_eq!(read(&self.owner, &out), iota(64));
        assert_ordered();
    }
}

#[track_caller]
fn assert_nothing_is_replayed() {
    let replayed = launches().into_iter().find(|line| line.contains("stream=graph"));
    assert_eq!(replayed, None);
}

#[test]
fn a_capture_that_an_observer_begins_has_no_launch_and_memory_waits_for_the_others() {
    with_fake(&[], || {
        for mode in [
            CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED,
            CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
        ] {
            let program = Program::new();
            for (name, way) in WAYS {
                for owner in [&program.owner, &program.stream] {
                    let stream = Arc::clone(&program.stream);
                    let begin = move || stream.begin_capture(mode).expect("it is idle");
                    let observations = at_each_observation(&program, begin, || {
                        // The memory is freed before this returns.
                        let _ = way(&program, owner);
                        // It would return what cudarc recorded, and end nothing.
                        let _ = context(&program.guard).check_err();
                        let ended = program.stream.end_capture(CUgraphInstantiate_flags(0));
                        if let Ok(Some(graph)) = ended {
                            let _ = graph.launch();
                        }
                        assert_nothing_is_replayed();
                    });
                    assert!(observations > 0, "{name} is not observed");
                }
            }
        }
    });
}

#[test]
fn an_observer_may_launch_on_the_same_stream() {
    with_fake(&[], || {
        at_each_observation_of_every_way(|program| {
            let launched = program.launch(&program.kernel, &program.owner, 8, true);
            assert_eq!(launched, Ok(1));
        });
    });
}

#[test]
fn an_observer_may_make_another_context_current() {
    with_fake(&[("GRIDGUARD_FAKE_DEVICES", "2")], || {
        at_each_observation_of_every_way(|_| {
            let other = CudaContext::new(1).expect("a second device");
            other.bind_to_thread().expect("it is current");
        });
    });
}

#[test]
fn the_panic_of_an_observer_leaves_memory_in_order() {
    with_fake(&[], || {
        let program = Program::new();
        for (name, way) in WAYS {
            let panic = || panic!("an observer");
            let observations = at_each_observation(&program, panic, || {
                let _ = catch_unwind(AssertUnwindSafe(|| way(&program, &program.owner)));
            });
            assert!(observations > 0, "{name} is not observed");
        }
    });
}

#[test]
fn an_observer_may_drop_what_else_holds_the_guard() {
    with_fake(&[], || {
        let program = Program::new();
        let other = Mutex::new(Some(Arc::clone(&program.guard)));
        let let_go = move || drop(other.lock().unwrap_or_else(PoisonError::into_inner).take());
        at_each_observation(&program, let_go, || {
            assert_eq!(program.launch(&program.kernel, &program.owner, SPLIT, true), Ok(2));
        });
    });
}

/// The driver refuses the opt-in of a launch for an earlier launch's fault.
#[test]
fn the_observer_of_a_late_error_runs_after_the_launch() {
    with_fake(&[("GRIDGUARD_FAKE_FAULT_LAUNCH", "0")], || {
        let program = Arc::new(Program::new());
        let launch = |program: &Program| {
            let request = LaunchRequest::new(Dim3::ONE, Dim3::ONE).dynamic_shared_bytes(100_000);
            program.guard.launch(&program.wide, &request, Args::new(&program.stream))
        };
        let first = LaunchRequest::new(Dim3::ONE, Dim3::ONE);
        let launched = program.guard.launch(&program.wide, &first, Args::new(&program.stream));
        assert_eq!(launched, Ok(1));
        let again = Arc::clone(&program);
        let (sender, answers) = mpsc::channel();
        let (sender, answers) = (Mutex::new(sender), Mutex::new(answers));
        let act = move || {
            let (again, sender) = (Arc::clone(&again), sender.lock().expect("one").clone());
            thread::spawn(move || sender.send(launch(&again)));
            let answers = answers.lock().expect("one");
            let launched = answers.recv_timeout(Duration::from_secs(10));
            launched.expect("no lock is held").expect_err("the context is lost");
        };
        let act: Arc<dyn Fn() + Send + Sync> = Arc::new(act);
        for at in 0..2 {
            let watcher = Watcher { at, seen: Arc::default(), act: Arc::clone(&act) };
            tracing::subscriber::with_default(watcher.clone(), || {
                launch(&program).expect_err("the context is lost");
            });
            assert_eq!(watcher.seen.load(Ordering::Relaxed), 1, "once for the error");
        }
    });
}
