/* ---- Graphs ---- */

enum { NODE_KERNEL = 0, NODE_COPY = 1, NODE_FILL = 2, NODE_CHILD = 4, NODE_ALLOCATION = 10 }; /* CUgraphNodeType */

/* Nodes are checked when they are added or set, or when their graph is instantiated. */
static bool checks_late(void) { return setting("GRIDGUARD_FAKE_LATE_NODES", 0); }

static CUresult node_error(const struct Op *op) {
    struct Launch l = op->launch;
    CHECK(dimension_error(op->function, &l, l.cluster[0]));
    return configuration_error(op->function, &l, l.cluster[0], sms_of_context());
}

/* The operation of a node with these parameters, which keeps its cluster. */
static CUresult set_node(struct Op *op, const CUkernelNodeParams *p, bool is_new) {
    REQUIRE(p, INVALID_VALUE);
    CUfunction f = p->function ? p->function : is_new ? p->kernel : NULL;
    if (f && f->of_kernel) f = f->of_kernel;
    REQUIRE(f && loaded(f->module), INVALID_VALUE);
    struct Op fresh = {.kind = KERNEL, .function = f, .launch = op->launch};
    memcpy(fresh.launch.grid, p->grid, sizeof p->grid);
    memcpy(fresh.launch.block, p->block, sizeof p->block);
    fresh.launch.shared = p->shared;
    if (!checks_late()) CHECK(node_error(&fresh));
    CHECK(pack(&fresh, p->params, p->extra));
    *op = fresh;
    return SUCCESS;
}

static CUgraphNode node_of(CUgraph graph, size_t index) {
    CUgraphNode node = make(sizeof *node);
    *node = (struct Node){graph, index};
    return node;
}

static CUresult add_node(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                         const CUkernelNodeParams *p, bool is_new) {
    CONTEXT;
    REQUIRE(node && graph && !graph->dead && (after || !count), INVALID_VALUE);
    struct Op op = {0};
    CHECK(set_node(&op, p, is_new));
    append(graph, &op);
    *node = node_of(graph, graph->count - 1);
    return SUCCESS;
}

/* Sets a node of a graph, or the one that stands for it in an executable graph. */
static CUresult change_node(CUgraph graph, CUgraphNode node, const CUkernelNodeParams *p, bool is_new) {
    CONTEXT;
    REQUIRE(node && graph && !graph->dead && node->index < graph->count, INVALID_VALUE);
    return set_node(&graph->ops[node->index], p, is_new);
}

static CUresult read_node(CUgraphNode node, CUkernelNodeParams *p, size_t bytes) {
    LOCKED;
    REQUIRE(node && p && node->graph->ops[node->index].kind == KERNEL, INVALID_VALUE);
    const struct Op *op = &node->graph->ops[node->index];
    CUkernelNodeParams whole = {.function = op->function, .shared = op->launch.shared};
    memcpy(whole.grid, op->launch.grid, sizeof whole.grid);
    memcpy(whole.block, op->launch.block, sizeof whole.block);
    memcpy(p, &whole, bytes);
    return SUCCESS;
}

static CUresult instantiate(CUgraphExec *exec, CUgraph graph) {
    REQUIRE(exec && graph && !graph->dead, INVALID_VALUE);
    for (size_t i = 0; i < graph->count; i++) {
        CUgraphExec child;
        if (graph->ops[i].kind == KERNEL) CHECK(node_error(&graph->ops[i]));
        if (graph->ops[i].kind == CHILD) CHECK(instantiate(&child, graph->ops[i].child));
    }
    *exec = make(sizeof **exec);
    for (size_t i = 0; i < graph->count; i++) append(*exec, &graph->ops[i]);
    return SUCCESS;
}

CALL(cuGraphCreate, (CUgraph *graph, unsigned flags), LIBRARY; REQUIRE(graph && !flags, INVALID_VALUE),
     *graph = make(sizeof **graph))
FORWARD(cuGraphAddKernelNode, (CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
        const CUkernelNodeParams *p), add_node(node, graph, after, count, p, false))
FORWARD(cuGraphKernelNodeSetParams, (CUgraphNode node, const CUkernelNodeParams *p),
        change_node(node ? node->graph : NULL, node, p, false))
FORWARD(cuGraphExecKernelNodeSetParams, (CUgraphExec exec, CUgraphNode node, const CUkernelNodeParams *p),
        change_node(exec, node, p, false))
FORWARD(cuGraphKernelNodeGetParams, (CUgraphNode node, CUkernelNodeParams *p),
        read_node(node, p, offsetof(CUkernelNodeParams, kernel)))
CALL(cuGraphAddChildGraphNode,
     (CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, CUgraph child),
     LIBRARY; REQUIRE(node && graph && child && (after || !count), INVALID_VALUE),
     append(graph, (&(struct Op){.kind = CHILD, .child = child})); *node = node_of(graph, graph->count - 1))
CALL(cuGraphChildGraphNodeGetGraph, (CUgraphNode node, CUgraph *child),
     LIBRARY; REQUIRE(node && child && node->graph->ops[node->index].kind == CHILD, INVALID_VALUE),
     *child = node->graph->ops[node->index].child)

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
    LIBRARY;
    REQUIRE(graph && !graph->dead && count, INVALID_VALUE);
    size_t most = *count;
    for (size_t i = 0; nodes && i < most; i++) nodes[i] = i < graph->count ? node_of(graph, i) : NULL;
    *count = nodes && most < graph->count ? most : graph->count;
    return SUCCESS;
}

CUresult cuGraphNodeGetType(CUgraphNode node, int *type) {
    static const int TYPES[] = {NODE_KERNEL, NODE_COPY, NODE_FILL, NODE_ALLOCATION, NODE_CHILD};
    LIBRARY;
    REQUIRE(node && type, INVALID_VALUE);
    *type = TYPES[node->graph->ops[node->index].kind];
    return SUCCESS;
}

CUresult cuGraphKernelNodeSetAttribute(CUgraphNode node, unsigned id, const void *value) {
    LIBRARY;
    REQUIRE(node && value && id == 4 /* cluster */, INVALID_VALUE);
    memcpy(node->graph->ops[node->index].launch.cluster, value, 3 * sizeof(unsigned));
    return SUCCESS;
}

CUresult cuGraphKernelNodeGetAttribute(CUgraphNode node, unsigned id, void *value) {
    LIBRARY;
    REQUIRE(node && value && (id == 2 || id == 4 || id == 8), INVALID_VALUE);
    const struct Launch *l = &node->graph->ops[node->index].launch;
    memset(value, 0, 64);
    if (id == 4) memcpy(value, l->cluster, sizeof l->cluster);
    if (id == 2) *(int *)value = l->cooperative;
    if (id == 8) *(int *)value = l->priority;
    return SUCCESS;
}

CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *failed, char *log, size_t bytes) {
    CONTEXT;
    CUresult answer = instantiate(exec, graph);
    if (failed) *failed = NULL;
    if (log && bytes) snprintf(log, bytes, answer ? "fake: not instantiated" : "");
    return answer;
}

FORWARD(cuGraphInstantiate, (CUgraphExec *exec, CUgraph graph, CUgraphNode *failed, char *log, size_t bytes),
        cuGraphInstantiate_v2(exec, graph, failed, log, bytes))

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
    enum { AUTO_FREE = 1, DEVICE_LAUNCH = 4, ALL = 15 };
    CONTEXT;
    REQUIRE(flags <= ALL && (~flags & (AUTO_FREE | DEVICE_LAUNCH)), INVALID_VALUE);
    return instantiate(exec, graph);
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream handle) {
    STREAM;
    REQUIRE(exec && !exec->dead, INVALID_VALUE);
    REQUIRE(!capture_of(stream), STREAM_CAPTURE_UNSUPPORTED); /* no graphs within graphs */
    note(stream, "graph %zu", exec->count);
    for (size_t i = 0; i < exec->count; i++) access_op(stream, &exec->ops[i]);
    for (size_t i = 0; i < exec->count; i++) CHECK(perform(&exec->ops[i], "graph"));
    return SUCCESS;
}

CALL(cuGraphUpload, (CUgraphExec exec, CUstream handle), STREAM,
     REQUIRE(exec && !exec->dead, INVALID_VALUE))
CALL(cuGraphDestroy, (CUgraph graph), LOCKED; REQUIRE(graph && !graph->dead, INVALID_VALUE),
     graph->dead = true)
FORWARD(cuGraphExecDestroy, (CUgraphExec exec), cuGraphDestroy(exec))

#ifndef FAKE_OLD
FORWARD(cuGraphAddKernelNode_v2, (CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
        const CUkernelNodeParams *p), add_node(node, graph, after, count, p, true))
FORWARD(cuGraphKernelNodeSetParams_v2, (CUgraphNode node, const CUkernelNodeParams *p),
        change_node(node ? node->graph : NULL, node, p, true))
FORWARD(cuGraphExecKernelNodeSetParams_v2, (CUgraphExec exec, CUgraphNode node, const CUkernelNodeParams *p),
        change_node(exec, node, p, true))
FORWARD(cuGraphKernelNodeGetParams_v2, (CUgraphNode node, CUkernelNodeParams *p), read_node(node, p, sizeof *p))

/* Of generic nodes those of kernels. */
static const CUkernelNodeParams *kernel_of(const CUgraphNodeParams *p) {
    return p && p->type == NODE_KERNEL ? &p->kernel : NULL;
}

FORWARD(cuGraphAddNode, (CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
        CUgraphNodeParams *p), add_node(node, graph, after, count, kernel_of(p), true))
FORWARD(cuGraphAddNode_v2, (CUgraphNode *node, CUgraph graph, const CUgraphNode *after, const void *edges,
        size_t count, CUgraphNodeParams *p), ((void)edges, add_node(node, graph, after, count, kernel_of(p), true)))
FORWARD(cuGraphNodeSetParams, (CUgraphNode node, CUgraphNodeParams *p),
        change_node(node ? node->graph : NULL, node, kernel_of(p), true))
FORWARD(cuGraphExecNodeSetParams, (CUgraphExec exec, CUgraphNode node, CUgraphNodeParams *p),
        change_node(exec, node, kernel_of(p), true))

CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, CUinstantiateParams *p) {
    CONTEXT;
    REQUIRE(p, INVALID_VALUE);
    CUresult answer = instantiate(exec, graph);
    p->result = answer != SUCCESS;
    p->failed = NULL;
    return answer;
}
#endif
