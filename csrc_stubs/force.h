// What `mxfp4_ops.use_backend` asks of calls on CPU tensors.
#pragma once

namespace mxfp4 {

enum class Force { run = 0, to_reference = 1, refuse = 2 };

// This thread's. Throws std::runtime_error with the reason that Python gave if it is `refuse`.
bool forced_to_reference();

// Why the last call of this thread that was handed on to Python failed.
const char* python_failure();

}  // namespace mxfp4
