/* ---- Captures ---- */

/* The calls that this thread may make during captures. */
static _Thread_local int interaction = MODE_GLOBAL;

CUresult cuThreadExchangeStreamCaptureMode(int *mode) {
    LIBRARY;
    REQUIRE(mode && *mode >= MODE_GLOBAL && *mode <= MODE_RELAXED, INVALID_VALUE);
    int before = interaction;
    interaction = *mode;
    *mode = before;
    return SUCCESS;
}

/* For calls that are illegal during a capture: they fail, and invalidate the capture. */
static CUresult capture_error(void) {
    CUresult answer = SUCCESS;
    if (interaction == MODE_RELAXED) return SUCCESS;
    for (struct Capture *c = captures; c; c = c->next) {
        bool mine = pthread_equal(c->thread, pthread_self());
        if (c->status == CAPTURE_NONE || c->mode == MODE_RELAXED) continue;
        if (c->mode == MODE_THREAD_LOCAL && !mine) continue;
        c->status = CAPTURE_INVALIDATED;
        answer = STREAM_CAPTURE_UNSUPPORTED;
    }
    return answer;
}

static CUresult capture_error_unlocked(void) { LOCKED; return capture_error(); }

static CUresult begin_capture(CUstream stream, int mode, pthread_t thread) {
    REQUIRE(mode >= MODE_GLOBAL && mode <= MODE_RELAXED, INVALID_VALUE);
    REQUIRE(stream != &stream->ctx->legacy, STREAM_CAPTURE_UNSUPPORTED);
    REQUIRE(!capture_of(stream), ILLEGAL_STATE);
    struct Capture *c = make(sizeof *c);
    *c = (struct Capture){++capture_ids, CAPTURE_ACTIVE, mode, thread, stream,
                          make(sizeof *c->graph), captures};
    captures = stream->capture = c;
    return SUCCESS;
}

CUresult cuStreamBeginCapture_v2(CUstream handle, int mode) {
    STREAM;
    return begin_capture(stream, mode, pthread_self());
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph *graph) {
    STREAM;
    struct Capture *c = capture_of(stream);
    REQUIRE(graph, INVALID_VALUE);
    REQUIRE(c, ILLEGAL_STATE);
    REQUIRE(c->origin == stream, STREAM_CAPTURE_UNMATCHED);
    bool whole = c->status == CAPTURE_ACTIVE; /* any thread may end one that is not */
    REQUIRE(!whole || c->mode == MODE_RELAXED || pthread_equal(c->thread, pthread_self()),
            STREAM_CAPTURE_WRONG_THREAD);
    c->status = CAPTURE_NONE;
    *graph = whole ? c->graph : NULL;
    return whole ? SUCCESS : STREAM_CAPTURE_INVALIDATED;
}

CUresult cuStreamGetCaptureInfo_v2(CUstream handle, int *status, unsigned long long *id, CUgraph *graph,
                                   const void ***dependencies, size_t *count) {
    STREAM;
    struct Capture *c = capture_of(stream);
    REQUIRE(status, INVALID_VALUE);
    *status = c ? c->status : CAPTURE_NONE;
    if (c && id) *id = c->id;
    if (c && graph) *graph = c->graph;
    if (dependencies) *dependencies = NULL;
    if (count) *count = 0;
    return SUCCESS;
}

FORWARD(cuStreamIsCapturing, (CUstream handle, int *status),
        cuStreamGetCaptureInfo_v2(handle, status, NULL, NULL, NULL, NULL))

/* ---- Streams and events ---- */

CUresult cuStreamSynchronize(CUstream handle) {
    STREAM;
    if (!capture_of(stream)) {
        merge(&host, clock_of(stream));
        return SUCCESS;
    }
    stream->capture->status = CAPTURE_INVALIDATED;
    return STREAM_CAPTURE_UNSUPPORTED;
}

CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned flags) {
    STREAM;
    REQUIRE(alive(event), INVALID_HANDLE);
    struct Capture *here = capture_of(stream), *there = event->capture;
    note(stream, "wait %u", event->number);
    if (event->recorded && !here && !there) merge(&stream->after, &event->after);
    if (!event->recorded || here == there) return SUCCESS;
    if (here) {
        here->status = CAPTURE_INVALIDATED;
        return there ? STREAM_CAPTURE_MERGE : STREAM_CAPTURE_ISOLATION;
    }
    REQUIRE(there->status != CAPTURE_NONE, CAPTURED_EVENT);
    stream->capture = there; /* waiting for captured work makes this stream part of the capture */
    return SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream handle) {
    STREAM;
    REQUIRE(alive(event) && event->ctx == ctx, INVALID_HANDLE);
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    event->ms = (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
    event->capture = capture_of(stream);
    event->recorded = true;
    event->after = *clock_of(stream);
    note(stream, "record %u", event->number);
    return SUCCESS;
}

CUresult cuEventElapsedTime(float *ms, CUevent event, CUevent end) {
    EVENT;
    REQUIRE(alive(end) && event->recorded && end->recorded, INVALID_HANDLE);
    REQUIRE(event->timed && end->timed, INVALID_HANDLE);
    REQUIRE(!event->capture && !end->capture, CAPTURED_EVENT);
    *ms = (float)(end->ms - event->ms);
    return SUCCESS;
}

#ifndef FAKE_OLD
FORWARD(cuEventElapsedTime_v2, (float *ms, CUevent event, CUevent end),
        cuEventElapsedTime(ms, event, end))
#endif
CALL(cuEventQuery, (CUevent event), EVENT, REQUIRE(!event->capture, CAPTURED_EVENT);
     merge(&host, &event->after))
FORWARD(cuEventSynchronize, (CUevent event), cuEventQuery(event))
CALL(cuEventDestroy_v2, (CUevent event), EVENT, event->dead = true)
CALL(cuEventCreate, (CUevent *event, unsigned flags), CONTEXT; REQUIRE(event, INVALID_VALUE),
     *event = make(sizeof **event);
     static unsigned events;
     **event = (struct Event){.ctx = ctx, .life = ctx->life, .number = ++events};
     (*event)->timed = !(flags & 2 /* CU_EVENT_DISABLE_TIMING */))
CALL(cuStreamCreate, (CUstream *stream, unsigned flags),
     CONTEXT; REQUIRE(stream && flags <= 1, INVALID_VALUE),
     *stream = make(sizeof **stream);
     **stream = (struct Stream){.ctx = ctx, .life = ctx->life})
FORWARD(cuStreamCreateWithPriority, (CUstream *stream, unsigned flags, int priority),
        cuStreamCreate(stream, flags))
FORWARD(cuStreamQuery, (CUstream handle), cuStreamSynchronize(handle))
CALL(cuStreamDestroy_v2, (CUstream handle), STREAM; REQUIRE(stream == handle, INVALID_HANDLE),
     stream->dead = true)
