//! What the program says, one labelled line a fact.

use gridguard::profile::TunedChoice;
use gridguard::{Guard, LaunchRequest, Plan, ValidLaunch, Violations};
use gridguard_kernels::Element;
use gridguard_kernels::temporal_attention::{Shape, TemporalAttention};

use crate::backend::{Backend, Timing};
use crate::verify::Verdict;

/// Chunks that are shown; the rest is counted.
const SHOWN: usize = 8;

pub(crate) fn device(guard: &Guard, backend: &Backend) {
    let limits = guard.limits();
    let capability = limits.compute_capability;
    match backend {
        Backend::Device { .. } => {
            println!("device   {}, compute capability {capability}", limits.name);
        }
        Backend::Host { reason } => {
            println!("device   the host, under the limits of {} ({capability})", limits.name);
            if let Some(reason) = reason {
                println!("         because {reason}");
            }
        }
    }
}

pub(crate) fn launch(attention: &TemporalAttention, request: &LaunchRequest) {
    let Shape { items, heads, frames, head_dim } = attention.shape();
    println!(
        "problem  temporal attention, {items} items x {heads} heads, {frames} frames, head dim \
         {head_dim}, {}",
        attention.element()
    );
    println!("kernel   {}", attention.variant());
    println!("launch   grid {}, block {}, items x heads on y", request.grid, request.block);
}

pub(crate) fn naive(verdict: Result<ValidLaunch, Violations>) {
    match verdict {
        Ok(_) => println!("as it is legal"),
        Err(violations) => lines("as it is", "refused: ", &violations),
    }
}

pub(crate) fn rejected(violations: &Violations) {
    lines("plan", "impossible: ", violations);
}

fn lines(label: &str, verdict: &str, violations: &Violations) {
    for violation in violations {
        println!("{label:8} {verdict}{violation} [{}]", violation.rule);
    }
}

pub(crate) fn profile(guard: &Guard, answer: &TunedChoice<'_>) {
    if guard.profile().is_none_or(|profile| profile.is_empty()) {
        let whose = if guard.is_cuda() { "this device" } else { "the host" };
        println!("profile  none of {whose}: the planner chooses");
        return;
    }
    match (answer.entry, answer.layer) {
        (Some(entry), Some(layer)) => {
            let date = entry.found.date.split('T').next().unwrap_or_default();
            let (matched, choice) = (answer.matched, entry.choice);
            let candidates = entry.found.candidates;
            println!("profile  {matched}, {layer}: {choice}, of {candidates} measured on {date}");
        }
        _ => println!("profile  {}", answer.matched),
    }
}

pub(crate) fn plan(plan: &Plan) {
    let launches = plan.len();
    let plural = if launches == 1 { "" } else { "es" };
    println!("plan     {}, {launches} launch{plural}", plan.strategy());
    for planned in plan.launches().take(SHOWN) {
        let (chunk, grid) = (planned.chunk, planned.launch.grid());
        let [x, y, z] = grid;
        println!("         items {}..{}, grid {x} x {y} x {z}", chunk.start, chunk.end());
    }
    let more = plan.launches().len().saturating_sub(SHOWN);
    if more > 0 {
        println!("         and {more} more");
    }
}

pub(crate) fn timing<T: Element>(shape: &Shape, timing: &Timing) {
    let Timing { launches, time, runs, flat } = timing;
    let seconds = time.as_secs_f64();
    let rate = gigabytes(shape.least_bytes(T::TYPE)) / seconds;
    let how = if *runs > 1 { format!(", median of {runs} runs") } else { String::new() };
    if *launches == 0 {
        println!("time     nothing to launch");
        return;
    }
    println!("time     {time:.3?} for {launches} launches{how}, {rate:.1} GB/s of q, k, v and out");
    if let Some(flat) = flat {
        let ratio = seconds / flat.as_secs_f64();
        println!("         {ratio:.3} of the same work in one launch on x ({flat:.3?})");
    }
}

#[allow(clippy::as_conversions, clippy::cast_precision_loss, reason = "a figure to read")]
fn gigabytes(bytes: u128) -> f64 {
    bytes as f64 / 1e9
}

pub(crate) fn verdict(verdict: &Verdict) {
    let Verdict { boundaries, sampled, relative, tolerance, not_finite, holds } = verdict;
    println!(
        "check    {boundaries} problems at chunk boundaries and {sampled} at random against f64: \
         relative error {relative:.1e}, allowed {tolerance:.0e}"
    );
    if *not_finite > 0 {
        println!("         {not_finite} elements are not finite");
    }
    println!("result   {}", if *holds { "right" } else { "WRONG" });
}
