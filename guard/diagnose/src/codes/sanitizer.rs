//! Errors that the tools of compute-sanitizer report, other than invalid accesses.

use crate::failure::{KnownFailure, Origin};

const fn tool(name: &'static str) -> KnownFailure {
    KnownFailure::new(Origin::Sanitizer, name)
}

pub(super) const FAILURES: &[KnownFailure] = &[
    tool("racecheck hazard")
        .says("race reported between write access")
        .says("race reported between read access")
        .says("potential raw hazard detected")
        .says("potential war hazard detected")
        .says("potential waw hazard detected")
        .means(
            "threads of a block access the same shared memory in no order, and one of them writes",
        )
        .cause("the block has no barrier between the two accesses that the report names")
        .fix("put __syncthreads() between the two accesses, or __syncwarp() within a warp"),
    tool("initcheck error")
        .says("uninitialized __global__ memory read")
        .says("uninitialized __shared__ memory read")
        .means("a kernel reads memory that nothing wrote")
        .cause("the buffer is not filled before the launch, or only in part")
        .fix(
            "set it with cudaMemset or copy all of it, and compare the index with the part written",
        ),
    tool("synccheck error")
        .says("divergent thread(s) in block")
        .says("divergent thread(s) in warp")
        .says("barrier error detected. invalid arguments")
        .means("not all threads that a barrier waits for reach it")
        .cause("__syncthreads() or __syncwarp() is in a branch, or after a return, of some threads")
        .fix("move it to code that all threads run, or pass the mask of the threads that run it"),
];
