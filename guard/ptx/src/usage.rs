//! The values that each function and its callees read, and the reasons to refuse it.

use crate::body::Callee;
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
    /// Its direct callees.
    callees: Vec<Vec<usize>>,
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
        let ids = 0..module.functions.len();
        let Calls { callees, mut callers, by_address, outward } = Calls::of(module);
        let own = |id| module.definition(id).map(|(_, body)| body.reads).unwrap_or_default();
        let mut reads: Vec<Values> = ids.clone().map(own).collect();
        // A function is visited again only if it gained one of six values.
        spread(ids.clone().collect(), &callers, |id, caller| {
            let all = reads[caller].with(reads[id]);
            all != core::mem::replace(&mut reads[caller], all)
        });
        let own = |id| own_problem(module, id, outward[id], reads[id]).map(|problem| (id, problem));
        let mut problems: Vec<_> = ids.clone().map(own).collect();
        for (callee, calls) in by_address.iter().enumerate() {
            callers[callee].extend(calls.iter().map(|(caller, _)| *caller));
            for (caller, at) in calls.iter().filter(|_| !reads[callee].is_empty()) {
                let subject = module.functions[callee].name;
                let problem = Problem { reason: Reason::IndirectCallReadsGrid, subject, at: *at };
                problems[*caller].get_or_insert((*caller, problem));
            }
        }
        let open = ids.filter(|id| problems[*id].is_some()).collect();
        spread(open, &callers, |id, caller| {
            let is_new = problems[caller].is_none();
            problems[caller] = problems[caller].or(problems[id]);
            is_new
        });
        Self { reads, problems, callees }
    }

    /// Why the entry `id` is refused.
    pub(crate) fn refusal(&self, module: &Module<'a>, id: usize) -> Option<Refusal> {
        let (function, problem) = self.problems[id]?;
        Some(problem.in_function(module.functions[function].name))
    }

    /// Which functions need a form with additional parameters for the entries `of`.
    pub(crate) fn needed(&self, of: impl Iterator<Item = usize>) -> Vec<bool> {
        let mut needed = vec![false; self.reads.len()];
        spread(of.collect(), &self.callees, |_, callee| {
            let is_read = !self.reads[callee].is_empty();
            is_read && !core::mem::replace(&mut needed[callee], true)
        });
        needed
    }
}

/// Visits the neighbours of the functions `open`. If `visit` returns true, visits the neighbours of this neighbour,
/// too.
fn spread(
    mut open: Vec<usize>,
    neighbours: &[Vec<usize>],
    mut visit: impl FnMut(usize, usize) -> bool,
) {
    while let Some(id) = open.pop() {
        open.extend(neighbours[id].iter().filter(|next| visit(id, **next)));
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
        for id in 0..count {
            let Some((_, body)) = module.definition(id) else { continue };
            for Callee { name, at, is_direct } in body.calls.iter().copied() {
                let callee = module.resolve(name);
                match callee.filter(|callee| module.definition(*callee).is_some()) {
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
            }
        }
        calls
    }
}

/// The reason to refuse a function, without its callees.
fn own_problem<'a>(
    module: &Module<'a>,
    id: usize,
    outward: Option<Problem<'a>>,
    reads: Values,
) -> Option<Problem<'a>> {
    let (item, body) = module.definition(id)?;
    // Header and variables only matter for functions with forms.
    let has_forms = item.is_entry || !reads.is_empty();
    let of_form = item.header.problem.or(body.variable).filter(|_| has_forms);
    [body.problem, outward, of_form].into_iter().flatten().min_by_key(|problem| problem.at)
}
