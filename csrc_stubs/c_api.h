// What mxfp4_ops/backends/cpu.py calls through ctypes.
#pragma once

#if defined(_WIN32)
#define MXFP4_EXPORT __declspec(dllexport)
#else
#define MXFP4_EXPORT __attribute__((visibility("default")))
#endif

extern "C" {

// The instruction set in use; those that this processor can use, separated by spaces, the slowest
// first; and the choice of one of them (0: there is no such).
MXFP4_EXPORT const char* mxfp4_cpu_isa();
MXFP4_EXPORT const char* mxfp4_cpu_isas();
MXFP4_EXPORT int mxfp4_cpu_select(const char* name);

// What `use_backend` wants of this thread's calls (force.h), and the reason if it is a refusal; and
// what all threads do that were not told.
MXFP4_EXPORT void mxfp4_cpu_force(int force, const char* reason);
MXFP4_EXPORT void mxfp4_cpu_default_force(int force, const char* reason);

// Why a call that was handed on to Python is failing: its exception does not get through torch.
MXFP4_EXPORT void mxfp4_cpu_failed(const char* reason);

}  // extern "C"
