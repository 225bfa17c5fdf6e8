//! Kernel nodes of graphs. A driver may refuse a node's launch configuration when the node is added or set, or
//! when the graph is instantiated.
//!
//! An accepted node counts as one launch, like a launch that a stream captures. Launches of a replay are not counted.

use core::ffi::{c_int, c_void};
use core::ptr;

use gridguard::abi::{CLUSTER_DIMENSION, COOPERATIVE};

use crate::driver::abi::{Handle, SUCCESS, Status};
use crate::driver::functions::{FUNCTIONS, replacements};
use crate::driver::node::{
    AttributeValue, KERNEL, KernelNode, Node, OldKernelNode, of_any_kind, of_kernel,
};
use crate::driver::request::{Launch, MAX_THREADS, is_oversized};
use crate::driver::{Driver, written};
use crate::hook::launch::{accepted, outermost, refused};
use crate::hook::{outcome, session};
use crate::process::guarded;
use crate::refuse::late;
use crate::watch::recent;

/// Defines replacements of functions whose last argument describes a node.
macro_rules! nodes {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*; $node:ty), $launch_of:ident;)*) => {
        replacements! {$(
            $(#[$doc])*
            $name($($argument: $type,)* parameters: $node)
            |through, call| {
                // SAFETY: the caller's own argument.
                watched(call, || unsafe { $launch_of(through, parameters) })
            }
        )*}
    };
}

nodes! {
    /// `cuGraphAddKernelNode`.
    add_kernel_node(
        node: *mut Handle, graph: Handle, dependencies: *const Handle, count: usize; *const OldKernelNode
    ), of_kernel;
    /// `cuGraphAddNode`.
    add_node(
        node: *mut Handle, graph: Handle, dependencies: *const Handle, count: usize; *mut Node
    ), of_any_kind;
    /// `cuGraphAddNode` since CUDA 12.3, with data of the edges.
    add_node_with_edges(
        node: *mut Handle, graph: Handle, dependencies: *const Handle, edges: *const c_void, count: usize;
        *mut Node
    ), of_any_kind;
    /// `cuGraphKernelNodeSetParams`.
    set_kernel_node(node: Handle; *const OldKernelNode), of_kernel;
    /// `cuGraphNodeSetParams`.
    set_node(node: Handle; *mut Node), of_any_kind;
    /// `cuGraphExecKernelNodeSetParams`.
    set_exec_kernel_node(exec: Handle, node: Handle; *const OldKernelNode), of_kernel;
    /// `cuGraphExecNodeSetParams`.
    set_exec_node(exec: Handle, node: Handle; *mut Node), of_any_kind;
}

replacements! {
    /// All versions of `cuGraphInstantiate`, `cuGraphInstantiateWithFlags` and `cuGraphInstantiateWithParams`. A
    /// version with fewer arguments does not read the registers of the others.
    instantiate(exec: *mut Handle, graph: Handle, first: usize, second: usize, third: usize)
    |through, call| {
        outermost(call, |status| {
            if status != SUCCESS {
                not_instantiated(through, graph, status);
            }
            status
        })
    }

    /// `cuGraphLaunch`. Its kernels are suspects of late errors.
    launch(exec: Handle, stream: Handle)
    |through, call| {
        outermost(call, |status| {
            if status != SUCCESS {
                late::check(through, status);
                return status;
            }
            recent::record(recent::GRAPH, [0; 3], stream.addr(), FUNCTIONS[H].per_thread);
            session::serve(|| Launch::plain(through, ptr::null_mut(), [0; 3], [0; 3], (0, stream)), None);
            status
        })
    }
}

/// Calls the original, and counts the kernel node that `describe` returns, or explains its refusal.
fn watched(call: impl Fn() -> Status, describe: impl FnOnce() -> Option<Launch>) -> Status {
    outermost(&call, |status| {
        match describe() {
            Some(launch) if status != SUCCESS => return refused(launch, status, &call, None),
            // Its graph will not be instantiated.
            Some(launch) if is_refused_everywhere(&launch) => {}
            Some(launch) => accepted(|| launch, None),
            None => {}
        }
        status
    })
}

/// Whether every device refuses the launch.
fn is_refused_everywhere(launch: &Launch) -> bool {
    let Launch { grid, .. } = launch;
    is_oversized(*grid) || grid.contains(&0) || !(1..=MAX_THREADS).contains(&launch.threads())
}

/// Explains the kernel nodes that prevented the instantiation of a graph.
#[cold]
fn not_instantiated(through: (usize, usize), graph: Handle, status: Status) {
    if graph.is_null() || outcome::is_no_refusal(through, status) {
        return;
    }
    guarded::run(|| {
        // SAFETY: the program is instantiating the graph just now.
        let nodes = unsafe { kernel_nodes(through, graph) };
        nodes.iter().for_each(|launch| outcome::refused(launch, status, None));
    });
}

/// The kernel nodes of a graph and of those within it, up to [`MAX_NODES`] nodes of any kind.
///
/// # Safety
///
/// The graph exists, and no other thread changes it.
unsafe fn kernel_nodes(through: (usize, usize), graph: Handle) -> Vec<Launch> {
    let driver = Driver::of(through);
    let (mut launches, mut graphs, mut remaining) = (Vec::new(), vec![graph], MAX_NODES);
    while let Some(graph) = graphs.pop() {
        // SAFETY: by this function's contract.
        let nodes = unsafe { driver.nodes_of(graph, remaining) };
        remaining -= nodes.len();
        for node in nodes {
            // SAFETY: a node of the graph.
            match unsafe { driver.kind_of(node) } {
                // SAFETY: a node of the graph.
                Some(KERNEL) => launches.extend(unsafe { driver.launch_of(through, node) }),
                // SAFETY: a node of the graph.
                Some(GRAPH) => graphs.extend(unsafe { driver.graph_within(node) }),
                _ => {}
            }
        }
    }
    launches
}

/// Queries of existing graphs and nodes.
impl Driver {
    unsafe fn nodes_of(&self, graph: Handle, most: usize) -> Vec<Handle> {
        let Some(ask) = self.graph_nodes else { return Vec::new() };
        let mut count = 0;
        // SAFETY: the graph exists; without an array the driver writes the number of nodes.
        let asked = unsafe { ask(graph, ptr::null_mut(), &raw mut count) } == SUCCESS;
        let mut nodes = vec![ptr::null_mut(); count.min(most)];
        let mut count = nodes.len();
        // SAFETY: the array has `count` elements.
        let asked = asked && unsafe { ask(graph, nodes.as_mut_ptr(), &raw mut count) } == SUCCESS;
        nodes.truncate(if asked { count } else { 0 });
        nodes
    }

    unsafe fn kind_of(&self, node: Handle) -> Option<c_int> {
        // SAFETY: the node exists; the pointer is to a live integer.
        written(0, |kind| Some(unsafe { self.node_kind?(node, kind) }))
    }

    unsafe fn graph_within(&self, node: Handle) -> Option<Handle> {
        // SAFETY: the node exists; the pointer is to a live handle.
        let graph =
            written(ptr::null_mut(), |graph| Some(unsafe { self.child_graph?(node, graph) }));
        graph.filter(|graph| !graph.is_null())
    }

    unsafe fn launch_of(&self, through: (usize, usize), node: Handle) -> Option<Launch> {
        // SAFETY: the node exists; each function writes its own kind of parameters.
        let parameters = written(KernelNode::NONE, |into| unsafe {
            Some(match self.kernel_node {
                Some(ask) => ask(node, into),
                None => self.old_kernel_node?(node, into.cast()),
            })
        });
        let mut launch = parameters?.launch(through);
        let attribute = |id| {
            // SAFETY: the node exists; the pointer is to a live value.
            written([0; 16], |value: *mut AttributeValue| unsafe {
                Some(self.kernel_node_attribute?(node, id, value))
            })
        };
        launch.cooperative = attribute(COOPERATIVE).is_some_and(|[applies, ..]| applies != 0);
        // Without clusters the driver may return one block as well as none.
        let cluster = attribute(CLUSTER_DIMENSION).map(|[x, y, z, ..]| [x, y, z]);
        launch.cluster = cluster.filter(|size| size.iter().any(|blocks| *blocks > 1));
        Some(launch)
    }
}

/// `CU_GRAPH_NODE_TYPE_GRAPH`.
const GRAPH: c_int = 4;
/// The most nodes of a graph that are examined.
const MAX_NODES: usize = 65_536;
