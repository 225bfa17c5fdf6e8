/*
 * Prints the row of `src/process/python/layout.rs` for the version of Python whose headers it is compiled with: offsets
 * in the order of the fields of `Layout`. From Python 3.13 on, the places of these offsets in `_Py_DebugOffsets`.
 */
#define Py_BUILD_CORE 1
#include <Python.h>
#include <stddef.h>
#include <stdio.h>
#if PY_VERSION_HEX >= 0x030b0000
#include <internal/pycore_frame.h>
#else
#include <frameobject.h>
#endif
#include <internal/pycore_pystate.h>
#if PY_VERSION_HEX >= 0x03090000
#include <internal/pycore_interp.h>
#include <internal/pycore_runtime.h>
#endif

#if PY_VERSION_HEX >= 0x030d0000
#define OFFSETS(field) offsetof(_Py_DebugOffsets, field)
#endif
/* 0 stands for fields that a version lacks. */
#define ABSENT 0

int main(void) {
    size_t offsets[] = {
#if PY_VERSION_HEX >= 0x030d0000
        OFFSETS(runtime_state.interpreters_head), OFFSETS(interpreter_state.next),
        OFFSETS(interpreter_state.threads_head), OFFSETS(thread_state.next), OFFSETS(thread_state.thread_id),
        OFFSETS(thread_state.current_frame), ABSENT, OFFSETS(interpreter_frame.previous),
        OFFSETS(interpreter_frame.executable), OFFSETS(interpreter_frame.instr_ptr),
        OFFSETS(interpreter_frame.owner), OFFSETS(code_object.filename), OFFSETS(code_object.qualname),
        OFFSETS(code_object.firstlineno), OFFSETS(code_object.linetable), OFFSETS(code_object.co_code_adaptive),
        OFFSETS(pyobject.ob_type), OFFSETS(unicode_object.length), OFFSETS(unicode_object.state),
        OFFSETS(unicode_object.asciiobject_size), OFFSETS(bytes_object.ob_size), OFFSETS(bytes_object.ob_sval),
#else
        offsetof(_PyRuntimeState, interpreters.head), offsetof(PyInterpreterState, next),
#if PY_VERSION_HEX >= 0x030b0000
        offsetof(PyInterpreterState, threads.head), offsetof(PyThreadState, next),
        offsetof(PyThreadState, thread_id), offsetof(PyThreadState, cframe), offsetof(_PyCFrame, current_frame),
        offsetof(_PyInterpreterFrame, previous), offsetof(_PyInterpreterFrame, f_code),
        offsetof(_PyInterpreterFrame, prev_instr), offsetof(_PyInterpreterFrame, owner),
        offsetof(PyCodeObject, co_filename), offsetof(PyCodeObject, co_qualname),
        offsetof(PyCodeObject, co_firstlineno), offsetof(PyCodeObject, co_linetable),
        offsetof(PyCodeObject, co_code_adaptive),
#else
        offsetof(PyInterpreterState, tstate_head), offsetof(PyThreadState, next),
        offsetof(PyThreadState, thread_id), offsetof(PyThreadState, frame), ABSENT,
        offsetof(PyFrameObject, f_back), offsetof(PyFrameObject, f_code), offsetof(PyFrameObject, f_lasti), ABSENT,
        offsetof(PyCodeObject, co_filename), offsetof(PyCodeObject, co_name), offsetof(PyCodeObject, co_firstlineno),
#if PY_VERSION_HEX >= 0x030a0000
        offsetof(PyCodeObject, co_linetable),
#else
        offsetof(PyCodeObject, co_lnotab),
#endif
        ABSENT,
#endif
        offsetof(PyObject, ob_type), offsetof(PyASCIIObject, length), offsetof(PyASCIIObject, state),
        sizeof(PyASCIIObject), offsetof(PyVarObject, ob_size), offsetof(PyBytesObject, ob_sval),
#endif
    };
    printf("(%d, [", PY_MINOR_VERSION);
    for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++) printf("%s%zu", i ? ", " : "", offsets[i]);
    printf("]),\n");
    return 0;
}
