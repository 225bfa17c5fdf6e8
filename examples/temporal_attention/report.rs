//! The output of the program: one labelled line per fact.

use gridguard::profile::TunedChoice;
use gridguard::{Guard, LaunchRequest, Plan, ValidLaunch, Violations};
use gridguard_kernels::temporal_attention::{Shape, TemporalAttention};
use gridguard_kernels::{Element, Operation as _};

use crate::backend::{Backend, Timing};

/// The most chunks that are listed.
const SHOWN: u64 = 8;

pub(crate) fn device(guard: &Guard, backend: &Backend) {
    let limits = guard.limits();
    let capability = limits.compute_capability;
    match backend {
        Backend::Device { .. } => {
            println!("device   {}, compute capability {capability}", limits.name);
        }
        Backend::Host { reason } => {
            println!(
                "device   the host, under the limits of {} (compute capability {capability})",
                limits.name
            );
            if let Some(reason) = reason {
                println!("         no GPU is used: {reason}");
            }
        }
    }
}

pub(crate) fn launch(attention: &TemporalAttention, request: &LaunchRequest) {
    let [items, heads, frames, head_dim] = attention.shape().dims();
    println!(
        "problem  temporal attention, {items} items x {heads} heads, {frames} frames, head dim \
         {head_dim}, {}",
        attention.dtypes()
    );
    println!("kernel   variant {}", attention.variant());
    println!("launch   grid {}, block {}, items x heads on y", request.grid, request.block);
}

pub(crate) fn unsplit(validated: &Result<ValidLaunch, Violations>) {
    match validated {
        Ok(_) => println!("unsplit  launch legal"),
        Err(violations) => rejected("unsplit  launch", violations),
    }
}

/// Prints why `what` was rejected.
pub(crate) fn rejected(what: &str, violations: &Violations) {
    for violation in violations {
        println!("{what} rejected: {violation} [{}]", violation.rule);
    }
}

pub(crate) fn profile(guard: &Guard, tuned: &TunedChoice<'_>) {
    if guard.profile().is_none_or(|profile| profile.is_empty()) {
        let device = if guard.is_cuda() { "this device" } else { "the host" };
        println!("profile  none for {device}, so the planner chooses");
        return;
    }
    match (tuned.entry, tuned.layer) {
        (Some(entry), Some(layer)) => {
            let date = entry.found.date.split('T').next().unwrap_or_default();
            let (matched, choice) = (tuned.matched, entry.choice);
            let candidates = entry.found.candidates;
            println!(
                "profile  {matched} ({layer}): {choice}, the best of {candidates} candidates on \
                 {date}"
            );
        }
        _ => println!("profile  {}", tuned.matched),
    }
}

pub(crate) fn plan(plan: &Plan) {
    let launches = plan.len();
    let plural = if launches == 1 { "" } else { "es" };
    println!("plan     {}, {launches} launch{plural}", plan.strategy());
    for planned in plan.launches().take_while(|planned| planned.chunk.index < SHOWN) {
        let (chunk, grid) = (planned.chunk, planned.launch.grid());
        let [x, y, z] = grid;
        println!("         items {}..{}, grid {x} x {y} x {z}", chunk.start, chunk.end());
    }
    let more = launches.saturating_sub(SHOWN);
    if more > 0 {
        println!("         and {more} more");
    }
}

pub(crate) fn timing<T: Element>(shape: &Shape, timing: &Timing) {
    let Timing { launches, time, runs, flat } = timing;
    let seconds = time.as_secs_f64();
    let rate = gigabytes(shape.least_bytes(T::TYPE)) / seconds;
    if *launches == 0 {
        println!("time     nothing to launch");
        return;
    }
    let median = if *runs > 1 { format!(", median of {runs} runs") } else { String::new() };
    let plural = if *launches == 1 { "" } else { "es" };
    println!(
        "time     {time:.3?} for {launches} launch{plural}{median}: {rate:.1} GB/s of q, k, v and \
         out"
    );
    if let Some(flat) = flat {
        let ratio = seconds / flat.as_secs_f64();
        println!("         {ratio:.3} times as long as a single launch on x ({flat:.3?})");
    }
}

#[allow(clippy::as_conversions, clippy::cast_precision_loss, reason = "rounded for display")]
fn gigabytes(bytes: u128) -> f64 {
    bytes as f64 / 1e9
}
