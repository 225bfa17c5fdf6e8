//! The values that each function reads, and its reasons for a refusal, including those of its callees.

use crate::error::Position;
use crate::header::Problem;
use crate::lexer::lossy;
use crate::module::Module;
use crate::refusal::{Reason, Refusal};
use crate::special::{Values, refused_external};

/// For each function of a module, by its number.
#[derive(Debug)]
pub(crate) struct Usage<'a> {
    /// The block indices and grid sizes that it reads, itself or through direct calls.
    pub(crate) reads: Vec<Values>,
    /// The first reason to refuse it, and the number of the function with this reason.
    problems: Vec<Option<(usize, Problem<'a>)>>,
    calls: Calls<'a>,
}

/// Calls between the functions of a module that have a body.
#[derive(Debug)]
struct Calls<'a> {
    /// The direct callees of each function.
    callees: Vec<Vec<usize>>,
    /// The direct callers of each function.
    callers: Vec<Vec<usize>>,
    /// The functions that may call each function by address, and the positions.
    by_address: Vec<Vec<(usize, Position)>>,
    /// The first call of each function to a function outside of the module.
    outward: Vec<Option<Problem<'a>>>,
}

impl<'a> Usage<'a> {
    pub(crate) fn of(module: &Module<'a>) -> Self {
        let calls = Calls::of(module);
        let reads = spread_reads(module, &calls);
        let mut problems: Vec<_> = (0..module.functions.len())
            .map(|id| own_problem(module, &calls, id, reads[id]).map(|problem| (id, problem)))
            .collect();
        for (callee, callers) in calls.by_address.iter().enumerate() {
            if reads[callee].is_empty() {
                continue;
            }
            for (caller, at) in callers {
                let subject = module.functions[callee].name;
                let problem = Problem { reason: Reason::IndirectCallReadsGrid, subject, at: *at };
                problems[*caller].get_or_insert((*caller, problem));
            }
        }
        let mut usage = Self { reads, problems, calls };
        usage.spread_problems();
        usage
    }

    /// Why the entry `id` is refused.
    pub(crate) fn refusal(&self, module: &Module<'a>, id: usize) -> Option<Refusal> {
        let (function, problem) = self.problems[id]?;
        Some(problem.in_function(module.functions[function].name))
    }

    /// Which functions need a form with additional parameters for the entries `of`.
    pub(crate) fn needed(&self, of: impl Iterator<Item = usize>) -> Vec<bool> {
        let mut needed = vec![false; self.reads.len()];
        let mut open: Vec<usize> = of.collect();
        while let Some(id) = open.pop() {
            for callee in &self.calls.callees[id] {
                if !self.reads[*callee].is_empty() && !needed[*callee] {
                    needed[*callee] = true;
                    open.push(*callee);
                }
            }
        }
        needed
    }

    /// Passes problems on to callers.
    fn spread_problems(&mut self) {
        let ids = 0..self.problems.len();
        let mut open: Vec<usize> = ids.filter(|id| self.problems[*id].is_some()).collect();
        while let Some(id) = open.pop() {
            let by_address = self.calls.by_address[id].iter().map(|(caller, _)| *caller);
            for caller in self.calls.callers[id].iter().copied().chain(by_address) {
                if self.problems[caller].is_none() {
                    self.problems[caller] = self.problems[id];
                    open.push(caller);
                }
            }
        }
    }
}

impl<'a> Problem<'a> {
    /// The refusal of an entry, whose problem is in the function called `name`.
    pub(crate) fn in_function(&self, name: &[u8]) -> Refusal {
        let Self { reason, subject, at } = *self;
        Refusal { reason, subject: lossy(subject), function: lossy(name), at }
    }
}

impl<'a> Calls<'a> {
    fn of(module: &Module<'a>) -> Self {
        let count = module.functions.len();
        let mut calls = Self {
            callees: vec![Vec::new(); count],
            callers: vec![Vec::new(); count],
            by_address: vec![Vec::new(); count],
            outward: vec![None; count],
        };
        for (id, function) in module.functions.iter().enumerate() {
            let Some((_, body)) = &function.definition else { continue };
            let mut add = |(name, at), is_direct| {
                let callee = module.resolve(name);
                match callee.filter(|callee| module.functions[*callee].definition.is_some()) {
                    Some(callee) if is_direct => {
                        calls.callees[id].push(callee);
                        calls.callers[callee].push(id);
                    }
                    Some(callee) => calls.by_address[callee].push((id, at)),
                    None => {
                        let problem = |reason| Problem { reason, subject: name, at };
                        let found = refused_external(name).map(problem);
                        calls.outward[id] = calls.outward[id].or(found);
                    }
                }
            };
            body.calls.iter().for_each(|call| add(*call, true));
            body.by_address.iter().for_each(|call| add(*call, false));
        }
        calls
    }
}

/// The values that each function reads, itself and through its callees.
fn spread_reads(module: &Module<'_>, calls: &Calls<'_>) -> Vec<Values> {
    let body = |id: usize| module.functions[id].definition.as_ref().map(|(_, body)| body);
    let mut open: Vec<usize> = (0..module.functions.len()).collect();
    let mut reads: Vec<Values> =
        open.iter().map(|id| body(*id).map(|body| body.reads).unwrap_or_default()).collect();
    // A function is visited again only if it gained one of six values.
    while let Some(id) = open.pop() {
        for caller in &calls.callers[id] {
            let all = reads[*caller].with(reads[id]);
            if all != reads[*caller] {
                reads[*caller] = all;
                open.push(*caller);
            }
        }
    }
    reads
}

/// The reason to refuse a function, without its callees.
fn own_problem<'a>(
    module: &Module<'a>,
    calls: &Calls<'a>,
    id: usize,
    reads: Values,
) -> Option<Problem<'a>> {
    let (item, body) = module.functions[id].definition.as_ref()?;
    let item = &module.items[*item];
    // Header and variables only matter for functions with forms.
    let has_forms = item.is_entry || !reads.is_empty();
    let of_form = item.header.problem.or(body.variable).filter(|_| has_forms);
    let all = [body.problem, calls.outward[id], of_form];
    all.into_iter().flatten().min_by_key(|problem| problem.at)
}
