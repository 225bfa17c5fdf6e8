//! Threads that start the same work at the same time.

use std::sync::Barrier;

/// Threads of a race.
pub const THREADS: usize = 8;

/// Runs `work` on [`THREADS`] threads, all started together, and returns their results in order.
///
/// # Panics
///
/// If `work` does.
pub fn race<T: Send>(work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let start = Barrier::new(THREADS);
    std::thread::scope(|scope| {
        let begin = |thread| {
            let (start, work) = (&start, &work);
            scope.spawn(move || {
                start.wait();
                work(thread)
            })
        };
        let threads: Vec<_> = (0..THREADS).map(begin).collect();
        threads.into_iter().map(|thread| thread.join().expect("it does not panic")).collect()
    })
}
