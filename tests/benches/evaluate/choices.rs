//! Compares the choices of several processes that tune the same problems.

use std::env;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use gridguard::Guard;
use gridguard::profile::{Environment, Objective};
use gridguard_autotune::{Budget, Candidate, tune};
use serde::{Deserialize, Serialize};

use super::exhaustive::{Choices, ExhaustiveSearch, FinalChoice, PairedRatio};
use super::summary::ProblemSet;
use super::workload::LocalBench;
use super::{EvaluationProblem, Options, Outcome};

/// The choice of one process for a problem.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Choice {
    pub(crate) problem: String,
    pub(crate) winner: Candidate,
    pub(crate) evaluations: u64,
}

/// All results.
#[derive(Debug, Serialize)]
pub(crate) struct ChoicesDocument {
    device: String,
    driver: String,
    date: String,
    processes: usize,
    /// The searches of all processes, and how many made the most frequent choice of their problem.
    pub(crate) searches: usize,
    pub(crate) equal: usize,
    /// Over all choices: the largest fraction by which one is slower than the best of an exhaustive search, and how many
    /// are more than 2 % slower with confidence.
    pub(crate) regret_worst: f64,
    pub(crate) regrets_above_margin: usize,
    /// Choices that are slower than the default with confidence, in alternating pairs.
    pub(crate) slower_than_default: usize,
    pub(crate) problems: Vec<ProblemChoices>,
    wall_time_s: f64,
}

/// The choices for one problem.
#[derive(Debug, Serialize)]
pub(crate) struct ProblemChoices {
    problem: String,
    candidates: usize,
    evaluations_median: u64,
    pub(crate) choices: Vec<FinalChoice>,
    /// The time of each choice over the default's; `None` for the default itself.
    against_default: Vec<Option<PairedRatio>>,
}

impl Options {
    /// Tunes each problem once, from its default.
    pub(crate) fn winners(&self) -> Outcome<Vec<Choice>> {
        let (guard, _) = self.guard()?;
        let bench = LocalBench::new(Arc::clone(&guard), self.policy, false)?;
        let search = |problem: EvaluationProblem| {
            let (mut measurer, mut space) = problem.open(&bench, &guard)?;
            let (objective, budget) = (Objective::Throughput, Budget::default());
            let outcome = tune(measurer.as_mut(), &mut space, objective, &budget, &mut ())?;
            let (winner, evaluations) = (outcome.winner, outcome.evaluations);
            Ok(Choice { problem: problem.to_string(), winner, evaluations })
        };
        self.compared(&guard)?.into_iter().map(search).collect()
    }

    /// Runs processes one after another until there are `processes`, or the time limit is over, and compares their
    /// choices.
    pub(crate) fn choices(&self, processes: u32) -> Outcome<ChoicesDocument> {
        let start = Instant::now();
        let mut found = Vec::new();
        for _ in 0..processes {
            if self.budget.is_some_and(|limit| start.elapsed() >= limit.into()) {
                break;
            }
            let mut command = Command::new(env::current_exe()?);
            command.args(["--winners", "--device", &self.device, "--gpu", &self.gpu]);
            command.arg("--policy").arg(self.policy.to_string());
            command.args(self.kernels.iter().flat_map(|name| ["--kernel", name]));
            let output = command.stderr(Stdio::inherit()).output()?;
            if !output.status.success() {
                return Err(format!("a process ended with {}", output.status).into());
            }
            found.push(serde_json::from_slice(&output.stdout)?);
        }
        let document = self.compare(&found)?;
        Ok(ChoicesDocument { wall_time_s: start.elapsed().as_secs_f64(), ..document })
    }

    /// Compares the choices of several processes, and measures each distinct one against the best and the default.
    pub(crate) fn compare(&self, processes: &[Vec<Choice>]) -> Outcome<ChoicesDocument> {
        let (guard, device) = self.guard()?;
        let bench = LocalBench::new(Arc::clone(&guard), self.policy, false)?;
        let measure = |problem| self.measure(&bench, &guard, problem, processes);
        let problems = self.compared(&guard)?.into_iter().map(measure);
        let problems = problems.collect::<Outcome<Vec<ProblemChoices>>>()?;
        let choices = || problems.iter().flat_map(|problem| &problem.choices);
        let most = |problem: &ProblemChoices| {
            problem.choices.iter().map(|choice| choice.searches).max().unwrap_or(0)
        };
        let above = |ratio: &Option<PairedRatio>, margin| ratio.is_some_and(|it| it.low > margin);
        let defaults = problems.iter().flat_map(|problem| &problem.against_default);
        let Environment { driver, .. } = guard.environment();
        Ok(ChoicesDocument {
            device,
            driver,
            date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            processes: processes.len(),
            searches: choices().map(|choice| choice.searches).sum(),
            equal: problems.iter().map(most).sum(),
            regret_worst: choices().map(FinalChoice::regret).fold(0.0, f64::max),
            regrets_above_margin: choices().filter(|one| above(&one.against_best, 1.02)).count(),
            slower_than_default: defaults.filter(|ratio| above(ratio, 1.0)).count(),
            problems,
            wall_time_s: 0.0,
        })
    }

    fn measure(
        &self,
        bench: &LocalBench,
        guard: &Arc<Guard>,
        problem: EvaluationProblem,
        processes: &[Vec<Choice>],
    ) -> Outcome<ProblemChoices> {
        let name = problem.to_string();
        let of_problem = |choice: &&Choice| choice.problem == name;
        let made: Vec<&Choice> = processes.iter().flatten().filter(of_problem).collect();
        let (mut measurer, space) = problem.open(bench, guard)?;
        let measurer = measurer.as_mut();
        let exhaustive = ExhaustiveSearch::new(measurer, &space, self.samples)?;
        let mut choices = Choices::new(&exhaustive, self.pairs);
        for Choice { winner, .. } in &made {
            choices.regret(measurer, winner)?;
        }
        let choices = choices.choices;
        let mut against_default = Vec::new();
        for FinalChoice { candidate, .. } in &choices {
            let default = space.default().filter(|default| *default != candidate);
            let ratio =
                default.map(|one| PairedRatio::measure(measurer, candidate, one, self.pairs));
            against_default.push(ratio.transpose()?);
        }
        let mut evaluations: Vec<u64> = made.iter().map(|choice| choice.evaluations).collect();
        evaluations.sort_unstable();
        Ok(ProblemChoices {
            problem: name,
            candidates: exhaustive.medians.len(),
            evaluations_median: evaluations.get(evaluations.len() / 2).copied().unwrap_or(0),
            choices,
            against_default,
        })
    }

    /// The shipped problems, with 20 processes 500 searches. On the host, which has few problems, all of them.
    fn compared(&self, guard: &Guard) -> Outcome<Vec<EvaluationProblem>> {
        let mut problems = self.problems(guard)?;
        problems.retain(|problem| !guard.is_cuda() || problem.set() == ProblemSet::TunedDefaults);
        Ok(problems)
    }
}
